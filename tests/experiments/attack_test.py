"""The binary that attacks: its figures, files and errors."""

import json
import re

import numpy as np
import pytest

from experiments import attack
from experiments.attacking import inversion_setting
from experiments.attacking import inversion_study
from experiments.command import command_line
from quap_tff.mechanisms.parts import layers as layers_lib
from tests.experiments import harness

TINY = (
  '--dataset=digits',
  '--models=mlp',
  '--targets=2',
  '--cohort=2',
  '--batches=1',
  '--steps=1',
  '--iterations=3',
  '--attacks=closed_form,geiping',
  '--matching_images=1',
)


def _main(*arguments):
  with harness.signal_handlers_kept():
    return command_line.status_of(attack.main, ['attack', *map(str, arguments)])


@pytest.fixture(scope='module', name='run')
def _run(tmp_path_factory):
  """The folder of a tiny attack."""
  folder = tmp_path_factory.mktemp('attack') / 'out'
  assert _main(*TINY, f'--output_dir={folder}') == 0
  return folder


@pytest.fixture(scope='module', name='rows')
def _rows(run):
  return harness.strict_json((run / 'attack.json').read_text(encoding='utf-8'))['inversion']


def _row(rows, method, observer, attack_name='closed_form'):
  (found,) = (row for row in rows if (row['method'], row['observer'], row['attack']) == (method, observer, attack_name))
  return found


@pytest.mark.slow
class TestFigures:
  @pytest.mark.thorough
  def test_every_method_and_observer_has_a_row(self, rows):
    pairs = {(row['method'], row['observer']) for row in rows if row['attack'] == 'closed_form'}
    assert pairs == {(m, o) for m in inversion_study.InversionSettings().methods for o in inversion_study.OBSERVERS}
    for row in rows:
      assert {'psnr_mean', 'ssim_mean', 'label_accuracy', 'batch', 'steps', 'psnr_low', 'ssim_high'} <= set(row)
      assert row['targets'] == 2 and row['psnr_low'] is None and row['ssim_high'] is None

  def test_matching_runs_only_where_it_is_small_enough(self, rows):
    assert {row['observer'] for row in rows if row['attack'] == 'geiping'} == {'client_update'}

  @pytest.mark.parametrize('method', ['fedavg', 'quap', 'fixed_dp', 'certified'])
  def test_noise_at_the_server_leaves_what_a_client_sends(self, rows, method):
    row = _row(rows, method, 'client_update')
    assert row['psnr_mean'] > 55 and row['label_accuracy'] == 1 and row['noise_stddev'] == 0

  def test_noise_at_the_client_does_not(self, rows):
    assert _row(rows, 'local_noise', 'client_update')['psnr_mean'] < 15

  def test_noise_on_every_layer_hides_the_aggregate_and_noise_on_one_does_not(self, rows):
    layerwise, whole = _row(rows, 'quap', 'aggregate'), _row(rows, 'fixed_dp', 'aggregate')
    assert layerwise['psnr_mean'] == pytest.approx(_row(rows, 'fedavg', 'aggregate')['psnr_mean'], abs=0.01)
    assert layerwise['looked_at'] == 'layers without noise' and layerwise['noise_stddev'] > 0
    assert whole['psnr_mean'] < 12 and whole['looked_at'] == 'all layers'

  def test_an_update_that_was_attacked_is_not_attacked_again(self, rows):
    assert _row(rows, 'fixed_dp', 'client_update')['same_as'] == 'fedavg'
    assert _row(rows, 'fixed_dp', 'aggregate')['same_as'] == ''

  def test_intervals_are_those_of_student(self):
    # Mean 3, variance 2.5, five values: t = 2.7764 at 97.5% and 4 degrees of freedom.
    assert inversion_study.interval(np.arange(1.0, 6.0), -9, 9) == pytest.approx(
      (3, 3 - 2.7764 / 2**0.5, 3 + 2.7764 / 2**0.5), rel=1e-4
    )
    assert inversion_study.interval(np.array([0.0, 1.0] * 3), 0.2, 0.8) == (0.5, 0.2, 0.8)

  def test_fewer_than_five_targets_have_no_interval(self):
    # Two values of 19.1 and 59.7 dB would have -219 to 298 dB.
    for count in (2, 3, 4):
      assert inversion_study.interval(np.arange(1.0, count + 1), -np.inf, np.inf)[1:] == (None, None)


