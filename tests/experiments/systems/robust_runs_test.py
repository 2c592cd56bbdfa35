"""--aggregator and --malicious in a run: what is refused, and what malicious clients do to it."""

import numpy as np
import pytest

from experiments.running import loop
from experiments.systems import malicious
from experiments.systems import robust
from quap_tff import runtime
from tests.experiments import harness


def _experiment(*arguments):
  return harness.experiment(*harness.TINY, *arguments)


class TestFlags:
  @pytest.mark.parametrize('algorithm', ['certified', 'tff_dp_fedavg', 'tff_dp_ftrl', 'lee_kifer'])
  def test_methods_whose_account_is_about_a_sum_refuse_it(self, algorithm):
    with pytest.raises(ValueError, match='--aggregator=median.*no certificate and no formal figure'):
      harness.check(*harness.TINY, f'--algorithm={algorithm}', '--aggregator=median')
    harness.check(*harness.TINY, f'--algorithm={algorithm}')

  @pytest.mark.slow
  @pytest.mark.parametrize('algorithm', ['quap', 'fedavg', 'fixed_dp', 'pt_adp', 'd2dp', 'acdp', 'dynamic_budget'])
  def test_other_methods_take_it(self, algorithm):
    config = _experiment(f'--algorithm={algorithm}', '--aggregator=trimmed_mean:share=0.3', '--epsilon=1').plan.config
    assert config.aggregator == robust.TrimmedMean(0.3)

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (['--aggregator=medain'], "'median'"),
      (['--malicious=sign'], "'sign_flip'"),
      (['--malicious=scaling:share=2'], 'share of malicious clients'),
      (['--algorithm=fedapca', '--aggregator=median'], 'each_own'),
      (['--algorithm=fixed_dp', '--aggregator=median', '--calibration=exact'], '--calibration=exact'),
    ],
  )
  def test_refused_in_words(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      _experiment(*arguments)


@pytest.mark.slow
class TestAttacks:
  def test_labels_of_malicious_clients_are_flipped_and_nothing_else(self):
    honest, attacked = _experiment().federation, _experiment('--malicious=label_flip:share=0.25').federation
    who = malicious.LabelFlip(0.25).clients(8, 42)
    assert len(who) == 2
    for client, (a, b) in enumerate(zip(honest.clients, attacked.clients)):
      np.testing.assert_array_equal(b.y, 9 - a.y if client in who else a.y)
      np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(honest.test.y, attacked.test.y)

  @pytest.mark.parametrize(
    'spec, factor',
    [('sign_flip:share=1,factor=3', -3.0), pytest.param('scaling:share=1,factor=10', 10.0, marks=pytest.mark.thorough)],
  )
  @pytest.mark.thorough
  def test_updates_of_malicious_clients_are_multiplied(self, spec, factor):
    moves = []
    for experiment in (_experiment('--algorithm=fedavg'), _experiment('--algorithm=fedavg', f'--malicious={spec}')):
      with runtime.activate(experiment.runtime):
        process = experiment.build_process().process
        state = process.initialize()
        before = process.get_model_weights(state).trainable
        after = process.get_model_weights(process.next(state, [loop.client_data(experiment, 3)]).state).trainable
      moves.append([np.asarray(b) - np.asarray(a) for a, b in zip(before, after)])
    for honest, attacked in zip(*moves):
      assert np.abs(honest).max() > 0
      np.testing.assert_allclose(attacked, factor * honest, rtol=1e-3, atol=1e-6)

  def test_only_malicious_clients_attack(self):
    who = set(malicious.SignFlip(0.25).clients(8, 42).tolist())
    weights = []
    for arguments in ([], ['--malicious=sign_flip:share=0.25']):
      experiment = _experiment('--algorithm=fedavg', *arguments)
      with runtime.activate(experiment.runtime):
        process = experiment.build_process().process
        state = process.initialize()
        weights.append(
          [
            np.asarray(
              process.get_model_weights(process.next(state, [loop.client_data(experiment, client)]).state).trainable[0]
            )
            for client in range(8)
          ]
        )
    differ = {client for client in range(8) if not np.array_equal(weights[0][client], weights[1][client])}
    assert differ == who
