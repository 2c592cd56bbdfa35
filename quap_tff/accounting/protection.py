"""What is and what is not protected by a configuration, in plain words (DESIGN 3)."""

from typing import NamedTuple, Sequence

from quap_tff import config as configs
from quap_tff import layers as layers_lib


class Protection(NamedTuple):
  """A statement about the released model.

  Attributes:
    model_protected: Whether noise covers everything that the released model learns from clients. Only then can the
      model have a finite ε at all; which one, an accountant says.
    text: The statement, one sentence a line.
  """

  model_protected: bool
  text: str


def describe_protection(
    config: configs.QuapConfig, layers: Sequence[layers_lib.Layer], sizes: Sequence[int]
) -> Protection:
  """What may be said of a run.

  Args:
    config: The mechanism.
    layers: The model's layers.
    sizes: Number of entries of each trainable tensor, in the order of the layers' indices.
  """
  if config.noise.placement == 'none':
    return Protection(False, 'No noise is added: nothing is protected, and the released model has no finite ε.')
  critical = layers_lib.critical_layers(layers, config.critical_layers)
  noised = sum(sizes[i] for layer in critical for i in layer.indices)
  every_layer = len(critical) == len(layers)
  names = 'every layer' if every_layer else f'layer {", ".join(layer.name for layer in critical)} only'
  lines = [f'Noise covers {names}: {noised:,} of {sum(sizes):,} trained weights ({noised / sum(sizes):.2%}).']
  if not every_layer:
    lines.append(
        'The other layers are released from un-noised averages, so the released model as a whole has no finite ε.'
    )
  if config.clip.releases_exact_norms:
    quantile = 'The clipping norm is an un-noised function of the clients\' update norms, which no figure covers'
    lines.append(f'{quantile}{"; it leaves the released model without a finite ε." if every_layer else "."}')
  if every_layer and not config.clip.releases_exact_norms:
    lines.append('The released model can have a finite ε; this program has not computed one.')
  lines.append(
      'The ε above is nominal: basic composition of the noised layers\' rounds per client (unit: one client\'s whole '
      'data), no amplification by sampling, clipping norms taken as given.'
  )
  lines.append(
      'Training loss, training accuracy, update norms and signal norms in the logs are exact and not protected.'
  )
  return Protection(every_layer and not config.clip.releases_exact_norms, '\n'.join(lines))
