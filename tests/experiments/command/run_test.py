"""Runs as run.json keeps them; and flags that are wrong or have no effect, refused before data are read."""

import json
import sys
import textwrap

import pytest

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import run as run_lib
from experiments.command import run_choices
from quap_tff.mechanisms.certified import weight_rules
from tests import processes
from tests.experiments import harness


class TestIdentity:
  def _identity(self, *arguments):
    return harness.run(*arguments).identity()

  @pytest.mark.parametrize(
    'argument',
    [
      '--output_dir=x',
      '--data_dir=x',
      '--stop_after=3',
      '--stop_at_accuracy=0.5',
      '--checkpoint_every=2',
      '--eval_every=3',
      '--num_threads=1',
      '--progress=none',
    ],
  )
  def test_how_a_run_is_watched_is_no_part_of_it(self, argument):
    assert self._identity(argument) == self._identity()

  @pytest.mark.parametrize(
    'argument',
    [
      '--dataset=mnist',
      '--num_clients=3',
      '--epsilon=1',
      '--seed=1',
      '--noise_seed=1',
      '--clip=fixed',
      '--rounds=3',
      '--model=mnist_cnn',
      '--runtime=native',
      '--num_workers=3',
      '--batch_size=1',
    ],
  )
  def test_what_is_computed_is(self, argument):
    assert self._identity(argument) != self._identity()


