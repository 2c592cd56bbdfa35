"""The commands that make the runs of a section."""

from typing import Optional, Sequence

from experiments.reporting import documents

MNIST = 'experiments/presets/mnist_2025.flags'


def sweep(preset: str = MNIST, seeds: Optional[Sequence[int]] = documents.SEEDS, **grid: Sequence) -> str:
  """A sweep over `grid`, each flag with its values, on top of a preset."""
  if seeds is not None:
    grid = {**grid, 'seed': seeds}
  axes = ' '.join(f"--vary='{name}={'|'.join(str(v) for v in values)}'" for name, values in grid.items())
  return f'python -m experiments.sweep --output_dir=runs/sweep {axes} -- --flagfile={preset}'
