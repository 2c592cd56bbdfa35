"""The files of a sweep's run that was never run."""

import csv
import os

import numpy as np

from experiments.folders import folder as run_folder
from quap_tff.common import files
from quap_tff.serving import store as stores


def write(run, rounds, seconds=2.0, interrupted=False, accuracy=0.5, with_summary=True):
  """Writes what a run of a sweep leaves in its folder after these rounds."""
  os.makedirs(run.path, exist_ok=True)
  machine = {'platform': 'x', 'cores': 2, 'gpus': 0, 'onednn': True}
  stretch = {'first_round': 1, 'code': run_folder.code(), 'versions': {}, 'machine': machine}
  files.write_json(os.path.join(run.path, 'run.json'), {'identity': dict(run.identity), 'stretches': [stretch]})
  with open(os.path.join(run.path, 'metrics.csv'), 'w', newline='') as f:
    writer = csv.writer(f)
    writer.writerow(['round', 'train_loss'])
    writer.writerows([t, ''] for t in range(1, rounds + 1))
  # The files' times show how long the rounds took.
  begin = os.path.getmtime(os.path.join(run.path, 'run.json'))
  os.utime(os.path.join(run.path, 'metrics.csv'), (begin, begin + rounds * seconds))
  finished = with_summary and rounds >= run.last_round
  if not finished:
    os.makedirs(os.path.join(run.path, 'checkpoints'))
    files.write_sealed(os.path.join(run.path, 'checkpoints', 'secret'), b'secret')
    store = stores.Store(os.path.join(run.path, 'checkpoints', 'state'))
    store.write({stores.DONE: np.array(rounds)})
    store.close()
  if with_summary:
    summary = {'interrupted': interrupted, 'rounds': rounds, 'test_accuracy': accuracy, 'finished': finished}
    files.write_json(os.path.join(run.path, 'summary.json'), summary)
