"""Flags that are wrong: refused before TensorFlow is loaded, by their own names; and flags that have no effect."""

import subprocess
import sys
import textwrap

import pytest

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from tests.experiments import harness


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
      ('--runtime=workers --worker_addresses=host', 'worker_addresses must be host:port'),
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
    done = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, cwd=harness.REPOSITORY, check=False
    )
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
