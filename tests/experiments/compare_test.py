"""The comparison: its sweeps are right before they start, and its end says what was found."""

import collections
import json
import os
import shutil

import numpy as np
import pytest

from experiments import compare
from experiments import sweep
from experiments.command import command_line
from experiments.sweeps import sweep_runs
from tests.experiments import pretended_run
from tests.experiments.reporting import factory

_INTERRUPTED = sweep.SweepOutcome(130, [], None)


def _main(*arguments):
  return command_line.status_of(compare.main, ['compare', *arguments])


@pytest.mark.parametrize(
  'name', [name if name == 'digits' else pytest.param(name, marks=pytest.mark.thorough) for name in compare.SETTINGS]
)
@pytest.mark.slow
def test_every_method_has_the_same_guarantee_and_the_same_rounds(name, tmp_path):
  setting = compare.SETTINGS[name]
  base = compare.base_flags(setting, str(tmp_path), '/data')
  found = []
  for axes in compare.grids_of(setting, [1, 3]):
    (runs,) = sweep_runs.runs_of(str(tmp_path / 'runs'), base, [axes])
    found += [run.identity for run in runs]
  assert {identity['rounds'] for identity in found} == {setting.rounds}
  assert {identity['delta'] for identity in found} == {1e-5}
  theirs = [identity for identity in found if identity['algorithm'].startswith('tff_')]
  # Nothing but noised sums is released, and the noise is chosen by the formal ε.
  assert all(identity['calibration'] == 'exact' and not identity['client_metrics'] for identity in theirs)
  cells = {}
  for identity in found:
    key = (identity['participation'], identity['epsilon'], identity['seed'])
    cells.setdefault(key, set()).add(identity['algorithm'].partition(':')[0] + str('held' in identity['algorithm']))
  kinds = [(participation.partition(':')[0], len(methods)) for (participation, *_), methods in cells.items()]
  assert collections.Counter(kinds) == {('beta', 5): 16, ('uniform', 1): 16, ('bernoulli', 2): 16}
  assert sum(identity.get('cohort_seed') == 'secret' for identity in found) == 32


