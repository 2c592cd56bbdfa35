"""The things that a configuration protects, and those that it does not, in plain words."""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from quap_tff.mechanisms.parts import layers as layers_lib
from quap_tff.mechanisms.quap import config as configs

RELEASED_MODEL, WEIGHTS_ONLY, NOTHING = COVERS = ('released model', 'weights without the logs', 'nothing')
EVERY_LAYER = 'Noise covers every layer.'


class Protection(NamedTuple):
  """A statement about a run.

  Attributes:
    covers: The release for which the run's formal figures hold, one of `COVERS`. 'released model': everything that is
      released. 'weights without the logs': the model's weights, as long as the exact training metrics that are logged
      alongside stay secret. 'nothing': the released model has no finite ε, and there are no formal figures.
    statement: The release that is covered and why, in a sentence or two.
    text: Everything that may be said, one sentence a line.
  """

  covers: str
  statement: str
  text: str

  @property
  def model_protected(self) -> bool:
    """Whether the released model itself has a finite ε; other releases are another matter."""
    return self.covers != NOTHING


# Exact functions of clients' data that may be released alongside a model.
TRAINING_METRICS = 'training metrics of clients, which --noclient_metrics withholds'
EXACT_LOGS = 'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
CLIENTS_TESTS = 'figures on test examples of the clients themselves'


def describe_protection(
  config: configs.QuapConfig,
  model: Optional[layers_lib.ModelShape] = None,
  exact_logs: Sequence[str] = (TRAINING_METRICS,),
  exact_uses: Sequence[str] = (),
) -> Protection:
  """The statement that may be made about a run.

  If anything is released without noise, later rounds depend on it: they train on it, or their clip or noise follows it.
  So the clip does not bound a client's influence on later rounds, and there is no formal figure for the noised weights
  either. Only noise on everything gives a formal figure.

  Args:
    config: The mechanism.
    model: The model's shape. If it is unknown, noise counts as covering every layer only if the configuration says so.
    exact_logs: Which exact functions of clients' data are released alongside the model, a clause each.
    exact_uses: Which exact functions of clients' data the training depends on outside the mechanism, a clause each.
  """
  if config.noise.placement == 'none':
    statement = 'No noise is added: nothing is protected, and there is no finite ε for the released model.'
    return Protection(NOTHING, statement, statement)
  covers_all, covered = _covered(config.critical_layers, model)
  reasons = list(exact_uses)
  if not covers_all:
    reasons.append('the other layers come from un-noised averages')
  if config.clip.releases_exact_norms:
    reasons.append("the clipping norm is an un-noised function of the clients' update norms")
  if config.aggregator.needs_each_update:
    reasons.append(
      f'the updates are aggregated by {type(config.aggregator).__name__}, which one client can move further than a '
      'mean, and the noise covers only a mean'
    )
  if config.budget.rule.observes_updates:
    reasons.append("the budgets, and so the noise level, follow the clients' un-noised updates")
  return of_noise(covered, reasons, config.noise.seed is not None, exact_logs)


def of_noise(covered: str, reasons: Sequence[str], seed_is_known: bool, exact_logs: Sequence[str]) -> Protection:
  """The statement that may be made about a run with noise.

  Args:
    covered: The layers that the noise covers, a sentence.
    reasons: Why the released model has no finite ε, a clause each. Empty if it has one.
    seed_is_known: Whether the seed of the noise was given.
    exact_logs: As for `describe_protection`.
  """
  reasons = list(reasons)
  if seed_is_known:
    reasons.append('the seed of the noise was given, and anyone who knows it can subtract the noise')
  if reasons:
    covers, statement = NOTHING, f'No finite ε for the released model: {"; ".join(reasons)}.'
  elif exact_logs:
    covers, statement = (
      WEIGHTS_ONLY,
      (
        'Every weight is noised: formal figures hold for the weights as long as the logs stay secret. There is no '
        f'finite ε for the release as a whole: exact values are logged, namely {" and ".join(exact_logs)}.'
      ),
    )
  else:
    covers, statement = RELEASED_MODEL, 'Every released number is noised: formal figures hold for the released model.'
  lines = [covered, statement]
  if TRAINING_METRICS in exact_logs:
    lines.append(EXACT_LOGS)
  return Protection(covers, statement, '\n'.join(lines))


def _covered(selection, model):
  """Whether noise covers every layer, and a sentence on what it covers."""
  if model is None:
    covers_all = selection == layers_lib.ALL
    return covers_all, EVERY_LAYER if covers_all else f'Noise covers the layers {selection!r} only.'
  critical = layers_lib.critical_layers(model.layers, selection)
  noised, trained = sum(model.sizes[i] for layer in critical for i in layer.indices), sum(model.sizes)
  covers_all = len(critical) == len(model.layers)
  names = 'every layer' if covers_all else f'layer {", ".join(layer.name for layer in critical)} only'
  return covers_all, f'Noise covers {names}: {noised:,} of {trained:,} trained weights ({noised / trained:.2%}).'
