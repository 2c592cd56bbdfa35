"""The command of a user, in processes of its own: what it prints and leaves, and how it ends when it is cut off."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
import tensorflow as tf

from tests.experiments import harness

pytestmark = pytest.mark.slow

# The demo, shortened; from another folder, with the preset by its path and a relative folder for the run.
ROUNDS = 10
FLAGS = (
  f'--flagfile={harness.PRESETS / "demo.flags"}',
  f'--rounds={ROUNDS}',
  '--epsilon=4',
  '--checkpoint_every=3',
  '--noise_seed=7',
  '--local_epochs=2',
  '--client_optimizer=sgd:learning_rate=0.2',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('elsewhere')


def _start_cut(folder):
  return harness.start(*FLAGS, '--output_dir=runs/cut', cwd=folder)


@pytest.fixture(scope='module')
def started(folder):
  """Two runs side by side: one to end, one to be killed."""
  processes = harness.start(*FLAGS, '--output_dir=runs/whole', cwd=folder), _start_cut(folder)
  yield processes
  for process in processes:
    process.kill()
    process.wait()


@pytest.fixture(scope='module')
def killed(started, folder):
  """How the killed run ended, its folder, the processes that it had started, and the names of what it left."""
  process, path = started[1], folder / 'runs' / 'cut'
  harness.wait_for(lambda: len(harness.rows(path)) >= 4, process)
  children = psutil.Process(process.pid).children(recursive=True)
  process.kill()
  return harness.finish(process), path, children, [entry.name for entry in path.iterdir()]


@pytest.fixture(scope='module')
def uninterrupted(started, killed, folder):
  return harness.finish(started[0]), folder / 'runs' / 'whole'


@pytest.fixture(scope='module')
def left_alone(uninterrupted, folder):
  """A run whose standard output nobody reads, beside the resumed one."""
  process = harness.start(*harness.TINY, '--algorithm=fedavg', '--progress=lines', cwd=folder)
  process.stdout.close()
  process.stdout = None
  yield process
  process.kill()
  process.wait()


@pytest.fixture(scope='module')
def resumed(left_alone, killed, folder):
  """The same command again in the killed run's folder."""
  return harness.finish(_start_cut(folder)), killed[1]


# The binary's main, which says afterwards whether TensorFlow was in use when the runtime was activated.
_OBSERVED = """
    import sys
    import tensorflow as tf
    from tensorflow.python.eager import context

    from experiments import train
    from quap_tff import runtime

    in_use = []
    activate = runtime.activate

    def observed(config):
      in_use.append(context.context()._initialized)
      return activate(config)

    runtime.activate = observed
    status = train.main(['train', *sys.argv[1:]])
    print(in_use, tf.config.threading.get_intra_op_parallelism_threads())
    sys.exit(status)
"""


@pytest.fixture(scope='module')
def stopped(folder):
  """How a run of very many rounds ended that was sent SIGTERM, and its folder."""
  path = folder / 'runs' / 'stopped'
  arguments = [*harness.TINY, '--algorithm=fedavg', '--rounds=30000', f'--output_dir={path}']
  process = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(_OBSERVED), *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    universal_newlines=True,
    encoding='utf-8',
    env={**os.environ, 'PYTHONPATH': harness.PYTHONPATH},
  )
  harness.wait_for(lambda: len(harness.rows(path)) >= 2, process)
  process.terminate()
  return harness.finish(process), path