@pytest.mark.slow
class TestFiles:
  def test_pictures_tables_and_a_page_of_all_of_them(self, run, rows):
    names = {path.name for path in (run / 'inversion').iterdir()}
    assert names == {
      'inversion.csv',
      *(f'inversion_mlp_{method}.png' for method in inversion_study.InversionSettings().methods),
    }
    assert len(harness.table(run / 'inversion' / 'inversion.csv')) == len(rows)
    page = (run / 'attack.html').read_text(encoding='utf-8')
    assert page.count('data:image/png;base64,') == 5
    assert 'client_update' in page and 'without any noise' in page and 'QuAP-FL.' in page
    # No interval over two targets: a dash, and a sentence that says so.
    column = re.findall('<th scope="col"[^>]*>(.*?)</th>', page).index('psnr_low')
    cells = [re.findall('<td>(.*?)</td>', line)[column] for line in page.splitlines() if line.startswith('<tr><td>')]
    assert set(cells) == {'-'} and 'fewer than 5 targets give no interval' in page

  @pytest.mark.thorough
  def test_a_second_run_gives_the_same_and_replaces_the_first(self, run, rows, capsys):
    assert _main(*TINY, '--methods=quap', f'--output_dir={run}') == 0
    out = capsys.readouterr().out
    summary = harness.last_line(out)
    assert set(summary) == {'inversion', 'membership', 'seconds'} and summary['membership'] == []
    assert summary == json.loads((run / 'attack.json').read_text(encoding='utf-8'))
    again = _row(summary['inversion'], 'quap', 'aggregate')
    assert again == _row(rows, 'quap', 'aggregate')
    assert {path.name for path in (run / 'inversion').glob('*.png')} == {'inversion_mlp_quap.png'}


class TestPresets:
  @pytest.mark.parametrize('dataset', ['digits', 'mnist', 'cifar10'])
  def test_has_every_method_and_both_observers(self, dataset):
    command_line.parse(attack._FLAGS, ['attack', f'--flagfile={harness.PRESETS / dataset}_attack.flags'])
    settings = attack.PARTS['inversion'].settings()
    defaults = inversion_study.InversionSettings()
    assert settings.dataset == dataset and settings.targets >= 10
    assert (settings.methods, settings.observers) == (defaults.methods, defaults.observers)
    # The preset of the digits has one local step, so that it ends within two minutes.
    assert settings.models == (f'{dataset}_cnn', 'mlp') and settings.steps == ((1,) if dataset == 'digits' else (1, 4))
    assert {'closed_form', 'geiping'} <= set(settings.attacks)

  @pytest.mark.parametrize('method, noise', [('quap', 6.0), ('certified', 3.0)])
  def test_noise_is_that_of_the_training_presets(self, method, noise):
    plan = inversion_setting.plan_of('mnist', method, layers_lib.ModelShape((), ()))
    epsilon = plan.config.epsilon if method == 'certified' else plan.config.budget.epsilon_total
    assert (epsilon, plan.num_clients) == (noise, 100)


class TestErrors:
  @pytest.mark.parametrize(
    'flag, message',
    [
      ('--parts=inversio', "Unknown part 'inversio'. Did you mean 'inversion'"),
      ('--parts=', '--parts is empty'),
      ('--dataset=femnist', "Unknown dataset of attacks 'femnist'"),
      ('--methods=quapp', "Unknown attacked method 'quapp'. Did you mean 'quap'"),
      ('--observers=server', "Unknown observer 'server'"),
      ('--models=mnist', "Unknown model 'mnist'"),
      ('--attacks=', 'Give at least one attack'),
      ('--batches=1,x', "--batches must be whole numbers with commas between them, found '1,x'"),
      ('--steps=0', 'steps must be an integer at least 1, found 0'),
      ('--targets=1', 'targets must be an integer at least 2, found 1'),
      ('--batches=500', 'only 0 clients of digits have 500 examples or more. Give a smaller --cohort'),
      ('extra', "Unexpected argument 'extra'"),
    ],
  )
  def test_a_wrong_flag_is_refused_in_words(self, capsys, flag, message):
    assert _main(*TINY, flag) == 1
    err = capsys.readouterr().err
    assert message in err and 'Traceback' not in err

  def test_a_folder_with_other_files_is_refused(self, tmp_path, capsys):
    (tmp_path / 'run.json').write_text('{}')
    assert _main(*TINY, f'--output_dir={tmp_path}') == 1
    assert 'holds files other than those of an earlier attack' in capsys.readouterr().err

  def test_a_missing_data_file_is_found_out_before_tensorflow_is_loaded(self, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(attack.lazy, 'load', None)
    arguments = ['attack', '--dataset=mnist', f'--data_dir={tmp_path}']
    assert command_line.status_of(attack.main, arguments) == command_line.FAILED
    assert capsys.readouterr() == ('', f'Error: {tmp_path}/mnist.npz not found; expected mnist.npz in --data_dir.\n')

  def test_help_needs_no_tensorflow(self, capsys):
    assert _main('--help') == 0
    assert '--matching_images' in capsys.readouterr().out
