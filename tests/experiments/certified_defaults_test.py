"""What `--algorithm=certified` is if nothing more is given."""

import pytest

from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from tests.experiments import harness
from tests.experiments import library as runs


class TestDefaults:
  @pytest.mark.parametrize(
    'parameters, weights, noise',
    [
      ('', weight_rules.Online(), correlation.Ar1()),
      (':weights=auto,noise=auto', weight_rules.Online(), correlation.Ar1()),
      (':noise=blt', weight_rules.Online(), correlation.Blt()),
      (':weights=uniform', weight_rules.UniformWeights(), correlation.Ar1()),
      (':trust=secure_sum', weight_rules.SpendEvenly(), correlation.HeldNoise()),
      (':trust=secure_sum,threshold=0.5', weight_rules.SpendEvenly(), correlation.Independent()),
      (':trust=secure_sum,noise=independent', weight_rules.SpendEvenly(), correlation.Independent()),
    ],
  )
  def test_weights_and_noise_follow_the_trust(self, parameters, weights, noise):
    method = harness.run(f'--algorithm=certified{parameters}').method
    assert (method.weight_rule, method.correlation) == (weights, noise)

  @pytest.mark.parametrize(
    'spec, optimizer, norm',
    [
      ('', 'sgd', 0.25),
      (':clip=auto', 'sgd:learning_rate=0.5', 0.5),
      (':trust=secure_sum', 'sgd:learning_rate=0.5,momentum=0.9', 0.05),
      (':quantile=0.5', 'adam:learning_rate=0.1', 0.25),
      (':clip=0.7', 'sgd', 0.7),
      (':clip=0.7,quantile=0.5', 'sgd', 0.7),
    ],
  )
  def test_the_clipping_norm_follows_rounds_and_the_servers_step(self, spec, optimizer, norm):
    arguments = [f'--algorithm=certified{spec}', '--rounds=40', f'--server_optimizer={optimizer}']
    assert harness.configured(*harness.TINY, *arguments).clip.initial_norm == pytest.approx(norm)

  @pytest.mark.thorough
  @pytest.mark.slow
  @pytest.mark.parametrize('name', ['certified', 'certified_stopped'])
  def test_a_norm_that_nobody_chose_is_named_before_the_first_round(self, name, library):
    said = 'No clipping norm was given, so it is 0.125, by --rounds' in library.run(name).err
    assert said == ('clip' not in runs.RUNS[name][0])

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_nor_is_one_of_a_base(self, capsys):
    flags = ('--algorithm=scaffold:base=certified', '--rounds=2', '--stop_after=1')
    assert harness.main(*harness.TINY, *flags) == 0
    assert 'No clipping norm was given, so it is 0.5, by --rounds' in capsys.readouterr().err

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_they_learn_where_independent_noise_and_a_norm_of_one_do_not(self):
    arguments = '--num_clients=100 --cohort_size=30 --rounds=100 --epsilon=6 --noise_seed=1 --eval_every=100'.split()

    def accuracy(parameters):
      method = f'--algorithm=certified:certificate=false{parameters}'
      return harness.trained(harness.experiment(*harness.TINY, *arguments, method)).test['accuracy']

    assert accuracy('') > 0.6 > accuracy(',weights=participation,noise=independent,clip=1')