class TestCommand:
  def test_ends_well_and_says_so(self, uninterrupted):
    run, path = uninterrupted
    assert run.status == 0
    summary = run.summary
    assert summary['output_dir'] == str(path)
    assert summary['dataset'] == 'digits' and summary['rounds'] == ROUNDS
    assert summary['test_accuracy'] > 0.4 and summary['test_loss'] > 0 and summary['seconds'] > 0
    assert 0 < summary['nominal_epsilon_mean'] <= summary['nominal_epsilon_max']
    assert 0 < summary['nominal_delta_max'] <= ROUNDS * 1e-5 * (1 + 1e-9)
    assert summary['model_protected'] is False
    assert 'No finite ε' in run.out

  def test_says_nothing_else(self, uninterrupted):
    run, _ = uninterrupted
    steps, (first, seed, legend, *rounds) = run.err.splitlines()[:3], run.err.splitlines()[3:]
    assert [step.partition(' ')[0] for step in steps] == ['Starting', 'Reading', 'Building']
    assert first.startswith('digits: 50 clients') and seed.startswith('--noise_seed=7')
    assert legend.startswith('loss: training loss; ')
    assert rounds and all(line.startswith('round ') for line in rounds)
    for chatter in ('WARNING', 'tensorflow', 'Traceback', 'cuda', 'oneDNN'):
      assert chatter not in run.out + run.err

  def test_leaves_what_it_should(self, uninterrupted):
    run, path = uninterrupted
    assert {entry.name for entry in path.iterdir()} == {
      '.lock',
      'run.json',
      'metrics.csv',
      'tensorboard',
      'final_model.keras',
      'plot.png',
      'summary.json',
      'clients.csv',
      'ledger.npz',
    }
    kept = harness.summary(path)
    assert {**run.summary, 'protection': ''} == {**kept, 'protection': ''} and kept['formal'] is None
    kept = harness.strict_json((path / 'run.json').read_text())
    assert kept['flags']['rounds'] == ROUNDS and kept['flags']['output_dir'] == 'runs/whole'
    rows = harness.rows(path)
    assert [row['round'] for row in rows] == [str(t) for t in range(1, ROUNDS + 1)]
    assert {
      'epsilon',
      'clipping_norm',
      'sigma',
      'norm_p10',
      'norm_p50',
      'norm_p90',
      'clipped_fraction',
      'non_finite_updates',
      'signal_norm',
      'noise_norm',
      'noise_to_signal',
      'participation_mean',
      'participation_stddev',
      'participation_min',
      'participation_max',
      'participation_never_seen',
      'cohort_size',
      'train_loss',
      'train_accuracy',
      'test_loss',
      'test_accuracy',
      'nominal_epsilon_mean',
      'nominal_epsilon_max',
    } <= set(rows[0])
    assert float(rows[-1]['test_accuracy']) == run.summary['test_accuracy']
    assert float(rows[-1]['nominal_epsilon_max']) == run.summary['nominal_epsilon_max']


class TestCutOff:
  def test_a_kill_leaves_no_process_and_no_summary(self, killed):
    run, _, children, names = killed
    assert run.status == -signal.SIGKILL
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert 'metrics.csv' in names and 'summary.json' not in names

  def test_the_same_command_ends_as_the_uninterrupted_run(self, uninterrupted, resumed):
    whole, whole_path = uninterrupted
    run, path = resumed
    assert run.status == 0 and 'Continuing the run' in run.err
    assert harness.rows(path) == harness.rows(whole_path)
    assert {**run.summary, 'seconds': 0, 'output_dir': ''} == {**whole.summary, 'seconds': 0, 'output_dir': ''}

  def test_both_models_are_alike_and_as_good_as_said(self, uninterrupted, resumed):
    test = harness.experiment(*FLAGS).federation.test
    models = [
      tf.keras.models.load_model(path / 'final_model.keras', compile=False) for _, path in (uninterrupted, resumed)
    ]
    whole, parts = ([weights.tobytes() for weights in model.get_weights()] for model in models)
    assert whole == parts
    labels = models[0].predict(test.x, verbose=0).argmax(-1)
    assert float((labels == test.y).mean()) == uninterrupted[0].summary['test_accuracy']

  def test_a_reader_that_goes_ends_the_run_quietly(self, left_alone):
    run = harness.finish(left_alone)
    assert run.status == 1
    assert 'Traceback' not in run.err and 'BrokenPipe' not in run.err

  def test_sigterm_keeps_the_last_round(self, stopped):
    run, path = stopped
    assert run.status == 130
    summary = harness.summary(path)
    assert summary['interrupted'] and summary['rounds'] == len(harness.rows(path)) >= 2
    assert (path / 'checkpoints' / f'round_{summary["rounds"]}').is_file()
    assert 'Interrupted after' in run.out and 'The same command continues it' in run.out
    assert 'Traceback' not in run.err

  def test_tensorflow_stays_unused_until_the_runtime_is_active(self, stopped):
    """Its threads and GPU memory are set by the first use; the runtime could not set them afterwards."""
    assert stopped[0].out.splitlines()[-1] == '[False] 1'
