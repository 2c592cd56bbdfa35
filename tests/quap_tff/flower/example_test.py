"""The example of docs/deploy.md for clients of any framework, as processes of this machine: NumPy and PyTorch."""

import importlib.util
import json
import os
import pathlib
import re

import pytest

pytest.importorskip('flwr', reason='make test-deploy sets up the newest Python that Flower runs on, and Flower.')

from quap_tff import certificates
from quap_tff.flower import node as nodes
from tests import processes
from tests.quap_tff.flower import federation
from tests.quap_tff.flower import own_training

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).absolute().parents[3]
PROGRAMS = {'numpy': own_training.__file__, 'torch': ROOT / 'docs' / 'own_clients' / 'digits_torch.py'}
# Of each preset, what the statement of its certificate says of the server.
PRESETS = {'digits_certified': 'with a trusted server', 'digits_secure_sum': 'The secure sum was SecAgg+ over Flower'}
# Fewer rounds than a reader plays: a guess is right in one of ten cases.
ROUNDS, LEAST_ACCURACY = 3, 0.4


@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('framework', PROGRAMS)
def test_runs_as_it_stands(framework, preset, tmp_path):
  if importlib.util.find_spec(framework) is None:
    pytest.skip(f'{framework} is not installed.')
  folder, flags = tmp_path / 'run', ROOT / 'experiments' / 'presets' / f'{preset}.flags'
  environment = {**os.environ, 'PORT': str(federation.free_port()), 'PATH': f'{federation.BIN}:{os.environ["PATH"]}'}
  command = [ROOT / 'docs' / 'own_clients' / 'run.sh', folder, PROGRAMS[framework], flags, f'--rounds={ROUNDS}']
  done = processes.run(command, cwd=ROOT, env=environment)
  logs = [log.read_text(errors='replace')[-2000:] for log in sorted(folder.glob('*.log'))]
  assert done.returncode == 0, '\n'.join([done.stdout, done.stderr, *logs])
  verdict = certificates.verify(str(folder / 'out'))
  assert not verdict.problems and PRESETS[preset] in verdict.statement
  assert "came from a program of the issuer's own" in verdict.statement
  summary = json.loads((folder / 'out' / 'summary.json').read_text())
  assert summary['rounds'] == summary['planned_rounds'] and summary['test_accuracy'] > LEAST_ACCURACY
  assert re.search(f'Somebody came in {summary["rounds"]} of', done.stdout), done.stdout
  for node in range(4):
    assert not (folder / f'node{node}' / nodes.PRIVATE_LOG).exists()  # Nobody added zero.
