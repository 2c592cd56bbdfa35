"""What is and what is not protected by a configuration, in plain words (DESIGN 3)."""

from typing import NamedTuple, Sequence

from quap_tff import config as configs
from quap_tff import layers as layers_lib

RELEASED_MODEL, NOISED_WEIGHTS, NOTHING = COVERS = ('released model', 'noised weights', 'nothing')


class Protection(NamedTuple):
  """A statement about a run.

  Attributes:
    covers: Of `COVERS`, what formal figures of the run hold for. 'released model': for all that is released.
      'noised weights': for these only, with what is released un-noised taken as given. 'nothing': there are none.
    statement: Why, in a sentence or two.
    text: The whole statement, one sentence a line.
  """

  covers: str
  statement: str
  text: str

  @property
  def model_protected(self) -> bool:
    """Whether noise covers everything that is released. Only then can the released model have a finite ε as a whole."""
    return self.covers == RELEASED_MODEL


def describe_protection(
    config: configs.QuapConfig,
    layers: Sequence[layers_lib.Layer],
    sizes: Sequence[int],
    client_metrics_logged: bool = True,
    budgets_depend_on_data: bool = False,
) -> Protection:
  """What may be said of a run.

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
  covers, statement = _judge(config, len(critical) == len(layers), client_metrics_logged, budgets_depend_on_data)
  lines = [
      f'Noise covers {names}: {noised:,} of {sum(sizes):,} trained weights ({noised / sum(sizes):.2%}).',
      statement,
      'Nominal ε is basic composition of the noised layers\' rounds per client (unit: one client\'s whole data), no '
      'amplification by sampling, clipping norms taken as given.',
  ]
  if client_metrics_logged:
    lines.append(
        'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
    )
  return Protection(covers, statement, '\n'.join(lines))


def _judge(config, every_layer, client_metrics_logged, budgets_depend_on_data):
  """What is covered, and the statement that says why."""
  if budgets_depend_on_data:
    return NOTHING, (
        'The budgets go by clients\' un-noised updates, and so the noise level itself is an un-noised release: no '
        'formal figure holds, no finite ε for the released model.'
    )
  # Un-noised values that the next round is trained on or clipped by: figures hold only given them.
  fed_back = []
  if not every_layer:
    fed_back.append('the other layers come from un-noised averages')
  if config.clip.releases_exact_norms:
    fed_back.append('the clipping norm is an un-noised function of the clients\' update norms')
  reasons = list(fed_back)
  if client_metrics_logged:
    reasons.append('exact training metrics of clients are released beside it (--noclient_metrics withholds them)')
  if not reasons:
    seed = '' if config.noise.seed is None else ', for whoever does not know the noise seed, which was given'
    return RELEASED_MODEL, f'Every released number is noised: formal figures hold for the released model{seed}.'
  given = ', with what is released un-noised taken as given' if fed_back else ''
  lacking = 'released model' if fed_back else 'release as a whole'
  return NOISED_WEIGHTS, (
      f'Formal figures hold for the noised weights only{given}; no finite ε for the {lacking}: {"; ".join(reasons)}.'
  )
