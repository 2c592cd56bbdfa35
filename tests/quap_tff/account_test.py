"""The programs of `quap_tff.account`: their tables, their JSON lines, and how they refuse."""

import csv
import inspect
import itertools
import json
import math
import os
import pathlib
import sys

import numpy as np
import pytest

import quap_tff
from quap_tff import cohorts
from quap_tff.account import __main__ as account
from quap_tff.accounting import accountants
from quap_tff.accounting import history
from quap_tff.accounting import logs
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations
from tests import processes

ROOT = pathlib.Path(__file__).absolute().parents[2]


def _run(capsys, *arguments):
  try:
    status = account.main(list(map(str, arguments)))
  except SystemExit as end:
    status = end.code
  captured = capsys.readouterr()
  return status, captured.out, captured.err


def _last_line(out):
  return json.loads(out.splitlines()[-1])


def _solve(capsys, *arguments):
  return _run(capsys, 'solve', *arguments)


class TestSolve:
  def test_epsilon_from_noise(self, capsys):
    status, out, err = _solve(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5')
    assert (status, err) == (0, '')
    result = _last_line(out)
    assert result['noise_multiplier'] == 10.8 and result['delta'] == 1e-5
    assert list(result['epsilon']) == ['gaussian_exact', 'zcdp', 'rdp', 'pld', 'advanced', 'basic']
    assert result['epsilon']['gaussian_exact'] == pytest.approx(6, abs=0.005)
    for words in ('zero-out', 'one client with all of its data', 'no amplification by sampling'):
      assert words in out
    assert all(len(line) <= 160 for line in out.splitlines()[:-1])

  def test_noise_from_epsilon(self, capsys):
    status, out, _ = _solve(capsys, '--epsilon=6', '--rounds=200', '--delta=1e-5')
    result = _last_line(out)
    assert status == 0 and result['noise_multiplier'] == pytest.approx(10.8, abs=0.005)
    assert 5.999 < result['epsilon']['gaussian_exact'] <= 6

  def test_noise_by_a_named_accountant(self, capsys):
    _, out, _ = _solve(capsys, '--epsilon=6', '--rounds=200', '--delta=1e-5', '--accountant=zcdp')
    result = _last_line(out)
    assert 5.999 < result['epsilon']['zcdp'] <= 6 and result['epsilon']['gaussian_exact'] < 5.7
    assert result['accountant'] == 'zcdp'

  def test_delta_from_both(self, capsys):
    _, out, _ = _solve(capsys, '--epsilon=6', '--rounds=200', '--noise_multiplier=10.8')
    result = _last_line(out)
    assert result['delta'] == pytest.approx(1e-5, rel=0.01) and result['epsilon']['gaussian_exact'] <= 6

  def test_sampling(self, capsys):
    _, out, _ = _solve(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5', '--sampling_rate=0.3')
    result = _last_line(out)
    assert list(result['epsilon']) == ['rdp', 'pld'] and result['epsilon']['pld'] < result['epsilon']['rdp'] < 2
    assert 'Poisson sampling, q = 0.3' in out and 'cannot count amplification' in out

  def test_correlated_noise(self, capsys):
    # By hand: (1, 0.5, 0.25) and (0, 1, 0.5) add up to (1, 1.5, 0.75), of norm √3.8125.
    _, out, _ = _solve(
      capsys, '--noise_multiplier=5', '--delta=1e-5', '--rounds=2', '--correlation=ar1:decay=0.5', '--rounds_after=1'
    )
    found = _last_line(out)
    _, out, _ = _solve(capsys, f'--noise_multiplier={5 / 3.8125**0.5}', '--delta=1e-5')
    assert found['epsilon'] == pytest.approx(_last_line(out)['epsilon'])
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
    _, out, _ = _solve(capsys, '--noise_multiplier=5', '--delta=1e-5', '--correlation=ar1:decay=0.5', *arguments)
    assert words in out.splitlines()

  def test_noise_for_correlated_rounds(self, capsys):
    arguments = ['--delta=1e-5', '--rounds=18', '--every=3', '--correlation=blt:gain=0.6/0.3,decay=0.9/0.4']
    _, out, _ = _solve(capsys, '--epsilon=3', *arguments)
    multiplier = _last_line(out)['noise_multiplier']
    _, out, _ = _solve(capsys, f'--noise_multiplier={multiplier}', *arguments)
    assert 2.999 < _last_line(out)['epsilon']['gaussian_exact'] <= 3.000001

  def test_flags_of_one_call_are_forgotten_in_the_next(self, capsys):
    _solve(capsys, '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5', '--sampling_rate=0.3')
    status, out, _ = _solve(capsys, '--epsilon=1', '--delta=1e-5')
    assert status == 0 and _last_line(out)['rounds'] == 1 and _last_line(out)['sampling_rate'] == 1

  def test_help(self, capsys):
    status, out, _ = _solve(capsys, '--help')
    assert status == 0 and 'gaussian_exact, zcdp, rdp' in ' '.join(out.split())
    status, out, _ = _run(capsys, '--help')
    assert status == 0 and '--noise_multiplier=10.8' in out and 'LOG.csv' in out and '--accountant ' not in out

  @pytest.mark.parametrize(
    'arguments, words',
    [
      ('--epsilon=1 --delta=.1 --noise_multiplier=1', 'found epsilon, delta, noise_multiplier'),
      ('--epsilon=1 --delta=.1 --correlation=ar1', 'give its numbers here'),
      ('--epsilon=1 --delta=.1 --correlation=ar2', "Did you mean 'ar1'"),
      ('--epsilon=1 --delta=.1 --every=2', '--every, --rounds_after: these flags need correlated noise'),
      ('--epsilon=1 --delta=.1 --rounds_after=1', '--every, --rounds_after: these flags need correlated noise'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --sampling_rate=.5', '--sampling_rate: no amplification'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --rounds=1000000', 'at most 100000'),
      ('--epsilon=1 --delta=.1 --correlation=ar1:decay=.5 --every=0', 'every must be'),
      ('--epsilon=1 --delta=1', 'delta must be'),
      ('--epsilon=inf --delta=.1', 'epsilon must be'),
      ('--noise_multiplier=-1 --delta=.1', 'noise_multiplier must be'),
      ('--epsilon=1 --delta=.1 --rounds=0', 'rounds must be'),
      ('--epsilon=1 --delta=.1 --rounds=many', '--rounds: invalid integer value'),
      ('--epsilon=1 --delta=.1 --sampling_rate=2', 'sampling_rate must be'),
      ('--epsilon=1 --delta=.1 --accountant=zcpd', "Did you mean 'zcdp'"),
      ('--epsilon=1 --delta=.1 --accountant=basic --sampling_rate=.1', 'cannot count amplification'),
      ('--epsilon=1 --detla=.1', 'unrecognized arguments: --detla=.1'),
      ('--epsilon=1 --delta=.1 one', 'unrecognized arguments: one'),
      ('--epsilon=1 --delta=.1 --correlation=held:decay=.5', 'depends on everybody'),
      ('--epsilon=1 --delta=.1 --output_dir=here', 'it is for python -m quap_tff.account.'),
      ('--epsilon=1 --noise_multiplier=1e-5', 'out of reach'),
      ('--epsilon=0 --delta=1e-5 --sampling_rate=.5', 'epsilon=0.0 with sampling_rate=0.5 is out of range'),
      ('--epsilon=1e-6 --delta=1e-5 --rounds=1000000 --sampling_rate=.5', 'epsilon=1e-06 at delta=1e-05 over 1000000'),
    ],
  )
  def test_wrong_input_is_one_line(self, arguments, words, capsys):
    status, out, err = _solve(capsys, *arguments.split())
    assert (status, out) == (2, '')
    assert err.startswith('Error: ') and words in err and len(err.splitlines()) == 1


def _log(tmp_path, rows, header='round,client', name='log.csv'):
  path = tmp_path / name
  path.write_text('\n'.join([header, *rows]) + '\n', encoding='utf-8')
  return str(path)


def _rows(num_rounds=12, names=('ann', 'bob', 'Ω, "the" last', 'd')):
  """Rows in which client i comes in every (i+1)-th round; and the rounds of each."""
  comes = [[name for i, name in enumerate(names) if t % (i + 1) == 0] for t in range(num_rounds)]
  quoted = lambda name: '"' + name.replace('"', '""') + '"'
  rows = [f'{t},{quoted(name)}' for t, cohort in enumerate(comes, 1) for name in cohort]
  return rows, {name: [t for t, cohort in enumerate(comes) if name in cohort] for name in names}


_FLAGS = ('--noise_multiplier=4', '--delta=1e-5')


class TestLog:
  @pytest.mark.slow
  def test_each_client_has_the_account_of_its_own_rounds(self, tmp_path, capsys):
    rows, comes = _rows()
    status, out, err = _run(capsys, _log(tmp_path, rows), *_FLAGS, f'--output_dir={tmp_path / "out"}')
    assert status == 0 and 'Traceback' not in err
    with open(tmp_path / 'out' / 'clients.csv', newline='', encoding='utf-8') as f:
      found = {row['client']: row for row in csv.DictReader(f)}
    assert list(found) == list(comes)
    for name, own in comes.items():
      exact = tradeoff.epsilon_of(math.sqrt(len(own)) / 4, 1e-5)
      assert exact <= float(found[name]['epsilon']) <= exact * (1 + 1e-5) and found[name]['rounds'] == str(len(own))
    last = _last_line(out)
    assert last['clients'] == 4 and last['rounds'] == 12 and last['participations'] == len(rows)
    assert last['epsilon_max'] == pytest.approx(tradeoff.epsilon_of(math.sqrt(12) / 4, 1e-5))
    page = (tmp_path / 'out' / 'account.html').read_text(encoding='utf-8')
    assert 'Ω, &quot;the&quot; last' in page and 'That was the work of another program' in page
    assert 'http' not in page

  @pytest.mark.parametrize('first', [0, 1])
  @pytest.mark.parametrize(
    'correlation',
    [correlations.Ar1(0.9), correlations.Blt((0.6, 0.3), (0.9, 0.4)), correlations.Banded(4, (0.7, 0.5, 0.3))],
  )
  def test_correlated_noise_costs_what_theorem_2_says(self, correlation, first, tmp_path):
    rows, comes = _rows()
    path = _log(tmp_path, [f'{int(row.split(",")[0]) - 1 + first},{row.split(",", 1)[1]}' for row in rows])
    found = logs.account(logs.Log(path), 4.0, correlation)
    column = correlation.coefficients(12)
    for name, mu_squared in zip(found.names, found.mu_squared):
      moved = [sum(column[s - t] for t in comes[name] if t <= s) for s in range(12)]
      exact = sum(one * one for one in moved) / 16
      assert exact <= mu_squared <= exact * (1 + 1e-9)
    planned = logs.account(logs.Log(path), 4.0, correlation, num_rounds=15)
    assert (planned.mu_squared >= found.mu_squared).all() and (planned.mu_squared > found.mu_squared)[0]

  def test_is_the_account_of_a_gate(self, tmp_path):
    gate, rows = quap_tff.Gate(5, 3.0, 3.0, 1e-5, num_rounds=20, correlation=correlations.Ar1(0.7)), []
    rng = np.random.default_rng(3)
    for t in range(20):
      cohort = np.flatnonzero(rng.random(5) < 0.6)
      weights = gate.ask(cohort)
      gate.commit(cohort, weights)
      rows += [f'{t},{client},{weight!r}' for client, weight in zip(cohort, weights.astype(float).tolist())]
    found = logs.account(logs.Log(_log(tmp_path, rows, 'round,client,weight')), 3.0, correlations.Ar1(0.7))
    epsilon = tradeoff.epsilon_of(np.sqrt(found.mu_squared), 1e-5)
    assert dict(zip(map(int, found.names), epsilon.tolist())) == dict(enumerate(gate.epsilon().tolist()))
    assert not found.is_whole

  def test_who_is_over_the_bound(self, tmp_path, capsys):
    path = _log(tmp_path, _rows()[0])
    least = tradeoff.epsilon_of(math.sqrt(12) / 4, 1e-5)
    status, out, _ = _run(capsys, path, *_FLAGS, f'--epsilon={least * 0.999}')
    assert status == 1 and 'OVER: 1 of 4 clients have spent more than' in out and _last_line(out)['over'] == 1
    status, out, _ = _run(capsys, path, *_FLAGS, f'--epsilon={least * 1.001}')
    assert status == 0 and 'Nobody has spent more than' in out

  @pytest.mark.slow
  def test_usual_accountants_and_what_they_assume(self, tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [f'{t},{i}' for t in range(50) for i in np.flatnonzero(rng.random(40) < 0.3)]
    _, out, _ = _run(capsys, _log(tmp_path, rows), *_FLAGS, '--sampling_rate=0.3')
    table = out[out.index('What usual accountants say') :].splitlines()
    cells = [[cell.strip() for cell in line.split('  ') if cell.strip()] for line in table]
    figures = {(row[0], row[2]): float(row[1]) for row in cells if len(row) == 4 and row[0] != 'accountant'}
    exact = figures['exact, for each client', 'the client that spent most']
    assert exact == pytest.approx(_last_line(out)['epsilon_max'], rel=1e-3)
    assert figures['pld', 'the client that spent most'] == pytest.approx(exact, rel=1e-3)
    assert exact < figures['rdp', 'the client that spent most'] < 1.1 * exact
    assert figures['pld', 'a client in every round'] == pytest.approx(
      float(tradeoff.epsilon_of(math.sqrt(50) / 4, 1e-5)), rel=2e-3
    )
    for name in ('rdp', 'pld'):
      drawn = accountants.account(history.History.gaussian(4.0, 50, 0.3), 1e-5, [name])[name]
      assert figures[name, 'any client'] == pytest.approx(drawn.epsilon, rel=1e-3) and drawn.epsilon < exact
    assert out.count('ASSUMED, which no log can show: Poisson sampling, q = 0.3') == 2
    assert 'nobody learns who came (this log stays secret)' in out and 'is not a finding' in out

  def test_amplified_figures_only_on_request(self, tmp_path, capsys):
    _, out, _ = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS)
    assert 'No amplification by sampling is counted. --sampling_rate adds' in out and 'Poisson' not in out

  def test_amplified_figures_are_refused_for_a_round_robin(self, tmp_path, capsys):
    rows = [f'{t},{(10 * t + i) % 100}' for t in range(50) for i in range(10)]
    status, out, _ = _run(capsys, _log(tmp_path, rows), *_FLAGS, '--sampling_rate=0.1')
    assert status == 0 and 'No amplified figures: this log was not drawn by coins of q = 0.1.' in out
    assert 'The clients came in 5 to 5 rounds, which is too even.' in out and 'Poisson' not in out

  @pytest.mark.slow
  @pytest.mark.parametrize('noise, delta', [(1e12, 1e-5), (4, 1e-11)])
  def test_a_figure_without_amplification_is_not_shown_as_amplified(self, noise, delta, tmp_path, capsys):
    rng = np.random.default_rng(0)
    path = _log(tmp_path, [f'{t},{i}' for t in range(20) for i in np.flatnonzero(rng.random(40) < 0.3)])
    status, out, _ = _run(capsys, path, f'--noise_multiplier={noise}', f'--delta={delta}', '--sampling_rate=0.3')
    assert status == 0
    assert [line for line in out.splitlines() if 'pld' in line and 'none: no amplification is proven here' in line]
    _, out, _ = _solve(capsys, f'--noise_multiplier={noise}', f'--delta={delta}', '--rounds=20', '--sampling_rate=0.3')
    assert 'exact ε without sampling: pld proves no amplification here' in out

  def test_bounds_are_rounded_up(self, tmp_path, capsys):
    _, out, _ = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, '--epsilon=4.1234561234')
    assert 'Nobody has spent more than ε = 4.123457.' in out
    _, out, _ = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, '--epsilon=0.1234567899')
    assert 'have spent more than ε = 0.1234567.' in out

  def test_names_command_no_terminal(self, tmp_path, capsys):
    _, out, _ = _run(capsys, _log(tmp_path, ['1,a\x1b[2J', '1,\u202eb', '1,Ω']), *_FLAGS)
    assert 'a\\x1b[2J ' in out and '\\u202eb ' in out and 'Ω' in out and '\x1b' not in out and '\u202e' not in out

  def test_delta_above_one_over_n(self, tmp_path, capsys):
    path = _log(tmp_path, _rows()[0])
    assert 'Warning: δ is above 1/N.' in _run(capsys, path, '--noise_multiplier=4', '--delta=0.26')[1]
    assert 'Warning' not in _run(capsys, path, '--noise_multiplier=4', '--delta=0.25')[1]

  def test_a_folder_that_cannot_be_written_is_blamed(self, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    status, _, err = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, f'--output_dir={tmp_path / "file"}')
    assert status == 2 and err.startswith(f'Error: --output_dir={tmp_path / "file"} cannot be written')

  def test_with_weights_there_are_no_amplified_figures(self, tmp_path, capsys):
    _, out, _ = _run(capsys, _log(tmp_path, ['1,a,0.5', '1,b,1'], 'round,client,weight'), *_FLAGS)
    assert 'No further figures: weights differ' in out and 'Poisson' not in out

  def test_without_its_package(self, tmp_path, capsys, monkeypatch):
    for name in ('dp_accounting', 'dp_accounting.rdp', 'dp_accounting.pld', 'matplotlib', 'matplotlib.figure'):
      monkeypatch.setitem(sys.modules, name, None)
    status, out, err = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, f'--output_dir={tmp_path / "out"}')
    assert status == 0 and out.count('needs the package dp-accounting') >= 4
    assert 'epsilon.png was not made: it needs the package matplotlib' in err
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['account.html', 'clients.csv']

  @pytest.mark.slow
  def test_the_figure(self, tmp_path, capsys):
    pytest.importorskip('matplotlib')
    _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, '--epsilon=3', f'--output_dir={tmp_path / "out"}')
    assert (tmp_path / 'out' / 'epsilon.png').read_bytes().startswith(b'\x89PNG')
    assert 'data:image/png;base64,' in (tmp_path / 'out' / 'account.html').read_text(encoding='utf-8')

  def test_what_other_programs_write(self, tmp_path):
    text = '\ufeffClient,seconds,Round\r\n"a",3,0\r\n\r\nb,4,0\r\n"a\nb",1,1\r\n'
    (tmp_path / 'log.csv').write_bytes(text.encode())
    found = logs.account(logs.Log(str(tmp_path / 'log.csv')), 2.0)
    assert list(found.names) == ['a', 'b', 'a\nb'] and found.counts.tolist() == [1, 1, 1] and found.num_rounds == 2

  def test_many_rows(self, tmp_path, monkeypatch):
    """More than are read at once, with rounds across the borders."""
    monkeypatch.setattr(logs, '_CHUNK', 7)
    rows = [f'{t},c{i}' for t in range(9) for i in range(t % 4, 12)]
    found = logs.account(logs.Log(_log(tmp_path, rows)), 2.0)
    counts = {f'c{i}': sum(i >= t % 4 for t in range(9)) for i in range(12)}
    assert dict(zip(found.names, found.counts.tolist())) == counts

  @pytest.mark.parametrize(
    'rows, header, words',
    [
      ([], 'round,client', 'has no rows'),
      ([], 'when,who', 'line 1: the header must name the columns round and client'),
      (['1,a', '3,a'], 'round,client', 'line 3: round 2 must follow round 1, found round 3'),
      (['1,a', '2,a', '1,b'], 'round,client', 'line 4: round 3 must follow round 2, found round 1'),
      (['5,a'], 'round,client', 'line 2: the first round must have the number 0 or 1, found 5'),
      (['1,a', '1,b', '1,a'], 'round,client', "line 4: client 'a' is in this round already"),
      (['1,a', '1,'], 'round,client', 'line 3: it names no client'),
      (['1,a', '1,b,3'], 'round,client', 'line 3: it must have 2 cells'),
      (['1,a', 'two,b'], 'round,client', "line 3: a round must be a number such as 1, found 'two'"),
      (['1,a', '-2,b'], 'round,client', 'line 3: a round must be'),
      (['1,a', '9' * 30 + ',b'], 'round,client', 'line 3: a round must be'),
      (['1,a,1', '1,b,1.5'], 'round,client,weight', "line 3: a weight must be a number from 0 to 1, found '1.5'"),
      (['1,a,1', '1,b,nan'], 'round,client,weight', "line 3: a weight must be a number from 0 to 1, found 'nan'"),
      (['1,a,1', '1,b,much'], 'round,client,weight', "line 3: a weight must be a number from 0 to 1, found 'much'"),
      (['1,a', '1,"b'], 'round,client', 'line 3: it is not a row of a CSV file'),
    ],
  )
  @pytest.mark.parametrize('chunk', [1, 1000])
  def test_bad_rows_are_named_by_line(self, rows, header, words, chunk, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logs, '_CHUNK', chunk)
    for correlation in ('independent', 'ar1:decay=0.5'):
      arguments = _log(tmp_path, rows, header), *_FLAGS, f'--correlation={correlation}'
      status, out, err = _run(capsys, *arguments)
      assert (status, out) == (2, '') and words in err and len(err.splitlines()) == 1, err

  @pytest.mark.parametrize(
    'more, words',
    [
      (['--rounds=2'], 'There are more than the 2 planned rounds'),
      (['--rounds=0'], 'rounds must be'),
      (['--noise_multiplier=0'], 'noise_multiplier must be'),
      (['--noise_multiplier=1e-200'], 'noise_multiplier must be'),
      (['--delta=2'], 'delta must be'),
      (['--epsilon=-1'], 'epsilon must be'),
      (['--sampling_rate=2'], 'sampling_rate must be'),
      (['--accountant=rdp'], 'it is for python -m quap_tff.account solve.'),
      (['--every=2', '--correlation=ar1:decay=0.5'], 'it is for python -m quap_tff.account solve.'),
      (['--correlation=ar1'], 'give its numbers here'),
      (['--correlation=held:decay=0.5'], 'depends on everybody'),
    ],
  )
  def test_wrong_flags(self, more, words, tmp_path, capsys):
    status, out, err = _run(capsys, _log(tmp_path, _rows()[0]), *_FLAGS, *more)
    assert (status, out) == (2, '') and words in err and len(err.splitlines()) == 1

  def test_a_log_in_which_nobody_came(self, tmp_path, capsys):
    status, out, err = _run(capsys, _log(tmp_path, ['1,', '2,']), *_FLAGS, '--sampling_rate=0.5')
    assert (status, out) == (2, '') and 'names no client: nobody has spent anything' in err

  def test_a_log_needs_noise_and_delta_and_must_be_there(self, tmp_path, capsys):
    err = _run(capsys, _log(tmp_path, _rows()[0]), '--epsilon=2')[2]
    assert '--noise_multiplier and --delta must be given' in err and 'quap_tff.account noise LOG.csv' in err
    err = _run(capsys, *_FLAGS)[2]
    assert 'Name a log' in err and 'quap_tff.account solve' in err
    status, _, err = _run(capsys, tmp_path / 'none.csv', *_FLAGS)
    assert status == 2 and 'none.csv cannot be read: No such file' in err

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_memory_is_of_the_size_of_the_clients(self, tmp_path):
    """Ten times the rounds take no more: rows are not kept."""
    import tracemalloc

    peaks = []
    for num_rounds in (60, 600):
      rows = (f'{t},{i}' for t, i in itertools.product(range(num_rounds), range(50)))
      path = _log(tmp_path, rows)
      tracemalloc.start()
      logs.account(logs.Log(path), 2.0)
      peaks.append(tracemalloc.get_traced_memory()[1])
      tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]

  @pytest.mark.slow
  def test_as_a_command(self, tmp_path):
    def run(*arguments, **more):
      return processes.run([sys.executable, '-m', 'quap_tff.account', *arguments], cwd=ROOT, **more)

    good = run('solve', '--noise_multiplier=10.8', '--rounds=200', '--delta=1e-5')
    assert good.returncode == 0 and 'Traceback' not in good.stderr
    assert _last_line(good.stdout)['epsilon']['gaussian_exact'] == pytest.approx(6, abs=0.005)
    assert run('solve', '--delta=1e-5').returncode == 2
    ascii_only = {**os.environ, 'PYTHONIOENCODING': 'ascii'}
    assert '\\u03b4' in run('solve', '--noise_multiplier=1', '--delta=0.1', env=ascii_only).stdout
    assert run(_log(tmp_path, _rows()[0]), *_FLAGS, '--epsilon=0.1').returncode == 1


