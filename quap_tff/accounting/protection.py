"""The things that a configuration protects, and those that it does not, in plain words."""

from collections.abc import Sequence
import json
from typing import NamedTuple, Optional

from quap_tff.common.numbers import rounding
from quap_tff.mechanisms import mechanism
from quap_tff.mechanisms.parts import layers as layers_lib

RELEASED_MODEL, WEIGHTS_ONLY, NOTHING = COVERS = ('released model', 'weights without the logs', 'nothing')


class Protection(NamedTuple):
  """A statement about a run.

  Attributes:
    covers: The release for which the run's formal figures hold, one of `COVERS`. 'released model': everything that is
      released. 'weights without the logs': the model's weights, as long as the exact training metrics that are logged
      alongside stay secret. 'nothing': the released model has no finite ε, and there are no formal figures.
    statement: The release that is covered and why, in a sentence or two.
    noised: The weights that get noise, a sentence; '' if none do.
    exact_logs: That exact values are in the logs, a sentence; '' if they are not.
    notes: What else must be said, one sentence or more each.
  """

  covers: str
  statement: str
  noised: str = ''
  exact_logs: str = ''
  notes: tuple[str, ...] = ()

  @property
  def text(self) -> str:
    """Everything that may be said, a line each."""
    return '\n'.join(filter(None, [self.noised, self.statement, self.exact_logs, *self.notes]))

  @property
  def model_protected(self) -> bool:
    """True if the released model itself has a finite ε; other releases are another matter."""
    return self.covers != NOTHING


# The neighbouring relations of a ledger's μ, by the names that files have for them.
ZERO_OUT, REPLACE_ONE = 'zero_out', 'replace_one'


class Conditions(NamedTuple):
  """The conditions under which the μ² of a ledger are the cost of everything that its run released.

  Attributes:
    trust: As in `quap_tff.mechanisms.facts.Facts`.
    relation: `ZERO_OUT` or `REPLACE_ONE`.
    covers: One of `COVERS`.
    is_ideal: Whether the noise is counted as ideal, in this run or in one before it.
    colluders: The numbers k for which the ledger also has μ² against the server and any k others, ascending.
  """

  trust: str
  relation: str
  covers: str
  is_ideal: bool
  colluders: tuple[int, ...] = ()

  @property
  def text(self) -> str:
    """The conditions as a file has them."""
    return json.dumps(self._asdict())

  @classmethod
  def of_text(cls, text: str) -> 'Conditions':
    """The conditions in a file. Raises `ValueError` if there are none."""
    try:
      value = json.loads(text)
      found = cls(**{**value, 'colluders': tuple(value['colluders'])})
    except (TypeError, KeyError) as error:
      raise ValueError(f'conditions must be those of a run, found {text!r}.') from error
    if found.text != text or found.covers not in COVERS or found.relation not in (ZERO_OUT, REPLACE_ONE):
      raise ValueError(f'conditions must be those of a run, found {text!r}.')
    return found


# Exact functions of clients' data that may be released alongside a model.
TRAINING_METRICS = 'training metrics of clients, which --noclient_metrics withholds'
EXACT_LOGS = 'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
CLIENTS_TESTS = 'figures on test examples of the clients themselves'


def large_delta(facts: mechanism.Facts, num_clients: int) -> str:
  """A warning if δ is above 1/N; '' otherwise, and where there is no noise."""
  if not facts.adds_noise or facts.delta * num_clients <= 1:
    return ''
  return (
    f'Warning: δ = {rounding.up(facts.delta)} is above 1/{num_clients}, one over the number of clients. A mechanism '
    'that publishes all data of a client drawn at random would satisfy as much. Choose a δ far below that.'
  )


def describe_protection(
  facts: mechanism.Facts,
  model: Optional[layers_lib.ModelShape] = None,
  exact_logs: Sequence[str] = (TRAINING_METRICS,),
  exact_uses: Sequence[str] = (),
) -> Protection:
  """The statement that may be made about a run.

  If anything is released without noise, later rounds depend on it: they train on it, or their clip or noise follows it.
  So the clip does not bound a client's influence on later rounds, and there is no formal figure for the noised weights
  either. Only noise on everything gives a formal figure.

  Args:
    facts: The mechanism's facts.
    model: The model's shape. If it is unknown, noise counts as covering every layer only if the facts say so.
    exact_logs: Which exact functions of clients' data are released alongside the model, a clause each.
    exact_uses: Which exact functions of clients' data the training depends on outside the mechanism, a clause each.
  """
  if not facts.adds_noise:
    statement = 'No noise is added: nothing is protected, and there is no finite ε for the released model.'
    return Protection(NOTHING, statement)
  covers_all, covered = _covered(facts.noised_layers, model)
  reasons = list(exact_uses)
  if not covers_all:
    reasons.append('the other layers come from un-noised averages')
  reasons += facts.exact_releases
  if facts.noise_seed is not None:
    reasons.append('the seed of the noise was given, and anyone who knows it can subtract the noise')
  if reasons:
    covers, statement = NOTHING, f'No finite ε for the released model: {"; ".join(reasons)}.'
  elif exact_logs:
    covers = WEIGHTS_ONLY
    statement = (
      'Every weight is noised: formal figures hold for the weights as long as the logs stay secret. There is no '
      f'finite ε for the release as a whole: exact values are logged, namely {" and ".join(exact_logs)}.'
    )
  else:
    covers, statement = RELEASED_MODEL, 'Every released number is noised: formal figures hold for the released model.'
  note_on_logs = EXACT_LOGS if TRAINING_METRICS in exact_logs else ''
  return Protection(covers, statement, covered, note_on_logs)


def _covered(selection: str, model: Optional[layers_lib.ModelShape]) -> tuple[bool, str]:
  """A pair: True if noise covers every layer, and a sentence on what it covers."""
  if model is None:
    if selection == layers_lib.ALL:
      return True, 'Noise covers every layer.'
    return False, f'Noise covers the layers {selection!r} only.'
  critical = layers_lib.critical_layers(model.layers, selection)
  trained = sum(model.sizes)
  if len(critical) == len(model.layers):
    return True, f'Noise covers every layer: all {trained:,} trained weights.'
  names = ', '.join(layer.name for layer in critical)
  noised = sum(model.sizes[index] for layer in critical for index in layer.indices)
  return False, f'Noise covers layer {names} only: {noised:,} of {trained:,} trained weights ({noised / trained:.2%}).'
