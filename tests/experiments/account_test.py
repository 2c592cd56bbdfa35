"""The account command: its flags, its table, its JSON line, and how it refuses."""

import subprocess
import sys

import pytest

from experiments import account
from experiments.command import command_line
from tests.experiments import harness


def _run(capsys, *arguments):
  status = command_line.status_of(account.main, ['account', *arguments])
  captured = capsys.readouterr()
  return status, captured.out, captured.err


class TestAccount:
  def test_epsilon_from_noise(self, capsys):
    status, out, err = _run(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5')
    assert (status, err) == (0, '')
    result = harness.last_line(out)
    assert result['noise_multiplier'] == 10.8 and result['delta'] == 1e-5
    assert list(result['epsilon']) == ['gaussian_exact', 'zcdp', 'rdp', 'pld', 'advanced', 'basic']
    assert result['epsilon']['gaussian_exact'] == pytest.approx(6, abs=0.005)
    for words in ('zero-out', 'one client with all of its data', 'no amplification by sampling'):
      assert words in out
    assert all(len(line) <= 160 for line in out.splitlines()[:-1])

  def test_noise_from_epsilon(self, capsys):
    status, out, _ = _run(capsys, '--epsilon=6', '--rounds=200', '--delta=1e-5')
    result = harness.last_line(out)
    assert status == 0 and result['noise_multiplier'] == pytest.approx(10.8, abs=0.005)
    assert 5.999 < result['epsilon']['gaussian_exact'] <= 6

  def test_noise_by_a_named_accountant(self, capsys):
    _, out, _ = _run(capsys, '--epsilon=6', '--rounds=200', '--delta=1e-5', '--accountant=zcdp')
    result = harness.last_line(out)
    assert 5.999 < result['epsilon']['zcdp'] <= 6 and result['epsilon']['gaussian_exact'] < 5.7
    assert result['accountant'] == 'zcdp'

  def test_delta_from_both(self, capsys):
    _, out, _ = _run(capsys, '--epsilon=6', '--rounds=200', '--noise_multiplier=10.8')
    result = harness.last_line(out)
    assert result['delta'] == pytest.approx(1e-5, rel=0.01) and result['epsilon']['gaussian_exact'] <= 6

  def test_sampling(self, capsys):
    _, out, _ = _run(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5', '--sampling_rate=0.3')
    result = harness.last_line(out)
    assert list(result['epsilon']) == ['rdp', 'pld'] and result['epsilon']['pld'] < result['epsilon']['rdp'] < 2
    assert 'Poisson sampling, q = 0.3' in out and 'cannot count amplification' in out

  def test_correlated_noise(self, capsys):
    # By hand: (1, 0.5, 0.25) and (0, 1, 0.5) add up to (1, 1.5, 0.75), of norm √3.8125.
    _, out, _ = _run(
      capsys, '--noise_multiplier=5', '--delta=1e-5', '--rounds=2', '--correlation=ar1:decay=0.5', '--rounds_after=1'
    )
    found = harness.last_line(out)
    _, out, _ = _run(capsys, f'--noise_multiplier={5 / 3.8125**0.5}', '--delta=1e-5')
    assert found['epsilon'] == pytest.approx(harness.last_line(out)['epsilon'])
    assert found['noise_multiplier'] == pytest.approx(5) and found['correlation'] == 'ar1:decay=0.5'

  @pytest.mark.parametrize(
    'arguments, words',
    [
      ([], 'Noise correlation: ar1:decay=0.5.'),
      (['--every=3'], 'Noise correlation: ar1:decay=0.5. The client takes part in 1 of every 3 rounds.'),
      (['--rounds_after=1'], 'Noise correlation: ar1:decay=0.5. 1 more round follows without it.'),
      (
        ['--every=2', '--rounds_after=4'],
        'Noise correlation: ar1:decay=0.5. The client takes part in 1 of every 2 rounds. '
        '4 more rounds follow without it.',
      ),
    ],
  )
  def test_the_schedule_is_in_words(self, capsys, arguments, words):
    _, out, _ = _run(capsys, '--noise_multiplier=5', '--delta=1e-5', '--correlation=ar1:decay=0.5', *arguments)
    assert words in out.splitlines()

  def test_noise_for_correlated_rounds(self, capsys):
    arguments = ['--delta=1e-5', '--rounds=18', '--every=3', '--correlation=blt:gain=0.6/0.3,decay=0.9/0.4']
    _, out, _ = _run(capsys, '--epsilon=3', *arguments)
    multiplier = harness.last_line(out)['noise_multiplier']
    _, out, _ = _run(capsys, f'--noise_multiplier={multiplier}', *arguments)
    assert 2.999 < harness.last_line(out)['epsilon']['gaussian_exact'] <= 3.000001

  def test_flags_of_one_call_are_forgotten_in_the_next(self, capsys):
    _run(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5', '--sampling_rate=0.3')
    status, out, _ = _run(capsys, '--epsilon=1', '--delta=1e-5')
    assert status == 0 and harness.last_line(out)['rounds'] == 1 and harness.last_line(out)['sampling_rate'] == 1

  def test_help(self, capsys):
    status, out, _ = _run(capsys, '--help')
    assert status == 0 and '--noise_multiplier=10.8' in out and 'gaussian_exact, zcdp, rdp' in out

  @pytest.mark.parametrize(
    'arguments, words',
    [
      ('--epsilon=1 --delta=.1 --noise_multiplier=1', 'found epsilon, delta, noise_multiplier'),
      ('--epsilon=1 --delta=.1 --correlation=ar1', 'give its numbers here'),
      ('--epsilon=1 --delta=.1 --correlation=ar2', "Did you mean 'ar1'"),
      ('--epsilon=1 --delta=.1 --every=2', 'need correlated noise'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --sampling_rate=.5', '--sampling_rate: no amplification'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --rounds=1000000', 'at most 100000'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --every=0', 'every must be'),
      ('--epsilon=1 --delta=1', 'delta must be'),
      ('--epsilon=inf --delta=.1', 'epsilon must be'),
      ('--noise_multiplier=-1 --delta=.1', 'noise_multiplier must be'),
      ('--epsilon=1 --delta=.1 --rounds=0', 'rounds must be'),
      ('--epsilon=1 --delta=.1 --rounds=many', '--rounds must be an integer'),
      ('--epsilon=1 --delta=.1 --sampling_rate=2', 'sampling_rate must be'),
      ('--epsilon=1 --delta=.1 --accountant=zcpd', "Did you mean 'zcdp'"),
      ('--epsilon=1 --delta=.1 --accountant=basic --sampling_rate=.1', 'cannot count amplification'),
      ('--epsilon=1 --detla=.1', "Unknown command line flag 'detla'"),
      ('--epsilon=1 --delta=.1 200', "Unexpected argument '200'"),
      ('--epsilon=1 --noise_multiplier=1e-5', 'out of reach'),
    ],
  )
  def test_wrong_input_is_one_line(self, arguments, words, capsys):
    status, out, err = _run(capsys, *arguments.split())
    assert (status, out) == (1, '')
    assert err.startswith('Error: ') and words in err and len(err.splitlines()) == 1

  @pytest.mark.slow
  def test_as_a_command(self):
    run = lambda *arguments: subprocess.run(
      [sys.executable, '-m', 'experiments.account', *arguments],
      cwd=harness.REPOSITORY,
      capture_output=True,
      encoding='utf-8',
    )
    good = run('--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5')
    assert good.returncode == 0 and 'Traceback' not in good.stderr
    assert harness.last_line(good.stdout)['epsilon']['gaussian_exact'] == pytest.approx(6, abs=0.005)
    assert run('--delta=1e-5').returncode == 1