class TestNoiseForModel:
  _FLAGS = ('cohorts', '--epsilon=2', '--delta=1e-6', '--num_clients=12', '--rounds=8')

  @pytest.mark.slow
  def test_is_that_of_a_log_of_the_same_cohorts(self, tmp_path, capsys):
    """The last line but for the model; the cohorts of another seed need another noise."""
    arguments = [*self._FLAGS, '--participation=beta:a=1,b=2', '--cohort_size=4']
    status, out, err = _run(capsys, *arguments, '--seed=7')
    assert (status, err) == (0, '') and 'by --seed=7' in out
    model = cohorts.MODELS['beta'](a=1.0, b=2.0).over(cohorts.Population(12, 4, 7))
    lines = [f'{number},{client}' for number in range(1, 9) for client in model.cohort(number)]
    (tmp_path / 'log.csv').write_text('\n'.join(['round,client', *lines]) + '\n')
    by_log = _run(capsys, 'noise', tmp_path / 'log.csv', '--epsilon=2', '--delta=1e-6')[1]
    found, expected = _last_line(out), _last_line(by_log)
    assert {name: found.pop(name) for name in ('participation', 'seed', 'cohort_size')} == {
      'participation': 'beta:a=1.0,b=2.0',
      'seed': 7,
      'cohort_size': 4,
    }
    came = expected.pop('clients')
    assert found.pop('clients') == 12 >= came
    # A log numbers its clients as they come: sums over clients are rounded in another order.
    for one, other in zip(found.pop('choices'), expected.pop('choices')):
      assert one['correlation'] == other['correlation'] and one['share'] == pytest.approx(other['share'], rel=1e-6)
    assert found == expected
    assert _last_line(_run(capsys, *arguments, '--seed=8')[1])['noise_multiplier'] != found['noise_multiplier']

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_models_of_random_size_need_no_cohort_size(self, capsys):
    found = _last_line(_run(capsys, *self._FLAGS, '--participation=bernoulli:q=0.5')[1])
    assert found['cohort_size'] is None and found['rounds'] == 8
    assert _last_line(_run(capsys, *self._FLAGS, '--participation=uniform')[1])['cohort_size'] == 4  # 30% of 12.

  @pytest.mark.parametrize(
    'flags, words',
    [
      (
        ['cohorts', '--participation=uniform', '--epsilon=2', '--delta=1e-6'],
        '--num_clients and --rounds must be given',
      ),
      ([*_FLAGS, '--participation=unifrom'], "Did you mean 'uniform'"),
      ([*_FLAGS, '--participation=beta:a=0'], 'beta'),
      ([*_FLAGS, '--participation=log:path=x.csv'], 'give the log itself'),
      ([*_FLAGS, '--participation=uniform', 'x.csv'], 'unrecognized arguments: x.csv'),
      ([*_FLAGS, '--participation=uniform', '--cohort_size=13'], 'at most the number of clients'),
      ([*_FLAGS, '--participation=uniform', '--sampling_rate=0.1'], '--sampling_rate plays no part'),
      ([*_FLAGS, '--participation=uniform', '--delta=2'], 'delta'),
      ([*_FLAGS, '--participation=uniform', '--rounds=200000'], 'rounds must be an integer at least 1 and at most'),
      (['solve', '--epsilon=2', '--delta=1e-6', '--num_clients=12'], 'cohorts and python -m quap_tff.account coins.'),
    ],
  )
  def test_wrong_flags(self, flags, words, capsys):
    status, out, err = _run(capsys, *flags)
    assert (status, out) == (2, '') and words in err and err.count('\n') == 1


