"""The command of a user, in processes of its own: what it prints and leaves, and how it ends when it is cut off.

One run is killed, continued, asked to end, and continued in this process; another one comes as far without a break.
Both are the same, bit for bit.
"""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from quap_tff.common.lazy import tf
from tests import processes
from tests.experiments import harness

pytestmark = pytest.mark.slow

# From another folder, with a flag file by its path and a relative folder for the run. Minutes of rounds, so that none
# comes to its end before it is cut off.
PLANNED = 20_000
FLAGS = (
  *harness.TINY,
  f'--rounds={PLANNED}',
  '--epsilon=2000',
  '--checkpoint_every=3',
  '--noise_seed=7',
  '--participation=beta:a=2,b=5',
  '--server_optimizer=sgd:learning_rate=1.0,momentum=0.5',
  '--progress=lines',
)

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
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('elsewhere')


@pytest.fixture(scope='module')
def killed(folder):
  """How the killed run ended, its folder, the processes that it had started, and the names of what it left."""
  path = folder / 'runs' / 'cut'
  process = harness.start(*FLAGS, '--output_dir=runs/cut', cwd=folder)
  processes.until(lambda: len(harness.rows(path)) >= 4, process)
  children = psutil.Process(process.pid).children(recursive=True)
  process.kill()
  return harness.finish(process), path, children, [entry.name for entry in path.iterdir()]


@pytest.fixture(scope='module')
def stopped(killed, folder):
  """How the killed run ended that was continued and then sent SIGTERM, and the rounds that were there before."""
  path, before = killed[1], len(harness.rows(killed[1]))
  process = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(_OBSERVED), *FLAGS, '--output_dir=runs/cut'],
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    encoding='utf-8',
    env={**os.environ, 'PYTHONPATH': harness.PYTHONPATH},
  )
  processes.until(lambda: len(harness.rows(path)) >= before + 2, process)
  process.terminate()
  finished = harness.finish(process)
  assert (path / 'summary.json').exists(), finished
  return finished, before, harness.summary(path)


@pytest.fixture(scope='module')
def resumed(killed, stopped):
  """The folder of the run that was cut off twice, after three rounds more, and their number."""
  path, last = killed[1], stopped[2]['rounds'] + 3
  assert harness.main(*FLAGS, f'--output_dir={path}', f'--stop_after={last}') == 0
  return path, last


@pytest.fixture(scope='module')
def uninterrupted(resumed, folder):
  """The folder of a run that came to the same round without a break, in this process."""
  path = folder / 'runs' / 'whole'
  assert harness.main(*FLAGS, f'--stop_after={resumed[1]}', f'--output_dir={path}') == 0
  return path


def _says_nothing_else(run, more=()):
  said = [line for line in run.err.splitlines() if line.partition(' ')[0] not in more and line]
  steps, (first, seed, legend, *rounds) = said[:3], said[3:]
  assert [step.partition(' ')[0] for step in steps] == ['Starting', 'Reading', 'Building']
  assert first.startswith('digits: 8 clients') and seed.startswith('--noise_seed=7')
  assert legend.startswith('loss: training loss; ')
  assert all(line.startswith('round ') for line in rounds), rounds
  for chatter in ('WARNING', 'tensorflow', 'Traceback', 'cuda', 'oneDNN', 'Exception'):
    assert chatter not in run.out + run.err


class TestCommand:
  @pytest.mark.thorough
  def test_ends_well_and_says_so(self, folder):
    flags = (*harness.TINY, '--noise_seed=7', '--progress=lines', '--output_dir=runs/ended')
    run = harness.finish(harness.start(*flags, cwd=folder))
    assert run.status == 0 and 'No finite ε' in run.out
    _says_nothing_else(run)
    kept = harness.summary(folder / 'runs' / 'ended')
    assert {**run.summary, 'protection': ''} == {**kept, 'protection': ''} and kept['formal'] is None
    assert kept['rounds'] == 8 and not (folder / 'runs' / 'ended' / 'checkpoints').exists()

  def test_says_nothing_else(self, stopped):
    _says_nothing_else(stopped[0], more=('Continuing', 'Interrupted'))

  def test_leaves_what_it_should(self, uninterrupted, resumed):
    path, last = uninterrupted, resumed[1]
    assert {entry.name for entry in path.iterdir()} == {
      '.lock',
      'checkpoints',
      'run.json',
      'metrics.csv',
      'tensorboard',
      'final_model.keras',
      'plot.png',
      'summary.json',
      'clients.csv',
      'ledger.npz',
    }
    summary = harness.summary(path)
    assert (summary['dataset'], summary['rounds'], summary['planned_rounds']) == ('digits', last, PLANNED)
    assert 0 < summary['nominal_epsilon_mean'] <= summary['nominal_epsilon_max']
    assert 0 < summary['nominal_delta_max'] <= last * 1e-5 * (1 + 1e-9)
    assert summary['model_protected'] is False and summary['test_loss'] > 0 and summary['seconds'] > 0
    rows = harness.rows(path)
    assert [row['round'] for row in rows] == [str(t) for t in range(1, last + 1)]
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
    assert float(rows[-1]['test_accuracy']) == summary['test_accuracy']
    assert float(rows[-1]['nominal_epsilon_max']) == summary['nominal_epsilon_max']


class TestCutOff:
  def test_a_kill_leaves_no_process_and_no_summary(self, killed):
    run, _, children, names = killed
    assert run.status == -signal.SIGKILL
    assert harness.gone(children)
    assert 'metrics.csv' in names and 'summary.json' not in names

  def test_the_same_command_continues_it_and_sigterm_keeps_the_last_round(self, stopped):
    run, before, summary = stopped
    assert run.status == 130 and 'Continuing the run' in run.err
    assert summary['interrupted'] and summary['rounds'] >= before + 2
    assert 'Interrupted after' in run.out and 'The same command continues it' in run.out
    assert 'Traceback' not in run.err

  def test_tensorflow_stays_unused_until_the_runtime_is_active(self, stopped):
    """Its threads and GPU memory are set by the first use; the runtime could not set them afterwards."""
    assert stopped[0].out.splitlines()[-1] == '[False] 1'

  def test_it_ends_as_the_uninterrupted_run(self, uninterrupted, resumed):
    whole, (path, last) = uninterrupted, resumed
    assert harness.rows(path) == harness.rows(whole) and len(harness.rows(path)) == last
    summaries = [{**harness.summary(one), 'seconds': 0, 'output_dir': ''} for one in (path, whole)]
    assert summaries[0] == summaries[1]

  def test_both_models_are_alike_and_as_good_as_said(self, uninterrupted, resumed):
    test = harness.experiment(*FLAGS).federation.test
    models = [
      tf.keras.models.load_model(path / 'final_model.keras', compile=False) for path in (uninterrupted, resumed[0])
    ]
    whole, parts = ([weights.tobytes() for weights in model.get_weights()] for model in models)
    assert whole == parts
    labels = models[0].predict(test.x, verbose=0).argmax(-1)
    assert float((labels == test.y).mean()) == harness.summary(uninterrupted)['test_accuracy']

  @pytest.mark.thorough
  def test_a_reader_that_goes_ends_the_run_quietly(self, folder):
    process = harness.start(*harness.TINY, '--algorithm=fedavg', '--progress=lines', cwd=folder)
    process.stdout.close()
    process.stdout = None
    run = harness.finish(process)
    assert run.status == 1
    assert 'Traceback' not in run.err and 'BrokenPipe' not in run.err
