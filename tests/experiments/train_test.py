"""The binary as a user meets it, in this process: wrong flags, folders in the way, what it says and writes."""

import fcntl
import json
import shutil
import signal

import numpy as np
import pytest

from experiments.running import final_summary
from experiments.running import setup
from quap_tff import accounting
from quap_tff import plans
from quap_tff.common import kernels
from tests.experiments import harness
from tests.experiments import library as runs

# The wrong flag(s), and what the error must say. Tests of mechanisms, of data and of `Run.check` have more values.
BAD_FLAGS = [
  (['--dataset=digit'], ["Unknown dataset 'digit'", "'digits'"]),
  # Before constants that do not fit.
  (['--rounds=2', '--num_clients=-1'], ['--num_clients', 'at least 1, found -1']),
  (['--rounds=2', '--dataset=npz:path=nofile.npz'], ['nofile.npz not found', 'a dataset of your own']),
  (['--model=digits_cn'], ["Unknown model 'digits_cn'", "'digits_cnn'"]),
  (['--participation=unifrom'], ["Unknown participation model 'unifrom'", "'uniform'"]),
  (['--participation=beta:c=2'], ["'c'", 'beta', 'Valid: a, b']),
  (['--algorithm=fixed_dpp'], ["Unknown algorithm 'fixed_dpp'", "'fixed_dp'"]),
  (['--averaging=tail:start=0'], ['start', 'at least 1']),
  (['--shrinkage=2'], ['shrinkage', 'at most 1', '2.0']),
  (['--partition=dirichlt'], ["Unknown partition 'dirichlt'", "'dirichlet'"]),
  (['--critical_layers=logit'], ["Unknown critical layer 'logit'", "'logits'"]),
  pytest.param(
    ['--critical_layers=logit', '--noise=none'], ["Unknown critical layer 'logit'", "'logits'"], marks=pytest.mark.slow
  ),
  (['--cohort_size=0'], ['cohort_size', 'at least 1', '0']),
  (['--num_clients=0'], ['num_clients', 'at least 1', '0']),
  (['--num_clients=1438'], ['1438 clients', '1437 examples']),
  (['--rounds=0'], ['rounds', 'at least 1', '0']),
  (['--stop_after=9'], ['stop_after', 'at most 8', '9']),
  (['--stop_after=0'], ['stop_after', 'at least 1', '0']),
  (['--stop_at_accuracy=1.5'], ['stop_at_accuracy', 'at most 1', '1.5']),
  (['--stop_at_accuracy=nan'], ['stop_at_accuracy', 'nan']),
  (['--clip=quantil_ema'], ["Unknown clip rule 'quantil_ema'", "'quantile_ema'"]),
  (['--clip=none'], ['clip rule "none"', 'no noise']),
  (['--clip_scope=al_layers'], ["Unknown clip scope 'al_layers'", "'all_layers'"]),
  (['--delta=0'], ['delta', 'greater than 0', '0.0']),
  (['--epsilon=0'], ['epsilon', 'at least 1e-06', '0.0']),
  (['--epsilon=40'], ['gaussian_calibration=analytic', '--stop_after']),
  (['--alpha=-0.1'], ['alpha', 'at least 0', '-0.1']),
  (['--beta=0'], ['beta', 'greater than 0', '0.0']),
  (['--round_budget=cohort_mean'], ["'cohort_mean'", "'cohort_mean_rate'", "'cohort_mean_budget'"]),
  (['--participation_rate=emma'], ["'emma'", "'ema'"]),
  (['--ema_weight=0'], ['ema_weight', 'greater than 0']),
  (['--warmup_rounds=-1'], ['warmup_rounds', 'at least 0', '-1']),
  (['--gaussian_calibration=clasic'], ["'clasic'", "'classic'"]),
  (['--update_scale=deltas'], ["'deltas'", "'delta'"]),
  (['--max_agg_norm=0'], ['max_agg_norm', 'greater than 0']),
  (['--local_epochs=0'], ['local_epochs', 'at least 1']),
  (['--client_optimizer=sdg'], ["Unknown client optimizer 'sdg'", "'sgd'"]),
  (['--server_optimizer=adam:beta_1=1'], ['beta_1', 'less than 1', '1.0']),
  (['--seed=-1'], ['seed', 'at least 0', '-1']),
  (['--runtime=inprocess'], ["Unknown runtime 'inprocess'", "'in_process'"]),
  (['--runtime=workers'], ['--runtime=workers', 'timing=previous']),
  (['--runtime=workers', '--algorithm=fl_fdms', '--dropout=bernoulli:rate=0.1'], ['counts depends on all of them']),
  (['--runtime=workers', '--algorithm=fedapca', '--clip=fixed'], ['counts depends on all of them']),
  (['--runtime=workers', '--algorithm=lee_kifer'], ['each tests the steps']),
  (['--runtime=native', '--device=gpu'], ['native', 'GPU']),
  (['--num_threads=0'], ['num_threads', 'at least 1']),
  (['--num_threads=100000'], ['num_threads', '1024']),
  (['--rounds=99999999999999999999'], ['rounds', 'at most 1000000']),
  (['--seed=18446744073709551616'], ['seed', 'at most']),
  (['--epsilon=1e-14'], ['epsilon', '1e-14', 'at least']),
  # Flags that the method does not use, given on the command line.
  (['--algorithm=certified', '--noise=none'], ['--noise', "'certified' does not use"]),
  (['--algorithm=certified', '--clip=fixed:norm=99'], ['--clip', "'certified' does not use"]),
  (['--algorithm=certified', '--max_agg_norm=0.001'], ['--max_agg_norm', "'certified' does not use"]),
  (['--algorithm=certified:weights=uniform', '--alpha=0.9'], ['--alpha', "'certified' does not use"]),
  (['--algorithm=fedavg', '--epsilon=3'], ['--epsilon', "'fedavg' does not use"]),
  (['--algorithm=fixed_dp', '--clip=fixed:norm=3'], ['--clip', "'fixed_dp' does not use"]),
  (['--algorithm=tff_dp_ftrl', '--critical_layers=all'], ['--critical_layers', "'tff_dp_ftrl' does not use"]),
  (['--algorithm=fixed_dp', '--nocount_during_warmup'], ['--count_during_warmup', 'does not use']),
  (['--tuning=Well.'], ['--tuning', "'quap' does not use"]),
  (['--participation=full', '--cohort_size=3'], ['--cohort_size', 'sets the size of its cohorts itself']),
  (['--warmup_rounds=1000'], ['--warmup_rounds', 'less than --rounds=8']),
  (['--averaging=tail:start=100'], ['--averaging', 'the last one: nothing would be averaged']),
  (['--num_workers=3'], ['--num_workers', '--runtime=workers only']),
  (['--dataset=femnist', '--partition=iid'], ['--partition', 'clients of its own']),
  (['--dataset=mnist', '--data_dir=no/such/folder'], ['no/such/folder', 'mnist.npz', 'not found']),
]


