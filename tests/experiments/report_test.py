"""The report binary: what it writes, its warnings and its exit status."""

import pytest

from experiments import report
from experiments.command import command_line
from tests.experiments.reporting import factory


def _main(*arguments):
  return command_line.status_of(report.main, ['report', *map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
  for name in ('quap', 'fixed_dp', 'layerwise'):
    for seed in (1, 2):
      factory.write_run(tmp_path / 'runs' / f'{name}_{seed}', algorithm=name, seed=seed)
  return tmp_path / 'runs'


@pytest.mark.slow
def test_writes_all_its_files(runs, tmp_path, capsys):
  assert _main(runs, f'--output_dir={tmp_path / "report"}') == 0
  out, err = capsys.readouterr()
  assert '6 runs of 3 settings' in out
  assert not err
  text = (tmp_path / 'report' / 'report.md').read_text()
  assert f'Made by `python -m experiments.report {runs}' in text
  assert '`epsilon=6`' in text and 'quap_tff 0.1.0' in text and 'cores 2' in text
  assert '## What was left out\n\nNothing.' in text
  assert (tmp_path / 'report' / 'index.html').stat().st_size > 10_000
  assert len((tmp_path / 'report' / 'runs.csv').read_text().splitlines()) == 7
  assert (tmp_path / 'report' / 'figures' / 'accuracy.png').exists()


@pytest.mark.slow
def test_damage_is_named_and_the_rest_reported(runs, tmp_path, capsys):
  (runs / 'quap_1' / 'run.json').write_text('{')
  (runs / 'fixed_dp_1' / 'ledger.npz').write_bytes(b'torn')
  (tmp_path / 'empty').mkdir()
  assert _main(runs, tmp_path / 'empty', f'--output_dir={tmp_path / "report"}') == 0
  out, err = capsys.readouterr()
  assert '5 runs of 3 settings' in out
  text = (tmp_path / 'report' / 'report.md').read_text()
  left_out = text[text.index('## What was left out') :]
  for name in ('quap_1/run.json', 'fixed_dp_1/ledger.npz', 'empty'):
    assert name in left_out and name in err


def test_help_lists_the_sweeps_of_the_sections(capsys):
  assert _main('--help') == 0
  out = capsys.readouterr().out
  assert '--output_dir' in out and '\n  Clients\n    python -m experiments.sweep ' in out


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--output_dir=OUT'], 'Give at least one folder of runs.'),
    (['RUNS'], '--output_dir is missing'),
    (['RUNS/none', '--output_dir=OUT'], 'No such folder: '),
    (['RUNS', '--output=OUT'], 'Unknown command line flag'),
    (['RUNS', '--output_dir=RUNS'], 'files other than those of an earlier report'),
    (['EMPTY', '--output_dir=OUT'], 'has a run.json. Give the --output_dir of runs'),
  ],
)
def test_wrong_arguments(runs, tmp_path, capsys, arguments, words):
  (tmp_path / 'empty').mkdir()
  names = {'RUNS': str(runs), 'OUT': str(tmp_path / 'out'), 'EMPTY': str(tmp_path / 'empty')}
  for name, path in names.items():
    arguments = [argument.replace(name, path) for argument in arguments]
  assert _main(*arguments) == 1
  err = capsys.readouterr().err
  assert 'Error: ' in err and words in err
  assert not (tmp_path / 'out').exists()
