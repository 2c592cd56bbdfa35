"""Generators that are pure functions of (seed, stream, index), so that no draw depends on an earlier one."""

import numpy as np

from quap_tff.common import checks

# One stream for each use, so that no two uses of one seed draw the same numbers. A number here is never used again.
STREAMS = {
  'partition': 1,
  'client_choice': 2,
  'client_weights': 3,
  'cohort': 4,
  'availability': 5,
  'test_split': 6,
  'glyphs': 7,
  'things': 8,
  'few_examples': 21,
  'client_worlds': 22,
  'example_worlds': 23,
  'own_budgets': 9,
  'dropout': 20,
  'dropout_rates': 24,
  'server_rounds': 25,
  'auxiliary': 26,
  'battery': 27,
  'example_log': 29,
  'synthetic_teacher': 28,
  'synthetic_client': 10,
  'synthetic_test': 11,
}


def generator(seed: int, stream: str, index: int = 0) -> np.random.Generator:
  """The generator of one draw.

  Args:
    seed: A non-negative integer of any size.
    stream: The use, a key of `STREAMS`.
    index: Which draw of this use, e.g. the round number.
  """
  checks.integer('seed', seed, at_least=0)
  return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(STREAMS[stream], index)))