@pytest.fixture
def output_dir(tmp_path):
  return tmp_path / 'run'


def _run(output_dir, *arguments):
  return harness.main(*harness.TINY, f'--output_dir={output_dir}', *arguments)


class TestBadInput:
  @pytest.mark.slow
  @pytest.mark.parametrize('arguments, said', BAD_FLAGS, ids=lambda value: ' '.join(value) if '--' in value[0] else '')
  def test_a_wrong_flag_is_named_and_nothing_is_written(self, arguments, said, output_dir, capsys):
    assert _run(output_dir, *arguments) == 1
    out, err = capsys.readouterr()
    assert out == ''
    assert err.splitlines()[0].startswith('Error: ')
    assert [text for text in said if text not in err] == []
    assert 'Traceback' not in err and 'round 1' not in err
    assert not output_dir.exists()

  @pytest.mark.parametrize('dataset, name', [('mnist', 'mnist.npz'), ('femnist', 'emnist_all.sqlite')])
  @pytest.mark.parametrize('contents', [b'', b'PK\x03\x04 cut short', b'SQLite format 3\x00 cut short', b'foreign'])
  def test_a_damaged_data_file_is_named(self, dataset, name, contents, output_dir, tmp_path, capsys):
    (tmp_path / name).write_bytes(contents)
    arguments = [f'--dataset={dataset}', '--model=auto', f'--data_dir={tmp_path}']
    assert _run(output_dir, *arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith('Error: ') and name in err and 'Traceback' not in err
    assert not output_dir.exists()

  def test_a_stray_argument_is_refused(self, capsys):
    assert harness.main('rounds=3') == 1
    assert "'rounds=3'" in capsys.readouterr().err

  def test_an_unknown_flag_is_refused_with_the_nearest(self):
    with pytest.raises(ValueError, match='rounds'):
      with harness.parsed('--round=3'):
        pass

  def test_help_shows_the_flags_of_an_experiment(self, capsys):
    assert harness.main('--help') == 0
    out = capsys.readouterr().out
    for name in ('--dataset', '--epsilon', '--output_dir', '--clip'):
      assert name in out

  def test_a_flag_file_that_is_no_text(self, tmp_path, capsys):
    (tmp_path / 'binary.flags').write_bytes(b'\xff\xfe\x00--rounds=3')
    assert harness.main(f'--flagfile={tmp_path / "binary.flags"}') == 1
    assert 'A flag file must be text' in capsys.readouterr().err


class TestFolderInTheWay:
  def _refused(self, output_dir, capsys, *arguments):
    before = harness.files(output_dir)
    assert _run(output_dir, *arguments) == 1
    assert harness.files(output_dir) == before
    return capsys.readouterr().err

  def test_foreign_files(self, output_dir, capsys):
    output_dir.mkdir()
    (output_dir / 'thesis.tex').write_text('years of work')
    assert 'holds files' in self._refused(output_dir, capsys)

  @pytest.mark.parametrize('contents', ['', '{', '[]', '{"identity": 3}', '{"flags": {}}', 'null'])
  def test_foreign_run_json(self, contents, output_dir, capsys):
    output_dir.mkdir()
    (output_dir / 'run.json').write_text(contents)
    assert 'no readable run.json' in self._refused(output_dir, capsys)

  def test_a_file(self, output_dir, capsys):
    output_dir.write_text('a file')
    assert _run(output_dir) == 1
    assert 'is a file' in capsys.readouterr().err
    assert output_dir.read_text() == 'a file'

  def test_no_name(self, capsys):
    assert _run('') == 1
    assert 'output_dir is empty' in capsys.readouterr().err


@pytest.fixture
def finished_run(library, tmp_path):
  """A run of eight rounds on disk."""
  return library.copy('quap', tmp_path / 'finished')


@pytest.fixture
def stopped_run(library, tmp_path):
  """The same run, stopped after three rounds."""
  return library.copy('quap_stopped', tmp_path / 'stopped')


# The flags of both.
_SEED = '--noise_seed=3'


@pytest.mark.slow
class TestFinishedRun:
  def test_run_again_it_is_left_as_it_is(self, finished_run, capsys):
    before = harness.files(finished_run)
    assert _run(finished_run, '--noise_seed=3', '--checkpoint_every=3') == 0
    out, err = capsys.readouterr()
    assert harness.files(finished_run) == before
    assert 'finished already' in err
    moved = {**harness.summary(finished_run), 'output_dir': str(finished_run)}
    assert out.splitlines()[-1] == final_summary.line(moved)
    assert out.startswith('Model, plot.png and all figures (summary.json): ') and 'Guarantee: none.' in out

  def test_other_flags_are_named_with_both_values(self, finished_run, capsys):
    before = harness.files(finished_run)
    assert _run(finished_run, '--noise_seed=3', '--epsilon=3', '--clip=fixed:norm=0.5') == 1
    assert harness.files(finished_run) == before
    err = capsys.readouterr().err
    assert '--epsilon: 4.0 there, 3.0 now' in err
    assert "--clip: 'quantile_ema' there, 'fixed:norm=0.5' now" in err
    assert '--rounds' not in err

  def test_how_it_is_watched_may_differ(self, finished_run, capsys):
    assert _run(finished_run, '--noise_seed=3', '--eval_every=4', '--progress=lines', '--num_threads=1') == 0
    capsys.readouterr()

  @pytest.mark.parametrize('algorithm', ['quap', pytest.param('certified', marks=pytest.mark.thorough)])
  def test_by_the_same_command_while_this_one_read_the_data(self, algorithm, output_dir, capsys, monkeypatch):
    arguments = [f'--algorithm={algorithm}', *([_SEED] if algorithm == 'quap' else [])]
    from_run, before = setup.from_run, {}

    def slow(*given):
      monkeypatch.setattr(setup, 'from_run', from_run)
      assert _run(output_dir, *arguments) == 0
      before.update(harness.files(output_dir))
      capsys.readouterr()
      return from_run(*given)

    monkeypatch.setattr(setup, 'from_run', slow)
    assert _run(output_dir, *arguments) == 0
    out, err = capsys.readouterr()
    assert err == 'The run was finished already; nothing was trained or written.\n'
    assert out.splitlines()[-1] == final_summary.line({**harness.summary(output_dir), 'output_dir': str(output_dir)})
    # To ask for the lock opens its file.
    after = {**harness.files(output_dir), '.lock': before['.lock']}
    assert after == before and 'summary.json' in before and not (output_dir / 'checkpoints').exists()
    # And a third time, before data are read.
    monkeypatch.setattr(setup, 'from_run', lambda *_: pytest.fail('Data are read.'))
    before = harness.files(output_dir)
    assert _run(output_dir, *arguments) == 0
    assert 'finished already' in capsys.readouterr().err and harness.files(output_dir) == before

  def test_another_process_at_work_keeps_it(self, stopped_run, capsys):
    before = harness.files(stopped_run)
    # A lock belongs to the open file, so this one is as good as another process's.
    with open(stopped_run / '.lock', 'a') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      assert _run(stopped_run, _SEED) == 1
    assert 'Another process' in capsys.readouterr().err
    # To ask for the lock opens its file, which is empty. Nothing else is touched.
    after = {**harness.files(stopped_run), '.lock': before['.lock']}
    assert after == before and not (stopped_run / '.lock').read_bytes()

  def test_a_summary_that_a_kill_kept_from_being_written_is_made_good(self, output_dir, capsys):
    assert _run(output_dir, '--noise_seed=3', '--keep_checkpoints') == 0
    kept = json.loads((output_dir / 'summary.json').read_text())
    for name in ('summary.json', 'final_model.keras', 'plot.png'):
      (output_dir / name).unlink()
    assert _run(output_dir, '--noise_seed=3') == 0
    capsys.readouterr()
    made = json.loads((output_dir / 'summary.json').read_text())
    assert {**made, 'seconds': 0} == {**kept, 'seconds': 0}
    assert (output_dir / 'final_model.keras').exists() and (output_dir / 'plot.png').exists()
    assert not (output_dir / 'checkpoints').exists()


@pytest.mark.slow
class TestWithoutCheckpoints:
  """A run whose checkpoints were removed is not trained again in silence: its first release would be forgotten."""

  @pytest.mark.parametrize('name', ['quap_stopped', 'certified_stopped'])
  def test_a_stopped_run_is_refused(self, name, library, output_dir, capsys):
    library.copy(name, output_dir)
    shutil.rmtree(output_dir / 'checkpoints')
    before = harness.files(output_dir)
    arguments = [argument for argument in runs.RUNS[name] if 'stop' not in argument]
    assert _run(output_dir, *arguments) == 1
    err = capsys.readouterr().err
    assert 'its checkpoints are gone' in err and 'second model of the same clients' in err and 'Traceback' not in err
    assert harness.files(output_dir) == before

  def test_a_run_that_was_killed_before_its_first_checkpoint_starts_anew(self, stopped_run):
    for name in stopped_run.iterdir():
      if name.name not in ('run.json', '.lock', 'checkpoints'):
        shutil.rmtree(name) if name.is_dir() else name.unlink()
    (stopped_run / 'checkpoints' / 'state').unlink()
    assert _run(stopped_run, _SEED, '--stop_after=1') == 0
    assert len(harness.rows(stopped_run)) == 1


@pytest.mark.slow
@pytest.mark.thorough
class TestOtherData:
  def _images(self, folder, shade):
    folder.mkdir()
    x = np.full((40, 28, 28), shade, np.uint8)
    y = np.arange(40, dtype=np.uint8) % 10
    np.savez(folder / 'mnist.npz', x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return [
      '--dataset=mnist',
      '--model=logistic_regression',
      f'--data_dir={folder}',
      '--num_clients=8',
      '--cohort_size=3',
    ]

  def test_a_run_is_not_continued_on_other_data(self, output_dir, tmp_path, capsys):
    first, other = self._images(tmp_path / 'a', 100), self._images(tmp_path / 'b', 101)
    assert _run(output_dir, *first, '--stop_after=1') == 0
    assert _run(output_dir, *other, '--stop_after=2') == 1
    assert 'belongs to a run on other data' in capsys.readouterr().err
    (tmp_path / 'a').rename(tmp_path / 'c')
    same = [argument.replace('/a', '/c') if 'data_dir' in argument else argument for argument in first]
    assert _run(output_dir, *same, '--stop_after=2') == 0


@pytest.mark.slow
class TestDamagedFolder:
  @pytest.mark.parametrize('content', ['', 'round,epsilon\n1,0.5\n', 'round,epsilon\n1,x\n2,0.5\n', 'a,b\n1,2\n'])
  def test_rows_that_were_lost_are_not_lost_in_silence(self, content, stopped_run, capsys):
    (stopped_run / 'metrics.csv').write_text(content)
    assert _run(stopped_run, _SEED) == 1
    assert 'metrics.csv is damaged: it must hold one row for each of the first 3 rounds' in capsys.readouterr().err
    assert (stopped_run / 'metrics.csv').read_text() == content

  @pytest.mark.parametrize(
    'name, kind', [('tensorboard', 'file'), ('final_model.keras', 'folder'), ('ledger.npz', 'folder')]
  )
  def test_a_file_in_place_of_a_folder_and_the_other_way_round(self, name, kind, stopped_run, capsys):
    path = stopped_run / name
    if kind == 'file':
      shutil.rmtree(path)
      path.write_text('')
    else:
      path.unlink()
      path.mkdir()
    assert _run(stopped_run, _SEED) == 1
    err = capsys.readouterr().err
    assert f'found a {kind}. Move it away.' in err and 'Traceback' not in err


@pytest.mark.slow
class TestSummary:
  def test_layer_wise_noise_leaves_no_finite_epsilon(self, library):
    _, out, err = library.run('layerwise')
    assert 'anyone who knows the seed can subtract it' in err
    summary = harness.last_line(out)
    assert summary['model_protected'] is False and summary['formal'] is None
    assert 'No finite ε for the released model' in out and 'layer logits only' in out and 'ormal ε' not in out
    assert 1e-5 <= summary['nominal_delta_max'] <= 2e-5
    assert 0.5 <= summary['nominal_epsilon_max'] <= 2

  def test_without_a_folder_one_is_offered(self, capsys):
    assert harness.main(*harness.TINY, '--noise_seed=3', '--stop_after=1') == 0
    out = capsys.readouterr().out
    assert 'a plot and all figures, name a folder: --output_dir=FOLDER' in out
    assert harness.last_line(out)['output_dir'] is None

  @pytest.mark.thorough
  def test_without_noise_nothing_is_protected(self, capsys, output_dir, drawn):
    assert _run(output_dir, '--noise=none', '--clip=none', '--rounds=2') == 0
    out = capsys.readouterr().out
    summary = harness.last_line(out)
    assert summary['nominal_epsilon_max'] is summary['nominal_epsilon_mean'] is summary['nominal_delta_max'] is None
    assert summary['model_protected'] is False
    assert out.count('nothing is protected') == 1 and 'Nominal' not in out
    assert out.splitlines()[-1] == final_summary.line(harness.summary(output_dir))
    harness.strict_json((output_dir / 'run.json').read_text())
    assert (output_dir / 'plot.png').stat().st_size > 1000

  def test_noise_everywhere_covers_the_model_if_nothing_exact_is_kept(self, library):
    output_dir, out, _ = library.run('fixed_dp')
    summary = harness.summary(output_dir)
    assert summary['model_protected'] is True and 'no finite ε' not in out
    assert summary['formal']['covers'] == 'released model'
    # z = √(2·ln(1.25/δ))/0.5 = 9.69 in each of eight rounds, by dp-accounting's exact composition of Gaussians.
    [exact] = [f for f in summary['formal']['figures'] if f['accountant'] == 'gaussian_exact']
    rounds = [int(row['rounds']) for row in harness.table(output_dir / 'clients.csv')]
    epsilons = [float(row['formal_epsilon']) for row in harness.table(output_dir / 'clients.csv')]
    history = {k: accounting.History.gaussian(9.68961, k) for k in set(rounds)}
    expected = [accounting.ACCOUNTANTS['gaussian_exact'].epsilon(history[k], 1e-5) for k in rounds]
    np.testing.assert_allclose(epsilons, expected, rtol=1e-4)
    assert exact['epsilon_max'] == max(epsilons)

  @pytest.mark.thorough
  def test_noise_everywhere_covers_the_weights_alone_if_client_metrics_are_kept(self, capsys, output_dir):
    assert _run(output_dir, '--algorithm=fixed_dp', '--rounds=2', '--epsilon=0.5', '--client_metrics') == 0
    summary = harness.summary(output_dir)
    assert summary['model_protected'] is True and summary['formal']['covers'] == 'weights without the logs'
    assert 'no finite ε' in capsys.readouterr().out

  @pytest.mark.thorough
  def test_without_client_metrics_nothing_exact_is_written(self, output_dir, capsys, drawn):
    assert _run(output_dir, '--algorithm=quap', '--stop_after=2', '--noclient_metrics') == 0
    columns = set(harness.rows(output_dir)[0])
    assert columns == {
      'round',
      'cohort_size',
      'epsilon',
      'noise_multiplier',
      'participation_mean',
      'participation_stddev',
      'participation_min',
      'participation_max',
      'participation_never_seen',
      'update_rejected',
      'test_accuracy',
      'test_loss',
      'nominal_epsilon_mean',
      'nominal_epsilon_max',
      'down_bytes_per_client',
      'up_bytes_per_client',
    }
    assert {'examples', 'test_accuracy'}.isdisjoint(harness.table(output_dir / 'clients.csv')[0])
    assert (output_dir / 'plot.png').stat().st_size > 1000

  def test_a_row_for_each_client(self, library):
    # Seeded: how far the two figures below are apart depends on the noise.
    output_dir = library.run('quap').path
    clients = harness.table(output_dir / 'clients.csv')
    assert [int(row['client']) for row in clients] == list(range(8))
    assert sum(int(row['examples']) for row in clients) == 1437
    assert sum(int(row['rounds']) for row in clients) == 8 * 3
    # Weighted by examples, the clients' mixes of labels are that of all training examples, near the test set's own.
    overall = sum(int(row['examples']) * float(row['test_accuracy']) for row in clients) / 1437
    assert overall == pytest.approx(harness.summary(output_dir)['test_accuracy'], abs=0.02)
    assert len({row['test_accuracy'] for row in clients}) > 1

  def test_the_ledger_is_kept(self, library):
    output_dir = library.run('quap').path
    ledger = accounting.RunLedger.load(output_dir / 'ledger.npz')
    assert ledger.num_rounds == 8
    rows = harness.rows(output_dir)
    assert float(rows[-1]['nominal_epsilon_max']) == ledger.epsilon.max()
    np.testing.assert_allclose(
      ledger.state_dict()['noise_multipliers'], [float(row['noise_multiplier']) for row in rows], rtol=1e-6
    )

  @pytest.mark.parametrize(
    'emulates, arguments, said',
    [
      (True, ['--compute_dtype=bfloat16'], True),
      (False, ['--compute_dtype=bfloat16'], False),
      (True, ['--compute_dtype=float32'], False),
    ],
  )
  @pytest.mark.thorough
  def test_emulated_bfloat16_is_said_before_the_first_round(self, emulates, arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(kernels, 'emulates_bfloat16', lambda: emulates)
    assert harness.main(*harness.TINY, '--algorithm=fedavg', '--rounds=1', '--progress=lines', *arguments) == 0
    before, _, _ = capsys.readouterr().err.partition('round 1/1')
    assert ('This CPU has no bfloat16 instructions' in before and '--compute_dtype=float32 is' in before) == said

  @pytest.mark.thorough
  def test_cohorts_of_nobody(self, output_dir, capsys, drawn):
    arguments = ['--participation=bernoulli:q=0.05', '--seed=1', '--progress=lines']
    assert _run(output_dir, *arguments) == 0
    out, err = capsys.readouterr()
    rows = harness.rows(output_dir)
    empty = [row['round'] for row in rows if row['cohort_size'] == '0']
    assert len(rows) == 8 and 0 < len(empty) < 8
    assert [line.split()[1].rstrip(':') for line in err.splitlines() if 'nobody took part' in line] == empty
    assert [row['round'] for row in rows if row['train_loss'] == 'nan'] == empty
    # The model is what it was, so its accuracy is too.
    for before, row in zip(rows, rows[1:]):
      if row['round'] in empty:
        assert (row['test_accuracy'], row['test_loss']) == (before['test_accuracy'], before['test_loss'])
    assert harness.summary(output_dir)['rounds'] == 8
    assert (output_dir / 'plot.png').stat().st_size > 1000

  @pytest.mark.thorough
  def test_nobody_ever(self, output_dir, capsys, drawn):
    assert _run(output_dir, '--participation=bernoulli:q=1e-9', '--rounds=1', '--epsilon=0.5') == 0
    summary = harness.last_line(capsys.readouterr().out)
    assert (summary['nominal_epsilon_max'], summary['nominal_delta_max']) == (0, 0)
    assert not (output_dir / 'plot.png').exists()  # One round is no curve.


@pytest.mark.slow
class TestStops:
  def test_a_signal_that_became_another_error_while_the_run_is_built(self, output_dir, capsys, monkeypatch):
    def became(*_):
      try:
        signal.raise_signal(signal.SIGINT)
      except KeyboardInterrupt:
        raise AttributeError('As TensorFlow goes on after a function of ours has raised in it.') from None

    monkeypatch.setattr(setup, 'from_run', became)
    assert _run(output_dir) == 130
    err = capsys.readouterr().err
    assert 'Interrupted before a round was run.' in err and 'AttributeError' not in err

  def test_any_other_error_stays_what_it_is(self, output_dir, monkeypatch):
    monkeypatch.setattr(setup, 'from_run', lambda *_: {}.nothing)
    with pytest.raises(AttributeError):
      _run(output_dir)

  def test_after_a_round_and_on_from_there(self, finished_run, output_dir, capsys):
    arguments = ['--noise_seed=3', '--checkpoint_every=3']
    assert _run(output_dir, '--stop_after=4', *arguments) == 0
    out = capsys.readouterr().out
    assert harness.last_line(out)['rounds'] == 4 and 'Done: 4 of 8 planned rounds' in out
    assert _run(output_dir, '--stop_after=4', *arguments) == 0
    out, err = capsys.readouterr()
    assert 'The run had come to round 4 already; nothing was trained or written.' in err
    assert 'Done: 4 of 8 planned rounds, 4 of them before' in out and 'finished' not in err and 'Interrupted' not in out
    assert _run(output_dir, *arguments) == 0
    out, err = capsys.readouterr()
    assert 'Done: 8 of 8 planned rounds, 4 of them before' in out and 'Continuing the run' in err
    assert harness.rows(output_dir) == harness.rows(finished_run)

  def test_at_an_accuracy_not_before_a_round_was_run(self, output_dir, capsys):
    assert _run(output_dir, _SEED, '--stop_at_accuracy=0.001', '--eval_every=3') == 0
    assert harness.last_line(capsys.readouterr().out)['rounds'] == 3
    assert [row['test_accuracy'] == '' for row in harness.rows(output_dir)] == [True, True, False]


@pytest.mark.slow
def test_runs_of_one_process_share_what_they_build(monkeypatch):
  """If they did not, nothing else would fail, only take twice as long."""
  built = []
  monkeypatch.setattr(plans.Plan, 'build_process', lambda *given: built.append(given) or object())
  for seed, count in ((75, 1), (75, 1), (76, 2)):
    harness.experiment(*harness.TINY, '--algorithm=fedavg', '--rounds=1', f'--seed={seed}').build_process()
    assert len(built) == count
