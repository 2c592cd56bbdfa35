"""The datasets by name. A new one is a class in a file of this folder, and a line in `DATASETS`.

A dataset is a frozen dataclass that makes a federation, by a partition of a pool or with clients of its own.
"""

from data.datasets import base
from data.datasets import images
from data.datasets import natural
from data.datasets import npz
from data.datasets import synthetic
from quap_tff.common import registry

DATASETS: dict[str, type[base.Dataset]] = {
  'digits': images.Digits,
  'glyphs': synthetic.Glyphs,
  'mnist': images.Mnist,
  'mnist_writers': images.MnistWriters,
  'unipen': images.Unipen,
  'cifar10': images.Cifar10,
  'things': synthetic.Things,
  'femnist': natural.Femnist,
  'femnist_digits': natural.FemnistDigits,
  'cifar100': natural.Cifar100,
  'shakespeare': natural.Shakespeare,
  'stackoverflow_words': natural.StackOverflowWords,
  'synthetic': synthetic.Synthetic,
  'npz': npz.Npz,
}


def portable(spec: str) -> str:
  """The spec as a run's folder names it, without the places of files on this machine."""
  dataset = registry.parse_spec('dataset', spec, DATASETS)
  kept = dataset.portable()
  return spec if kept == dataset else registry.format_spec(spec.partition(':')[0], kept)