class TestRun:
  def test_every_flag_has_one_group_and_a_help(self):
    grouped = [name for names in experiment_flags.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(experiment_flags.all_values()) == sorted(run_choices.FLAGS)
    assert all(experiment_flags.VALUES[name].help for name in grouped)

  @pytest.mark.parametrize(
    'arguments',
    [
      [],
      ['--algorithm=certified:weights=online:prior_a=2,noise=ar1', '--local_epochs=1..3', '--averaging=tail:start=2'],
      ['--algorithm=scaffold:base=fixed_dp:clip=0.5,option=1', '--runtime=workers', '--num_workers=3'],
    ],
  )
  def test_flags_to_json_and_back(self, arguments):
    run = harness.run(*arguments)
    kept = json.loads(json.dumps({'flags': run.recorded(), 'identity': run.identity()}))
    again = run_lib.Run.from_json(kept)
    assert again.identity() == run.identity() and again.method == run.method and again.local == run.local
    assert again.schedule == run.schedule and again.cohorts == run.cohorts and again.data == run.data

  def test_an_older_version_had_fewer_flags_and_a_later_one_has_more(self):
    older = {'flags': {'rounds': 3}, 'identity': {'algorithm': 'fixed_dp:clip=0.5'}}
    run = run_lib.Run.from_json(older)
    assert (run.schedule.rounds, run.method.clip, run.data.num_clients) == (3, 0.5, None)
    with pytest.raises(ValueError, match='unknown flags .*brand_new'):
      run_lib.Run.from_json({'flags': {}, 'identity': {'brand_new': 1}})

  def test_a_spec_is_a_value_after_it_is_read(self):
    method = harness.run('--algorithm=fednova:base=certified:weights=uniform,clip=0.5', '--epsilon=2').method
    assert method.base.weights == weight_rules.UniformWeights() and (method.base.clip, method.base.epsilon) == (
      0.5,
      2.0,
    )


class TestFields:
  @pytest.mark.parametrize(
    'arguments, words',
    [
      ('--batch_size=0', 'batch_size must be an integer at least 1'),
      ('--proximal_strength=-1', 'proximal_strength must be'),
      ('--max_local_steps=0', 'max_local_steps must be an integer at least 1'),
      ('--client_learning_rate_decay=2', 'client_learning_rate_decay must be'),
      (
        '--cohort_size=101',
        'cohort_size must be at most the number of clients, found cohort_size=101 and num_clients=100',
      ),
      ('--dataset=femnist --num_clients=9 --cohort_size=10', 'cohort_size must be at most'),
      ('--compute_dtype=float16', '--compute_dtype: Unknown'),
      ('--algorithm=certified --epsilon=1000', 'epsilon must be'),
      ('--epsilon=1000', 'or a smaller epsilon'),
      ('--noise_seed=-1', 'noise_seed must be'),
      ('--noise=nowhere', '--noise: Unknown noise placement'),
      ('--clip=fixed:norm=0', '--clip: clipping norm must be'),
      ('--client_optimizer=sgd:learning_rate=0', '--client_optimizer: sgd learning_rate must be'),
      ('--participation=bernoulli:q=2', '--participation: bernoulli q must be'),
      ('--malicious=sign_flip:share=2', '--malicious: share of malicious clients must be'),
      ('--critical_layers=', 'critical_layers is empty. Name a layer, or train without noise (none)'),
      ('--features=scattering:scales=5', '--features: Scattering with scales=5 needs images of at least 32'),
      ('--model=shakespeare_lstm', "--model=shakespeare_lstm does not take the examples of dataset 'digits'"),
      ('--dataset=shakespeare --model=mlp', 'which are sequences of tokens'),
      ('--dataset=femnist --algorithm=certified', '--dataset=femnist:test_writers=0.1'),
      ('--algorithm=tff_dp_fedavg --participation=markov', 'use a --participation for which it is'),
      ('--algorithm=certified --tuning=', '--tuning must be a sentence'),
      ('--cohort_seed=7', "--cohort_seed must be secret, found '7'. Cohorts from a seed that is given are public"),
    ],
  )
  def test_name_the_flag(self, arguments, words):
    assert words in harness.refusal(*arguments.split())

  @pytest.mark.slow
  def test_nothing_is_loaded_for_it(self):
    program = textwrap.dedent("""
        import sys
        from experiments import train
        from experiments.command import command_line
        wrong = '--batch_size=0 --epsilon=0 --cohort_size=200 --algorithm=fedbuff:buffer=99999 --no_such_flag'
        for flags in (['--help'], ['--help', '--algorithm=certified'], *([flag] for flag in wrong.split())):
          status = command_line.status_of(train.main, ['train', *flags])
          assert status == (0 if '--help' in flags else command_line.FAILED), flags
          assert not [name for name in sys.modules if name.startswith(('tensorflow', 'jax'))], flags
    """)
    done = processes.run([sys.executable, '-c', program], cwd=harness.REPOSITORY)
    assert done.returncode == 0, done.stderr


class TestCohorts:
  @pytest.mark.parametrize('buffer, rounds', [(100, 10), (31, 10)])
  def test_a_buffer_that_never_fills(self, buffer, rounds):
    message = harness.refusal(
      f'--algorithm=fedbuff:buffer={buffer}',
      f'--rounds={rounds}',
      '--num_clients=10',
      '--cohort_size=3',
      '--noise=none',
    )
    assert '30 updates arrive in all of the 10 planned rounds' in message and 'at most 30' in message

  def test_a_buffer_that_fills_at_the_end(self):
    harness.check('--algorithm=fedbuff:buffer=30', '--rounds=10', '--num_clients=10', '--cohort_size=3', '--noise=none')

  def test_how_many_clients_there_are_is_not_guessed(self):
    arguments = ['--participation=separated:min_separation=3', '--cohort_size=3']
    assert 'needs at least 9 clients' in harness.refusal('--num_clients=8', *arguments)
    harness.check('--dataset=femnist', *arguments)

  def test_more_clusters_than_clients(self):
    assert 'at most 10 clusters' in harness.refusal('--algorithm=fedapca:clusters=100', '--num_clients=10')
    harness.check('--algorithm=fedapca:clusters=10', '--num_clients=10')


class TestWithoutEffect:
  @pytest.mark.parametrize(
    'arguments, words',
    [
      ('--ema_weight=0.5', '--ema_weight: it is the weight for --participation_rate=ema'),
      ('--checkpoint_every=3', '--checkpoint_every: nothing is kept without a folder'),
      ('--keep_checkpoints', '--keep_checkpoints: nothing is kept'),
      ('--algorithm=certified --signing_key=key.pem', '--signing_key: nothing is kept'),
      ('--output_dir=never --signing_key=key.pem', '--signing_key: this flag signs a certificate'),
      ('--algorithm=certified:count_stddev=20', 'count_stddev=20 is the noise on the counts of a private quantile'),
      ('--algorithm=certified:count_stddev=0', 'give quantile'),
    ],
  )
  def test_is_refused_on_the_command_line(self, arguments, words):
    assert words in harness.refusal(*arguments.split())

  @pytest.mark.parametrize(
    'arguments',
    [
      '--ema_weight=0.5 --participation_rate=ema',
      '--checkpoint_every=3 --keep_checkpoints --output_dir=never',
      '--algorithm=certified:count_stddev=30,quantile=0.5',
    ],
  )
  def test_with_an_effect(self, arguments):
    harness.check(*arguments.split())

  def test_a_flag_file_may_hold_them(self, tmp_path):
    (tmp_path / 'some.flags').write_text('--ema_weight=0.5\n--checkpoint_every=3\n')
    harness.check(f'--flagfile={tmp_path / "some.flags"}')


class TestNumbers:
  @pytest.mark.parametrize(
    'argument',
    [
      '--num_clients=1_000',
      '--rounds=١٠',
      '--epsilon=６',
      '--delta=1e-0_5',
      '--local_epochs=1_0',
      '--local_epochs=1..٥',
      '--algorithm=fixed_dp:clip=1_0',
      '--participation=beta:a=２',
      '--algorithm=certified:own=0.5/1/0.5/٦',
      '--algorithm=certified:noise_multiplier=1_0',
    ],
  )
  def test_other_digits_and_underscores_are_refused(self, argument):
    name, value = argument.removeprefix('--').split('=', 1)
    message = harness.refusal(argument)
    assert name in message and value.rpartition('=')[2] in message

  def test_of_other_binaries(self):
    values = command_line.new_flags()
    experiment_flags.flags.DEFINE_integer('count', 1, 'n', flag_values=values)
    with pytest.raises(ValueError, match='digits 0 to 9'):
      command_line.parse(values, ['name', '--count=1_0'])
    command_line.parse(values, ['name', '--count=-10'])
    assert values.count == -10
