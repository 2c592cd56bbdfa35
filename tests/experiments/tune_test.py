"""The search for constants: it keeps the best, states what it did, and opens no data."""

import builtins
import io
import json
import math
import sys

import numpy as np
import pytest

from experiments import tune
from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.sweeps import sweep_runs
from tests import processes
from tests.experiments import harness

_TABLE = ('--dataset=npz:path=absent.npz', '--shape=12', '--classes=3', '--num_clients=64', '--epsilon=3')

_GIVEN = ('--client_optimizer=adam', '--local_epochs=2..4', '--rounds=8')


def _score(flags):
  """Best at a rate of 25, 10 local epochs, a clipping norm of 0.72, 20 rounds and a planned average."""
  rate = float(flags['client_optimizer'].partition('=')[2])
  clip = float(flags['algorithm'].partition('clip=')[2].partition(',')[0] or 0.72)
  losses = [abs(math.log(rate / 25)), abs(math.log(clip / 0.72)), abs(math.log(int(flags['local_epochs']) / 10))]
  losses += [abs(math.log(int(flags['rounds']) / 20)), flags['averaging'] == 'none']
  return 0.9 - sum(losses) / 30


class Played:
  """Plays no run, and gives each the accuracy of its flags."""

  def __init__(self, score=_score):
    self.score, self.bases, self.flags = score, [], []

  def __call__(self, folder, base, axes):
    found = sweep_runs.combinations(axes)
    sweep_runs.runs_of(folder, base, [axes])  # All flags are right, and no two runs are the same.
    self.bases.append(base)
    self.flags += found
    return [self.score(flags) for flags in found]


def _tuned(tmp_path, *arguments, play=None):
  """The status, and what ran."""
  play = play or Played()
  path = tmp_path / 'tuned.flags'
  argv = ['tune', *arguments, f'--output={path}']
  return command_line.status_of(lambda argv: tune.main(argv, play), argv), play


def _values(tmp_path):
  with experiment_flags.parsed([f'--flagfile={tmp_path / "tuned.flags"}']):
    return experiment_flags.all_values()


def test_it_finds_the_best_and_writes_it_with_the_flags_of_the_run(tmp_path, capsys):
  status, play = _tuned(tmp_path, *_TABLE, '--algorithm=certified', '--cohort_size=9')
  assert status == 0
  values = _values(tmp_path)
  assert values['algorithm'] == 'certified:clip=0.72' and values['client_optimizer'] == 'sgd:learning_rate=25'
  assert (values['local_epochs'], values['rounds'], values['averaging']) == (10, 20, 'planned')
  # The others are those of the run.
  assert (values['dataset'], values['num_clients'], values['cohort_size']) == ('npz:path=absent.npz', 64, 9)
  assert (values['epsilon'], values['model'], values['features']) == (3, 'logistic_regression', 'none')
  out = capsys.readouterr().out
  result = json.loads(out.splitlines()[-1])
  assert result['expected_accuracy'] == 0.9 and result['runs'] == len(play.flags) <= 41
  assert 'Expected on the made federation: 90.0% (seeds 3, 4, 5).' in ' '.join(out.split())


def test_its_runs_are_rehearsals_on_made_data_of_the_stated_shape(tmp_path):
  _, play = _tuned(tmp_path, *_TABLE, '--algorithm=certified', '--partition=iid', '--row_norm=2')
  for base in play.bases:
    with experiment_flags.parsed(base) as values:
      assert values['dataset'].value == 'synthetic:features=12,classes=3,examples=40,norm=2'
      assert (values['num_clients'].value, values['epsilon'].value) == (64, 3)
      assert not values['partition'].present
  assert all('certificate=false' in flags['algorithm'] for flags in play.flags)
  assert {flags['seed'] for flags in play.flags[:-3]} == {'1', '2'}
  assert [flags['seed'] for flags in play.flags[-3:]] == ['3', '4', '5']


def test_no_file_of_data_is_opened(tmp_path, monkeypatch):
  path = tmp_path / 'mine.npz'
  np.savez(path, x=np.zeros([4, 12], np.float32), y=[0, 1, 2, 0], client=[0, 1, 0, 1])
  opened, really_open = [], io.open

  def watched(file, *arguments, **options):
    opened.append(str(file))
    return really_open(file, *arguments, **options)

  for module in (io, builtins):
    monkeypatch.setattr(module, 'open', watched)
  with np.load(path) as kept:
    assert kept.files and str(path) in opened  # This is how one would see it.
  opened.clear()
  assert _tuned(tmp_path, f'--dataset=npz:path={path}', *_TABLE[1:], '--algorithm=certified')[0] == 0
  assert str(path) not in opened


@pytest.mark.parametrize(
  'arguments, chosen, given',
  [
    (
      ['--algorithm=certified'],
      'learning rate, local epochs, clipping norm, rounds, average. ',
      'Given by the user, who says how: budget.',
    ),
    (
      ['--algorithm=certified:clip=0.5', '--local_epochs=2', '--rounds=8', '--tuning=As last year.'],
      'learning rate, average. ',
      'who says how: local epochs, clipping norm, rounds, budget. As last year.',
    ),
  ],
)
def test_the_sentence_claims_what_was_chosen_and_nothing_else(tmp_path, arguments, chosen, given):
  assert _tuned(tmp_path, *_TABLE, *arguments)[0] == 0
  tuning = _values(tmp_path)['tuning']
  assert f'on no data of clients: {chosen}' in tuning and tuning.endswith(given)
  assert 'synthetic:features=12,classes=3,examples=40,norm=3.464' in tuning and 'public' in tuning


