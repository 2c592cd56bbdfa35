r"""Writes a stand-in for shakespeare.sqlite, the file of TFF's loader, from a list of speeches.

    python -m data.datasets.shakespeare_file speeches.json.gz CACHE_DIR

`speeches.json.gz` is a gzipped JSON object, {"role": [speech, …]}. The file has the tables, splits and features of the
published one, and each role's speeches are divided as there: at least one in each split, about 15% for the test, roles
with a single speech left out. It is not the published file (its roles, cuts and spelling differ), so results on it are
called "Shakespeare stand-in". The package reads it through TFF's loader and does not know the difference.
"""

from collections.abc import Mapping, Sequence
import gzip
import json
import os
import sys

import numpy as np

from data.datasets import tff_files

FILENAME = 'shakespeare.sqlite'
_TEST_SHARE = 0.15
_SEED = 1623  # The year of the First Folio.


def write_roles(path: str, speeches: Mapping[str, Sequence[str]]) -> None:
  """Writes the file, completely or not at all.

  Args:
    path: Where to write; an existing file is replaced.
    speeches: The speeches of each role.
  """
  splits: dict[str, dict[str, list[dict[str, bytes]]]] = {'test': {}, 'train': {}}
  rng = np.random.default_rng(_SEED)
  for role in sorted(speeches):
    role_speeches = [speeches[role][i] for i in rng.permutation(len(speeches[role]))]
    if len(role_speeches) < 2:
      continue
    cut = max(1, round(_TEST_SHARE * len(role_speeches)))
    # One byte a character, as in the published file.
    examples = [{'snippets': text.encode('ascii', 'replace')} for text in role_speeches]
    splits['test'][role], splits['train'][role] = examples[:cut], examples[cut:]
  tff_files.write_splits(path, splits)


def main(argv: list[str]) -> None:
  """Writes the stand-in that `argv[1:]` asks for."""
  if len(argv) != 3:
    sys.exit('Usage: python -m data.datasets.shakespeare_file speeches.json.gz CACHE_DIR')
  with gzip.open(argv[1], 'rt', encoding='utf-8') as f:
    speeches = json.load(f)
  os.makedirs(argv[2], exist_ok=True)
  write_roles(os.path.join(argv[2], FILENAME), speeches)


if __name__ == '__main__':
  main(sys.argv)
