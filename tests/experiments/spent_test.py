"""Runs of experiments.train that begin with what clients have spent in an earlier run."""

import numpy as np
import pytest

from quap_tff import accounting
from quap_tff import states
from quap_tff import verify
from quap_tff.common.numbers import tradeoff
from tests.experiments import harness

pytestmark = pytest.mark.slow

# Uneven: some clients have nothing left after the first run, or little.
_ARGUMENTS = (*harness.TINY, '--participation=beta:a=0.5,b=2')


def _run(path, *arguments):
  return harness.main(*_ARGUMENTS, '--algorithm=certified', *arguments, f'--output_dir={path}')


def _spent(path):
  return np.asarray(accounting.read_spent(path / 'certificate' / 'ledger.npz').mu_squared)


@pytest.fixture(scope='module')
def first(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'first'
  assert _run(path, '--stop_after=6') == 0
  return path


@pytest.mark.thorough
@pytest.mark.parametrize('file, algorithm', [('ledger.npz', 'certified'), ('clients.csv', 'certified')])
def test_the_second_run_counts_from_the_first(file, algorithm, first, tmp_path, capsys):
  second = tmp_path / 'second'
  arguments = f'--algorithm={algorithm}', f'--spent={first / "certificate" / file}', '--seed=43'
  assert _run(second, *arguments, '--stop_after=3') == 0
  assert _run(second, *arguments) == 0  # It is resumed.
  assert verify.main([str(second)]) == 0
  assert 'The account does not begin at 0' in capsys.readouterr().out
  before, total = (
    np.asarray(accounting.read_spent(path / 'certificate' / 'ledger.npz').mu_squared) for path in (first, second)
  )
  assert (total >= before * (1 - 1e-9)).all() and (total > before + 1e-3).any()
  assert (tradeoff.epsilon_of(np.sqrt(total), 1e-5) <= 4).all()
  epsilon = [float(row['formal_epsilon']) for row in harness.table(second / 'certificate' / 'clients.csv')]
  assert max(epsilon) <= 4 and epsilon[0] >= tradeoff.epsilon_of(np.sqrt(total[0]), 1e-5)
  for name in ('run.json', 'certificate/mechanism.json', 'certificate/certificate.json'):
    assert str(first) not in (second / name).read_text(encoding='utf-8')
  # One heir: a second one is refused, also by the other file of the first run.
  for other in ('ledger.npz', 'clients.csv'):
    assert _run(tmp_path / other, f'--algorithm={algorithm}', f'--spent={first / "certificate" / other}') == 1
    assert f'{second} counts from it already' in capsys.readouterr().err
  assert states.main(['unclaim', str(first / 'certificate' / file)]) == 0  # Other tests count from it, too.
  # Another file is another run.
  assert _run(second, *arguments, f'--spent={second / "certificate" / "ledger.npz"}') == 1
  assert 'spent' in capsys.readouterr().err


@pytest.mark.parametrize(
  'arguments, said',
  [
    (['--algorithm=certified', '--spent={}/ledger.npz', '--num_clients=7'], 'has 8 clients, and this run has 7'),
    (['--algorithm=certified', '--spent={}/ledger.npz', '--epsilon=1'], 'have spent more before than they may in all'),
    (['--algorithm=certified', '--spent={}/nothing.npz'], 'nothing.npz'),
    (['--algorithm=certified', '--spent={}/mechanism.json'], 'is no file of spending. Give the ledger.npz of a run'),
    (['--algorithm=certified', '--spent={}'], 'is a folder'),
    (['--algorithm=certified', '--spent=sha256:00'], 'sha256:00'),
    (['--algorithm=quap', '--spent={}/ledger.npz'], 'spent'),
    (['--algorithm=certified:trust=secure_sum,noise=held', '--spent={}/ledger.npz'], "saw the clients' updates"),
  ],
)
def test_refuses_before_data_are_read(arguments, said, library):
  path = library.run('certified_stopped').path / 'certificate'
  assert said in harness.refusal(*_ARGUMENTS, *(one.format(path) for one in arguments))
