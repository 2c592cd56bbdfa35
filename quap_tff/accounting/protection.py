"""What is and what is not protected by a configuration, in plain words."""

from typing import NamedTuple, Sequence

from quap_tff import config as configs
from quap_tff import layers as layers_lib

RELEASED_MODEL, WEIGHTS_ONLY, NOTHING = COVERS = ('released model', 'weights without the logs', 'nothing')


class Protection(NamedTuple):
  """A statement about a run.

  Attributes:
    covers: What formal figures of the run hold for, one of `COVERS`. 'released model': everything that is released.
      'weights without the logs': the model's weights, as long as the exact training metrics that are logged beside them
      stay secret. 'nothing': the released model has no finite ε, and there are no formal figures.
    statement: What is covered and why, in a sentence or two.
    text: All that may be said, one sentence a line.
  """

  covers: str
  statement: str
  text: str

  @property
  def model_protected(self) -> bool:
    """Whether the released model itself has a finite ε; what is released beside it is another matter."""
    return self.covers != NOTHING


def describe_protection(
    config: configs.QuapConfig,
    layers: Sequence[layers_lib.Layer],
    sizes: Sequence[int],
    client_metrics_logged: bool = True,
    budgets_depend_on_data: bool = False,
) -> Protection:
  """What may be said of a run.

  Whatever is released without noise is something that the next round is trained on, clipped by or noised by. So a
  client's influence on later rounds is not bounded by the clip, and there is no formal figure of the noised weights
  either: only noise on everything gives one.

  Args:
    config: The mechanism.
    layers: The model's layers.
    sizes: Number of entries of each trainable tensor, in the order of the layers' indices.
    client_metrics_logged: Whether exact functions of clients' data (loss, accuracy, norms) are released beside the
      model.
    budgets_depend_on_data: Whether the budgets, and so the noise level, are computed from un-noised updates.
  """
  if config.noise.placement == 'none':
    statement = 'No noise is added: nothing is protected, no finite ε for the released model.'
    return Protection(NOTHING, statement, statement)
  critical = layers_lib.critical_layers(layers, config.critical_layers)
  noised = sum(sizes[i] for layer in critical for i in layer.indices)
  names = 'every layer' if len(critical) == len(layers) else f'layer {", ".join(layer.name for layer in critical)} only'
  reasons = []
  if len(critical) < len(layers):
    reasons.append('the other layers come from un-noised averages')
  if config.clip.releases_exact_norms:
    reasons.append('the clipping norm is an un-noised function of the clients\' update norms')
  if budgets_depend_on_data:
    reasons.append('the budgets, and so the noise level, follow the clients\' un-noised updates')
  if config.noise.seed is not None:
    reasons.append('the seed of the noise was given, and whoever knows it can subtract the noise')
  if reasons:
    covers, statement = NOTHING, f'No finite ε for the released model: {"; ".join(reasons)}.'
  elif client_metrics_logged:
    covers, statement = WEIGHTS_ONLY, (
        'Noise covers every trained weight: formal figures hold for the weights as long as the logs stay secret. There '
        'is no finite ε for the release as a whole: exact training metrics of clients are logged beside the weights '
        '(--noclient_metrics withholds them).'
    )
  else:
    covers, statement = RELEASED_MODEL, 'Every released number is noised: formal figures hold for the released model.'
  lines = [
      f'Noise covers {names}: {noised:,} of {sum(sizes):,} trained weights ({noised / sum(sizes):.2%}).',
      statement,
  ]
  if client_metrics_logged:
    lines.append(
        'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
    )
  return Protection(covers, statement, '\n'.join(lines))