def test_what_is_given_stays(tmp_path):
  given = ['--algorithm=certified:clip=0.5', *_GIVEN]
  status, play = _tuned(tmp_path, *_TABLE, *given, play=Played(lambda flags: float(flags['averaging'] == 'none')))
  assert status == 0 and len(play.flags) == 7
  values = _values(tmp_path)
  assert [f'--{name}={values[name]}' for name in ('algorithm', 'client_optimizer', 'local_epochs', 'rounds')] == given
  assert values['averaging'] == 'none'


def test_fedavg_has_no_norm_no_planned_average_and_no_certificate(tmp_path):
  status, play = _tuned(tmp_path, *_TABLE[:-1], '--algorithm=fedavg')
  assert status == 0 and {flags['algorithm'] for flags in play.flags} == {'fedavg'}
  assert {flags['averaging'] for flags in play.flags} == {'none'}
  assert '--tuning' not in (tmp_path / 'tuned.flags').read_text()


@pytest.mark.slow
def test_more_rounds_must_gain_a_point(tmp_path):
  for gain, rounds in ((0.009, 10), (0.011, 20)):
    play = Played(lambda flags: 0.5 + (int(flags['rounds']) > 10) * gain)  # noqa: B023
    _tuned(tmp_path, *_TABLE, '--algorithm=certified', play=play)
    assert _values(tmp_path)['rounds'] == rounds


@pytest.mark.parametrize(
  'arguments, made, features',
  [
    (['--dataset=digits'], 'glyphs:classes=10,copies=467,side=8', 'scattering:scales=1'),
    (['--dataset=mnist', '--examples_per_client=6'], 'glyphs:classes=10,copies=70,side=28', 'scattering'),
    (['--dataset=cifar10', '--features=none'], 'things:classes=10,copies=467', 'none'),
  ],
)
def test_images_are_drawn(tmp_path, arguments, made, features):
  task = None

  def play(folder, base, axes):
    nonlocal task
    with experiment_flags.parsed(base) as values:
      task = values['dataset'].value, values['features'].value
    return [0.5] * len(sweep_runs.combinations(axes))

  assert _tuned(tmp_path, *arguments, '--algorithm=certified', play=play)[0] == 0
  assert task == (made, features)


def test_what_ran_when_time_was_over_decides(tmp_path, capsys):
  numbers = iter(range(1000))

  def score(flags):
    rate = float(flags['client_optimizer'].partition('=')[2])
    return 1 / (1 + rate) if next(numbers) < 3 else None  # The second rate is better, but has one seed only.

  play = Played(score)
  assert _tuned(tmp_path, *_TABLE, '--algorithm=certified', play=play)[0] == 0
  assert _values(tmp_path)['client_optimizer'] == 'sgd:learning_rate=8.33'
  assert 'time was over' in capsys.readouterr().out


def test_no_run_in_time_is_an_error(tmp_path, capsys):
  assert _tuned(tmp_path, *_TABLE, '--algorithm=certified', play=Played(lambda flags: None))[0] == 1
  assert '--minutes' in capsys.readouterr().err and not (tmp_path / 'tuned.flags').exists()


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--algorithm=certified', '--dataset=npz:path=a.npz'], '--shape, --classes, --num_clients: give what you can'),
    (['--algorithm=certified', *_TABLE[:2]], '--classes, --num_clients: give what you can state as public'),
    (['--algorithm=quap', *_TABLE], '--algorithm=quap is not tuned: expected one of certified, fedavg'),
    (['--algorithm=certified', *_TABLE, '--model=mlp'], '--model=mlp is not tuned'),
    (['--algorithm=certified', *_TABLE, '--shape=a'], 'number of columns, or height,width,channels, found a'),
    (['--algorithm=certified', *_TABLE, '--shape=8,9,1'], 'draws square grey images'),
    (['--algorithm=certified', *_TABLE, '--participation=log:path=a.csv'], 'give --rounds'),
    (['--algorithm=fedavg', *_TABLE[:-1], *_GIVEN], 'There is nothing to choose: leave out --client_optimizer'),
    (['--algorithm=certified', *_TABLE, '--no_such=1'], 'no_such'),
    (['--algorithm=certified', *_TABLE, '--rounds=many'], '--rounds must be an integer'),
  ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path, arguments, words, capsys):
  status, play = _tuned(tmp_path, *arguments)
  assert status == 1 and words in capsys.readouterr().err
  assert not play.flags and not (tmp_path / 'tuned.flags').exists()


def test_an_output_is_needed(capsys):
  assert command_line.status_of(tune.main, ['tune', *_TABLE, '--algorithm=certified']) == 1
  assert '--output is missing' in capsys.readouterr().err


# Three runs: the stages are cut to one. In a process of its own, because runs are forked, and a fork of a process in
# which TensorFlow ran hangs.
_SHORT = """
import sys
from experiments import tune
from experiments.command import command_line
from experiments.tuning import search

search.STAGES = (search._averages,)
search.SEEDS, search.FRESH_SEEDS = (1,), (3,)
command_line.run(tune.main)
"""


@pytest.mark.slow
def test_it_runs_and_its_flag_file_is_that_of_a_run(tmp_path):
  pytest.importorskip('tensorflow')
  path = tmp_path / 'tuned.flags'
  argv = [*_TABLE, '--algorithm=certified', '--rounds=2', '--examples_per_client=5', f'--output={path}']
  ended = processes.run([sys.executable, '-c', _SHORT, *argv], cwd=harness.REPOSITORY)
  assert ended.returncode == 0, ended.stderr
  result = json.loads(ended.stdout.splitlines()[-1])
  assert result['runs'] == 3 and 0 <= result['expected_accuracy'] <= 1 and 'minutes left' in ended.stderr
  with experiment_flags.parsed([f'--flagfile={path}', '--dataset=synthetic']):
    experiment_flags.checked_run()
