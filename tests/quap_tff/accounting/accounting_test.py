"""What is said of a configuration."""

import pytest

from experiments.systems import pt_adp
from quap_tff import accounting
from quap_tff.accounting import protection
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.quap import config

N = 7
LAYERS = (
  layers.Layer('conv', (0, 1), False),
  layers.Layer('dense', (2, 3), True),
  layers.Layer('logits', (4, 5), True),
)
SHAPES = ((5, 10), (5,), (10, 10), (10,), (10, 3), (5,))


class TestDescribeProtection:
  def _describe(self, **fields):
    noise = config.NoiseConfig(placement=fields.pop('placement', 'server'), seed=fields.pop('seed', None))
    logs = (protection.TRAINING_METRICS,) if fields.pop('client_metrics_logged', False) else ()
    fields = {'critical_layers': 'all', 'clip': clip_rules.Fixed(1.0), **fields}
    described = accounting.describe_protection(
      config.QuapConfig(num_clients=N, noise=noise, **fields).facts, layers.ModelShape(LAYERS, SHAPES), logs
    )
    assert described.statement in described.text and described.covers in accounting.COVERS
    return described

  @pytest.mark.parametrize('metrics', [True, False])
  def test_layer_wise(self, metrics):
    found = self._describe(critical_layers='final_dense', clip=clip_rules.QuantileEma(), client_metrics_logged=metrics)
    assert not found.model_protected and found.covers == 'nothing'
    assert 'layer logits only: 35 of 200 trained weights (17.50%)' in found.text
    for words in ('No finite ε for the released model', 'other layers come from un-noised averages'):
      assert words in found.statement
    assert "un-noised function of the clients' update norms" in found.statement
    assert ('exact and not protected' in found.text) == metrics

  def test_several_layers(self):
    found = self._describe(critical_layers='all_dense')
    assert not found.model_protected and found.covers == 'nothing'
    assert 'dense, logits only: 145 of 200' in found.text and 'No finite ε for the released model' in found.statement
    assert 'update norms' not in found.statement

  @pytest.mark.parametrize('placement', ['server', 'client'])
  def test_everything_that_is_released_is_noised(self, placement):
    found = self._describe(placement=placement)
    assert found.model_protected and found.covers == 'released model'
    assert 'every layer: all 200 trained weights' in found.text
    assert 'no finite' not in found.text and 'seed' not in found.text and 'exact' not in found.text

  def test_every_layer_under_an_exact_quantile(self):
    found = self._describe(clip=clip_rules.QuantileEma())
    assert not found.model_protected and found.covers == 'nothing'
    for words in ('No finite ε for the released model', 'clipping norm'):
      assert words in found.statement
    assert 'averages' not in found.statement and 'metrics' not in found.statement

  @pytest.mark.parametrize('stddev, expected', [(1.0, 'released model'), (0.0, 'nothing')])
  def test_every_layer_under_a_private_quantile(self, stddev, expected):
    found = self._describe(clip=clip_rules.PrivateQuantile(count_stddev=stddev))
    assert found.covers == expected and found.model_protected == (stddev > 0)

  def test_exact_metrics_beside_a_noised_model(self):
    found = self._describe(client_metrics_logged=True)
    assert found.covers == 'weights without the logs'
    for words in ('no finite ε for the release as a whole', 'metrics', '--noclient_metrics', 'logs stay secret'):
      assert words in found.statement
    assert 'clipping norm' not in found.statement
    assert 'exact and not protected' in found.text
    # The model is trained on nothing but noised values all the same.
    assert found.model_protected

  def test_a_model_that_is_not_known_yet_is_covered_only_if_the_configuration_says_so(self):
    for selection, covers in (('all', 'released model'), ('final_dense', 'nothing')):
      settings = config.QuapConfig(num_clients=N, clip=clip_rules.Fixed(1.0), critical_layers=selection)
      assert accounting.describe_protection(settings.facts, None, ()).covers == covers

  def test_tests_on_the_clients_own_examples_are_exact_values(self):
    settings = config.QuapConfig(num_clients=N, clip=clip_rules.Fixed(1.0), critical_layers='all')
    found = accounting.describe_protection(settings.facts, None, (protection.CLIENTS_TESTS,))
    assert found.covers == 'weights without the logs' and 'test examples of the clients themselves' in found.statement

  def test_metrics_are_taken_to_be_logged_unless_said_otherwise(self):
    described = accounting.describe_protection(
      config.QuapConfig(num_clients=N, clip=clip_rules.Fixed(1.0), critical_layers='all').facts,
      layers.ModelShape(LAYERS, SHAPES),
    )
    assert described.covers == 'weights without the logs'

  @pytest.mark.parametrize('critical', ['all', 'final_dense'])
  def test_noise_that_goes_by_the_data(self, critical):
    budget = budgets.BudgetConfig(0.5, 2, client_rule=pt_adp.PtAdp(), round_rule='each_own')
    found = self._describe(critical_layers=critical, budget=budget)
    assert found.covers == 'nothing' and not found.model_protected
    assert 'noise level, follow' in found.statement and 'No finite ε for the released model' in found.statement

  def test_no_noise(self):
    found = self._describe(placement='none')
    assert found.covers == 'nothing' and not found.model_protected
    assert 'nothing is protected' in found.text and 'no finite ε for the released model' in found.statement

  def test_a_seed_that_was_given_protects_nothing(self):
    for fields in ({}, {'critical_layers': 'final_dense'}):
      found = self._describe(seed=3, **fields)
      assert found.covers == 'nothing' and 'seed of the noise was given' in found.statement
