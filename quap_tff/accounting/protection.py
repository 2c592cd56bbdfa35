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
    model_protected: Whether noise covers everything that the released model learns from clients. Only then can the
      model have a finite ε at all; what is released beside it is another matter.
    statement: What is covered and why, in a sentence or two.
    text: All that may be said, one sentence a line.
  """

  covers: str
  model_protected: bool
  statement: str
  text: str


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
    return Protection(NOTHING, False, statement, statement)
  critical = layers_lib.critical_layers(layers, config.critical_layers)
  noised = sum(sizes[i] for layer in critical for i in layer.indices)
  names = 'every layer' if len(critical) == len(layers) else f'layer {", ".join(layer.name for layer in critical)} only'
  # Un-noised values that the next round is trained on or clipped by: figures hold only given them.
  fed_back = []
  if len(critical) < len(layers):
    fed_back.append('the other layers come from un-noised averages')
  if config.clip.releases_exact_norms:
    fed_back.append('the clipping norm is an un-noised function of the clients\' update norms')
  if budgets_depend_on_data:
    covers, statement = NOTHING, (
        'The budgets go by clients\' un-noised updates, and so the noise level itself is an un-noised release: no '
        'formal figure holds, no finite ε for the released model.'
    )
  elif fed_back or client_metrics_logged:
    covers, statement = NOISED_WEIGHTS, _noised_weights_only(fed_back, client_metrics_logged)
  else:
    covers, statement = RELEASED_MODEL, 'Every released number is noised: formal figures hold for the released model.'
  if config.noise.seed is not None and covers != NOTHING:
    statement += ' They hold for whoever does not know the noise seed, which was given.'
  lines = [
      f'Noise covers {names}: {noised:,} of {sum(sizes):,} trained weights ({noised / sum(sizes):.2%}).',
      statement,
  ]
  if client_metrics_logged:
    lines.append(
        'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
    )
  model_protected = not fed_back and not budgets_depend_on_data
  return Protection(covers, model_protected, statement, '\n'.join(lines))


def _noised_weights_only(fed_back, client_metrics_logged):
  given = ', with what is released un-noised taken as given' if fed_back else ''
  lacking = 'released model' if fed_back else 'release as a whole'
  reasons = list(fed_back)
  if client_metrics_logged:
    reasons.append('exact training metrics of clients are released beside it (--noclient_metrics withholds them)')
  return f'Formal figures hold for the noised weights only{given}; no finite ε for the {lacking}: {"; ".join(reasons)}.'