class TestNoiseForLog:
  def _log(self, tmp_path):
    rng, lines = np.random.default_rng(5), ['round,client']
    for number in range(1, 13):
      lines += [f'{number},dev{i}' for i in range(8) if rng.random() < 0.9 - 0.1 * i]
    (tmp_path / 'log.csv').write_text('\n'.join(lines) + '\n')
    return str(tmp_path / 'log.csv')

  @pytest.mark.slow
  @pytest.mark.parametrize('correlation', ['independent', 'ar1:decay=0.9'])
  def test_the_noise_is_just_enough_for_the_log(self, correlation, tmp_path, capsys):
    log = self._log(tmp_path)
    status, out, err = _run(capsys, 'noise', log, '--epsilon=2', '--delta=1e-6', f'--correlation={correlation}')
    found = _last_line(out)
    assert (status, err) == (0, '') and found['correlation'] == correlation and found['clients'] == 8
    assert {one['trust'] for one in found['choices']} == {'server', 'secure_sum'}
    assert 'share of the ceiling' in out and 'budgets that end' in out
    for factor, over in ((1.0, 0), (1 - 1e-6, 1)):
      arguments = f'--noise_multiplier={found["noise_multiplier"] * factor!r}', f'--correlation={correlation}'
      assert _run(capsys, log, '--epsilon=2', '--delta=1e-6', *arguments)[0] == over

  @pytest.mark.parametrize(
    'flags, words',
    [
      (['--epsilon=2'], '--delta must be given'),
      (['--delta=1e-6'], '--epsilon must be given'),
      (['--epsilon=0', '--delta=1e-6'], 'epsilon must be'),
      (['--epsilon=2', '--delta=1e-6', '--rounds=30'], '--rounds plays no part'),
      (['--epsilon=2', '--delta=1e-6', '--output_dir=x'], 'it is for python -m quap_tff.account.'),
    ],
  )
  def test_wrong_flags(self, flags, words, tmp_path, capsys):
    status, out, err = _run(capsys, 'noise', self._log(tmp_path), *flags)
    assert (status, out) == (2, '') and words in err


@pytest.mark.parametrize('program', [account._LOG, account._NOISE, account._COHORTS, account._SOLVE])
def test_each_function_has_the_parameters_of_its_flags(program):
  parameters = dict(inspect.signature(program.find).parameters)
  if program.has_log:
    assert parameters.pop('log').default is inspect.Parameter.empty
  required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
  assert required == set(program.needs)
  assert set(parameters) - required == set(program.takes)
