"""Every file that holds a key, or a secret from which keys follow, can be read by its owner alone."""

import contextlib
import os
import stat

import numpy as np
import pytest

from experiments.folders import directory as run_directory
from quap_tff import Gate
from quap_tff import plans
from quap_tff.mechanisms.held import guard
from quap_tff.mechanisms.noise import correlation
from tests.quap_tff import examples


def _gate(path):
  gate = Gate(3, 4.0, 3.0, 1e-5, correlation=correlation.Ar1(0.5))
  for _ in range(2):  # The second file takes the place of the first.
    gate.ask([0, 1])
    gate.commit([0, 1])
    gate.noise(np.random.default_rng(1), [2])
    gate.save(str(path / 'gate.state'))


def _guard(path):
  schedule = [[0, 1], [1, 2]]
  config = examples.held(num_clients=3, correlation=correlation.HeldNoise(0.5))
  own = guard.ClientGuard(plans.Plan.certified(config, schedule), 1, bytes(32), str(path / 'memory'))
  own.answer(1, schedule[0], [])
  own.answer(2, schedule[1], schedule[0])


def _run(path):
  with contextlib.closing(
    run_directory.RunDirectory(str(path), {'rounds': 8}, {'rounds': 8}, {'num_clients': 2}, b'data')
  ) as run:
    run.begin_stretch(1)
    for round_num in range(4):
      run.store.write({'done': np.array(round_num)})


# For each program that keeps keys: what writes them, and the files in which they are.
_WRITERS = {
  'gate': (_gate, {'gate.state'}),
  'guard': (_guard, {'memory'}),
  'run': (_run, {'checkpoints/secret', 'checkpoints/state'}),
}


@pytest.mark.parametrize('name', _WRITERS)
def test_only_its_owner_can_read_a_file_with_a_key(name, tmp_path):
  write, expected = _WRITERS[name]
  before = os.umask(0)
  try:
    write(tmp_path)
  finally:
    os.umask(before)
  kept = {str(one.relative_to(tmp_path)): one for one in tmp_path.rglob('*') if one.is_file()}
  # Of a run's folder, the other files hold no keys.
  private = {place for place, one in kept.items() if not stat.S_IMODE(one.stat().st_mode) & 0o077}
  assert expected <= private and not (set(kept) - private if name != 'run' else {p for p in kept if '/' in p} - private)