@pytest.mark.slow
def test_its_end_says_what_was_found_and_where(tmp_path, monkeypatch, capsys):
  calls = []

  def play_runs(folder, base, grids, parallel):
    calls.append(folder)
    runs = tmp_path / 'out' / 'runs'
    ours = {'algorithm': 'certified', 'certified_epsilon': 3.0}
    theirs = {'algorithm': 'tff_dp_ftrl', 'covers': 'released model', 'epsilon_max': 3.0, 'accuracy': 0.8}
    for number, run in enumerate(3 * (ours, theirs)):
      factory.write_run(runs / str(number), epsilon=3.0, dataset='digits', seed=number // 2, **run)
    return sweep.SweepOutcome(0, [], {'runs': 1})

  monkeypatch.setattr(sweep, 'play_runs', play_runs)
  assert _main(f'--output_dir={tmp_path / "out"}') == 0
  out, err = capsys.readouterr()
  assert calls == [f'{tmp_path}/out/runs']
  assert '64 runs of about' in err and '"runs"' not in err + out
  words = ' '.join(out.split())
  assert out.splitlines()[0] == (
    'On 8×8 digits at ε = 3, with participation Beta(2,5), Certified QuAP-FL is 10.0 ± 0.0 points ahead of TFF DP-FTRL '
    '(90.0% against 80.0%; 3 seeds, paired, 95% interval).'
  )
  assert '| TFF DP-FTRL †' in words and '† ' in words
  figure, page = (line.partition(': ')[2] for line in out.splitlines() if line.startswith(('Figure: ', 'Page: ')))
  assert os.path.isfile(figure) and os.path.isfile(page)


@pytest.mark.parametrize('status', [1, 130])
@pytest.mark.slow
def test_a_failed_run_and_an_interrupt_are_the_exit_status(tmp_path, monkeypatch, capsys, status):
  calls = []

  def play_runs(folder, base, grids, parallel):
    calls.append(folder)
    return sweep.SweepOutcome(status, ['Failed: a run'], {'runs': 1})

  monkeypatch.setattr(sweep, 'play_runs', play_runs)
  factory.write_run(tmp_path / 'out' / 'runs' / '0', algorithm='certified', certified_epsilon=3.0)
  assert _main(f'--output_dir={tmp_path / "out"}') == status
  assert len(calls) == 1
  err = capsys.readouterr().err
  assert ('The same command continues it.' in err) == (status == 130)
  assert ('Failed: a run' in err) == (status == 1) and '"runs"' not in err


@pytest.mark.slow
def test_its_estimate_leaves_out_finished_runs_of_this_comparison_alone(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sweep, 'play_runs', lambda *arguments: _INTERRUPTED)
  folder, setting = str(tmp_path / 'out'), compare.SETTINGS['digits']
  base, grids = compare.base_flags(setting, folder, None), compare.grids_of(setting, [3, 1])
  (of_3, *_, of_1), _ = sweep_runs.runs_of(os.path.join(folder, 'runs'), base, grids)
  pretended_run.write(of_3, of_3.last_round)
  assert _main(f'--output_dir={folder}') == 130
  assert '63 runs of about' in capsys.readouterr().err
  pretended_run.write(of_1, of_1.last_round)
  assert _main(f'--output_dir={folder}') == 130
  assert '63 runs of about' in capsys.readouterr().err
  shutil.rmtree(of_3.path)
  pretended_run.write(of_3, 4, interrupted=True)
  assert _main(f'--output_dir={folder}') == 130
  assert '64 runs of about' in capsys.readouterr().err


@pytest.mark.slow
def test_the_network_comes_first_and_only_once(tmp_path, monkeypatch):
  (tmp_path / 'mnist.npz').write_bytes(b'')
  made = []

  class Ended:
    returncode = 3

  monkeypatch.setattr(compare.subprocess, 'run', lambda command, **_: made.append(command) or Ended)
  arguments = ['--dataset=mnist', f'--data_dir={tmp_path}', f'--output_dir={tmp_path / "out"}']
  assert _main(*arguments) == 3
  assert made[0][2:] == ['experiments.pretrain', '--public_data=glyphs', f'--output={tmp_path / "out" / "network"}']
  (tmp_path / 'out' / 'network').mkdir(parents=True)
  (tmp_path / 'out' / 'network' / 'card.json').write_text(json.dumps({}))
  monkeypatch.setattr(sweep, 'play_runs', lambda *arguments: _INTERRUPTED)
  assert _main(*arguments) == 130 and len(made) == 1


@pytest.mark.parametrize('has_clients, size', [(True, 8), (False, 30)])
@pytest.mark.slow
def test_data_of_ones_own_have_the_digits_constants_and_a_linear_model(
  has_clients, size, tmp_path, monkeypatch, capsys
):
  values = np.random.default_rng(0)
  owners = {'client': np.arange(270) % 27} if has_clients else {}
  x, y = values.normal(size=(270, 5)).astype(np.float32), np.arange(270) % 3
  np.savez(tmp_path / 'tab.npz', x=x, y=y, x_test=x[:9], y_test=y[:9], **owners)
  calls = []
  monkeypatch.setattr(sweep, 'play_runs', lambda *arguments: calls.append(arguments) or _INTERRUPTED)
  monkeypatch.chdir(tmp_path)
  assert _main('--dataset=npz:path=tab.npz') == 130
  ((folder, flags_, (axes, _), _),) = calls
  assert folder == os.path.join('runs', 'compare', 'tab', 'runs')
  assert 'All constants are those of 8×8 digits' in capsys.readouterr().err
  (runs,) = sweep_runs.runs_of(str(tmp_path / 'runs'), flags_, [axes])
  assert len(runs) == 48
  expected = {'epsilon': 3, 'model': 'logistic_regression', 'features': 'none', 'cohort_size': size}
  assert all(run.identity[name] == value for run in runs for name, value in expected.items())


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--dataset=npz:path=absent.npz'], 'absent.npz'),
    (['--dataset=npz'], 'needs its file: npz:path=FILE'),
    (['--dataset=femnist'], 'femnist needs emnist_all.sqlite: give the folder that has it as --data_dir'),
    (['--epsilons=3,0'], '--epsilons must be numbers above 0 with commas, such as 1,3,6, found 3,0'),
    (['--epsilons=three'], 'found three'),
    (['--dataset=digit'], "Unknown dataset 'digit'"),
    (['digits'], "Unexpected argument 'digits'"),
  ],
)
def test_mistakes_are_found_before_anything_runs(arguments, words, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert _main(*arguments) == 1
  assert words in capsys.readouterr().err and not os.listdir(tmp_path)
