"""The command of a user, in processes of its own: what it prints and leaves, and how it ends when it is cut off."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import pytest

from experiments import setup
from tests.experiments import harness

# The demo, shortened; from another folder, with the preset by its path and a relative folder for the run.
ROUNDS = 12
FLAGS = (
    f'--flagfile={harness.PRESETS / "demo.flags"}', f'--rounds={ROUNDS}', '--epsilon=4', '--checkpoint_every=4',
    '--noise_seed=7', '--local_epochs=2', '--client_optimizer=sgd:learning_rate=0.2',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('elsewhere')


@pytest.fixture(scope='module')
def uninterrupted(folder):
  return harness.finish(harness.start(*FLAGS, '--output_dir=runs/whole', cwd=folder)), folder / 'runs' / 'whole'


def _fresh(code, *arguments):
  return subprocess.run(
      [sys.executable, '-c', textwrap.dedent(code), *map(str, arguments)], check=True, stdout=subprocess.PIPE
  ).stdout


_LOAD = '''
    import sys
    import numpy as np
    import tensorflow as tf

    model = tf.keras.models.load_model(sys.argv[1], compile=False)
    examples = np.load(sys.argv[2])
    labels = model.predict(examples['x'], verbose=0).argmax(-1)
    print(float((labels == examples['y']).mean()))
'''


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
    assert 'no finite ε' in run.out

  def test_says_nothing_else(self, uninterrupted):
    run, _ = uninterrupted
    first, seed, *rounds = run.err.splitlines()
    assert first.startswith('digits: 50 clients') and seed.startswith('--noise_seed=7')
    assert rounds and all(line.startswith('round ') for line in rounds)
    for chatter in ('WARNING', 'tensorflow', 'Traceback', 'cuda', 'oneDNN'):
      assert chatter not in run.out + run.err

  def test_leaves_what_it_should(self, uninterrupted):
    run, path = uninterrupted
    assert {entry.name for entry in path.iterdir()} == {
        '.lock', 'run.json', 'metrics.csv', 'checkpoints', 'tensorboard', 'final_model.keras', 'plot.png',
        'summary.json',
    }
    assert harness.strict_json((path / 'summary.json').read_text()) == run.summary
    kept = harness.strict_json((path / 'run.json').read_text())
    assert kept['flags']['rounds'] == ROUNDS and kept['flags']['output_dir'] == 'runs/whole'
    rows = harness.rows(path)
    assert [row['round'] for row in rows] == [str(t) for t in range(1, ROUNDS + 1)]
    assert {
        'epsilon', 'clipping_norm', 'sigma', 'norm_p10', 'norm_p50', 'norm_p90', 'clipped_fraction',
        'non_finite_updates', 'signal_norm', 'noise_norm', 'noise_to_signal', 'participation_mean',
        'participation_stddev', 'participation_min', 'participation_max', 'participation_never_seen', 'cohort_size',
        'train_loss', 'train_accuracy', 'test_loss', 'test_accuracy', 'nominal_epsilon_mean', 'nominal_epsilon_max',
    } <= set(rows[0])
    assert float(rows[-1]['test_accuracy']) == run.summary['test_accuracy']
    assert float(rows[-1]['nominal_epsilon_max']) == run.summary['nominal_epsilon_max']

  def test_the_model_loads_elsewhere_and_is_as_good_as_said(self, uninterrupted, tmp_path):
    run, path = uninterrupted
    with harness.parsed(*FLAGS) as values:
      test = setup.from_flags(values).federation.test
    np.savez(tmp_path / 'test.npz', x=test.x, y=test.y)
    assert float(_fresh(_LOAD, path / 'final_model.keras', tmp_path / 'test.npz')) == run.summary['test_accuracy']


class TestCutOff:

  def test_killed_then_stopped_it_ends_as_the_uninterrupted_run(self, uninterrupted, folder):
    whole, whole_path = uninterrupted
    path = folder / 'runs' / 'cut'
    start = lambda: harness.start(*FLAGS, '--output_dir=runs/cut', cwd=folder)

    process = start()
    harness.wait_for(lambda: len(harness.rows(path)) >= 5, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    run = harness.finish(process)
    assert run.status == -signal.SIGKILL
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert not (path / 'summary.json').exists()

    process = start()
    harness.wait_for(lambda: len(harness.rows(path)) >= 8, process)
    process.terminate()
    run = harness.finish(process)
    assert run.status == 130
    assert run.summary['interrupted'] and 8 <= run.summary['rounds'] < ROUNDS
    assert 'Interrupted after' in run.out and 'The same command goes on from there' in run.out
    assert 'Traceback' not in run.err

    run = harness.finish(start())
    assert run.status == 0 and 'Going on with the run' in run.err
    assert harness.rows(path) == harness.rows(whole_path)
    assert (path / 'final_model.keras').exists()
    assert {**run.summary, 'seconds': 0, 'output_dir': ''} == {**whole.summary, 'seconds': 0, 'output_dir': ''}
    code = '''
        import sys
        import tensorflow as tf

        weights = [tf.keras.models.load_model(path, compile=False).get_weights() for path in sys.argv[1:]]
        print(all(a.tobytes() == b.tobytes() for a, b in zip(*weights)))
    '''
    assert _fresh(code, path / 'final_model.keras', whole_path / 'final_model.keras').strip() == b'True'

  def test_a_reader_that_goes_ends_the_run_quietly(self, folder):
    process = harness.start(*harness.TINY, '--progress=lines', cwd=folder)
    process.stdout.close()
    process.stdout = None
    run = harness.finish(process)
    assert run.status == 1
    assert 'Traceback' not in run.err and 'BrokenPipe' not in run.err
