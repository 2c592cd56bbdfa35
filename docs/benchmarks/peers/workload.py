"""What both peers run: our benchmark's model, data and steps in PyTorch. It runs in the peers' environments only."""

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch
from torch import nn

CLASSES = 10
LEARNING_RATE = 0.005
SHAPE = (28, 28, 1)


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
  """The flags that both scripts share, parsed. Their defaults are those of `experiments.benchmark`."""
  parser.add_argument('--clients', type=int, default=30, help='Clients in each round.')
  parser.add_argument('--examples', type=int, default=600, help='Examples of each client.')
  parser.add_argument('--batch_size', type=int, default=32)
  parser.add_argument('--rounds', type=int, default=3, help='Timed rounds, after a first one that is not timed.')
  parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16'])
  parser.add_argument('--channels_last', action='store_true', help="PyTorch's other layout of images.")
  return parser.parse_args()


def report(peer: str, version: str, args: argparse.Namespace, seconds: list[float]) -> None:
  """Prints one JSON line about the rounds' times, the first of which is not counted."""
  timed = seconds[1:]
  median = statistics.median(timed)
  print(
    json.dumps(
      {
        'case': f'{peer}_{args.dtype}',
        'version': version,
        'channels_last': args.channels_last,
        'samples_per_second': args.clients * args.examples / median,
        'seconds_per_round': median,
        'rounds': len(timed),
      }
    ),
    flush=True,
  )


class Model(nn.Module):
  """The network, with the two methods that pfl asks of a model."""

  def __init__(self):
    super().__init__()
    self.layers = nn.Sequential(
      nn.Conv2d(1, 32, 3),
      nn.ReLU(),
      nn.Conv2d(32, 64, 3),
      nn.ReLU(),
      nn.MaxPool2d(2),
      nn.Dropout(0.25),
      nn.Flatten(),
      nn.Linear(64 * 12 * 12, 128),
      nn.ReLU(),
      nn.Dropout(0.5),
      nn.Linear(128, CLASSES),
    )

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.layers(x)

  def loss(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
    self.train()
    return nn.functional.cross_entropy(self(x), y)

  def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> dict:
    """Nothing is evaluated here."""
    del x, y
    return {}


def build(channels_last: bool) -> Model:
  """The model, with its weights in one of PyTorch's layouts."""
  model = Model()
  return model.to(memory_format=torch.channels_last) if channels_last else model


def tensors(number: int, examples: int, channels_last: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
  """Random images float32[examples, 1, height, width] and labels int64[examples] of each client."""
  rng = np.random.default_rng(0)
  layout = torch.channels_last if channels_last else torch.contiguous_format
  result = []
  for _ in range(number):
    x = torch.from_numpy(rng.random((examples, *SHAPE), np.float32)).permute(0, 3, 1, 2)
    result.append((x.contiguous(memory_format=layout), torch.from_numpy(rng.integers(0, CLASSES, examples))))
  return result
