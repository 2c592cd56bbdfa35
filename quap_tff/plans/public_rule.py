"""The rule for the constants of a run for which nobody chose any. It looks at no data."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from quap_tff.common import checks
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.training import client_update
from quap_tff.training import models
from quap_tff.training import optimizers

# For rows of norm 1.
_RATE = 100.0
_LOCAL_EPOCHS = 5
# More examples than a client has: each step is of all of them.
FULL_BATCH = 100_000


class PublicConstants(NamedTuple):
  """The constants of a linear model.

  Attributes:
    learning_rate: The clients' learning rate, for plain SGD.
    local_epochs: Passes over a client's examples in a round.
    batch_size: Examples in a step.
    clip: The clipping norm, over a server's step of 1.
  """

  learning_rate: float
  local_epochs: int
  batch_size: int
  clip: float

  def clipping(self) -> dict[str, clip_rules.ClipRule]:
    """The argument `clip` of `quap_tff.certified`."""
    return {'clip': clip_rules.Fixed(self.clip)}

  def training(self) -> dict[str, Any]:
    """The arguments `client_optimizer` and `client_work` of `Plan.build_process` and of `Server`."""
    work = client_update.ClientWorkConfig(local_epochs=self.local_epochs, batch_size=self.batch_size)
    return {'client_optimizer': optimizers.Sgd(self.learning_rate).build(), 'client_work': work}


def public_constants(
  num_rounds: int, row_norm: float = models.LOGIT_SCALE, cohort_size: Optional[float] = None
) -> PublicConstants:
  """Constants for a linear model, from public numbers alone: rate 100/R², five epochs, and a norm.

  The norm is min(1, min(10, M/3)/T)·10/R.

  Logits are W·x, so the unit of W is one over that of x. If rows get k times as long, the same logits need weights and
  updates that are k times as short, and a gradient is k times as long. So a norm goes with 1/R, and a rate with 1/R².
  All rounds' clipped updates together may be 100/R long, which changes the logit of a row by 100 at most. More rounds
  do not go farther, and with small cohorts, whose means have more noise, a model goes less far. A step of all of a
  client's examples has no noise of its own. docs/usage.md, "Choosing constants", says on which data the numbers were
  chosen.

  Args:
    num_rounds: T, the planned rounds.
    row_norm: R, the norm of a row as the model's weights see it. It is 10 for `scaled_linear` on standardised columns,
      and for `linear_features` on features of norm 1. It is √columns for `logistic_regression` on standardised columns.
      It must not be computed from clients' data.
    cohort_size: M, the mean number of clients in a round, see `clip_rules.public_norm`.

  Raises:
    ValueError: For numbers that are not above 0.
  """
  checks.integer('num_rounds', num_rounds, at_least=1)
  checks.number('row_norm', row_norm, above=0)
  clip = clip_rules.public_norm(num_rounds, cohort_size=cohort_size) * models.LOGIT_SCALE / row_norm
  return PublicConstants(_RATE / row_norm**2, _LOCAL_EPOCHS, FULL_BATCH, clip)
