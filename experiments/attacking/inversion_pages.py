"""Pictures of true and recovered images, and how to read a study of gradient inversion."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import plots
from experiments.attacking import inversion_setting
from quap_tff.common import lazy

images_lib = lazy.module('quap_tff.auditing.images')

# Fewer targets give no interval.
FEWEST_TARGETS = 5
_MOST_IMAGES = 10


def pictures(found: dict[Any, Sequence[Any]], steps: int) -> tuple[dict[str, bytes], dict[str, str]]:
  """(PNG files by name, captions by name): for each model and method, the best attack on each observer and batch.

  Args:
    found: For each (model, method), pairs of a row and the `inversion_study.Attempt` that it is about.
    steps: Rows with this number of local steps are shown.
  """
  drawn, captions = {}, {}
  for (model, method), pairs in found.items():
    best = {}
    for row, attempt in pairs:
      key = (row['observer'], row['batch'])
      if row['steps'] == steps and (key not in best or row['psnr_mean'] > best[key][0]['psnr_mean']):
        best[key] = row, attempt
    name = f'inversion_{model}_{method}.png'
    drawn[name] = plots.png(lambda figure, chosen=list(best.values()): _draw(figure, chosen), (9, 2.1 * len(best)))
    captions[name] = (
      f'{model}, {method}: true images above, recovered ones below, the best attack for each observer and batch. '
      f'{inversion_setting.METHODS[method].about}'
    )
  return drawn, captions


def _draw(figure, chosen):
  for axes, (row, attempt) in zip(np.atleast_1d(figure.subplots(len(chosen), 1)), chosen):
    flat = [v.reshape([-1, *v.shape[2:]])[:_MOST_IMAGES] for v in (attempt.true, attempt.recovered)]
    axes.imshow(images_lib.grid(*flat), interpolation='nearest')
    axes.set_axis_off()
    axes.set_title(
      f'{row["observer"]}, batch {row["batch"]}, {row["attack"]}: PSNR {row["psnr_mean"]:.1f} dB, SSIM '
      f'{row["ssim_mean"]:.2f}',
      loc='left',
      fontsize=9,
    )


def notes(cohort: int, matching_images: int) -> tuple[str, ...]:
  """Paragraphs on how to read the rows."""
  return (
    'The observer `client_update` sees what one client sends. Under noise at the server this is the clipped update '
    "without any noise, whatever the method. Under noise at the clients it has the client's own noise. With secure "
    'aggregation nobody sees it.',
    f'The observer `aggregate` sees what a round of {cohort} clients releases. One of them is the target; '
    'the attacker looks for the examples of all.',
    "PSNR and SSIM compare each of the target's images with the recovered image that is assigned to it; 60 dB is "
    'the most that is counted. `recovered` is the share of images with a PSNR of 20 dB or more. `psnr_blind` and '
    '`ssim_blind` are what the mean of the test images reaches, so figures near them mean that nothing was found. '
    'Intervals are 95% intervals of the mean over targets. A dash means that there is no such figure: fewer than '
    f'{FEWEST_TARGETS} targets give no interval.',
    'Clients train without dropout here, and the model has its initial weights. Both help the attacker. Clipping and '
    "noise come from the mechanism's own functions, with the parameters of the dataset's presets. At the same "
    'clipping norm, noise at the server is as large on the sum of a small cohort as on that of a large one.',
    'Matching attacks ran only where an update holds few enough simulated images '
    f'(examples times steps at most {matching_images}). `same_as` names the method whose update was the '
    'same, up to a factor that the attack does not see, so that it was not attacked again.',
  )
