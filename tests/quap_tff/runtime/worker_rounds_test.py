"""Rounds on several workers: the bits of their results, and what is left of a round in which a worker dies."""

import collections
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import quap_tff
from quap_tff import runtime
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.runtime import workers
from tests.quap_tff import examples
from tests.quap_tff import linear_model
from tests.quap_tff.runtime import comparison

pytestmark = pytest.mark.slow

_COHORTS = ([0, 1, 2, 3, 4], [5, 1, 6, 7, 2])


def _quap():
  """QuAP-FL with noise, aggregating once a round."""
  return quap_tff.Plan(
    quap_tff.QuapConfig(
      num_clients=8,
      budget=BudgetConfig(epsilon_total=1.0, num_rounds=2),
      clip=clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
      noise=NoiseConfig(seed=5),
    )
  )


def _certified(trust):
  """A certified run, of which clients hold the noise if the server is not trusted."""
  held = dict(correlation=correlation.HeldNoise(0.5)) if trust == 'secure_sum' else {}
  config = examples.guarantee(num_clients=8, clip=clip_rules.Fixed(0.5), noise_seed=5, **held)
  return quap_tff.Plan.certified(config, _COHORTS, certificate=False)


def _client(client_id, answer=None):
  random = np.random.RandomState(client_id)
  examples = collections.OrderedDict(
    x=random.normal(size=(6, 4)).astype(np.float32), y=random.normal(size=(6, 3)).astype(np.float32)
  )
  parts = [] if answer is None else [('answer', answer)]
  parts = [('client_id', np.int64(client_id)), *parts, ('examples', examples)]
  return collections.OrderedDict((name, tf.data.Dataset.from_tensors(part)) for name, part in parts)


class _Run:
  """Rounds, one at a time; a round counts when it has returned, as in `experiments.running.loop`."""

  def __init__(self, plan, in_order=list):
    self._plan, self._in_order = plan, in_order
    work = quap_tff.ClientWorkConfig(seed=1)
    self._process = plan.build_process(linear_model.functional(4, 3), client_work=work).process
    is_held = getattr(plan, 'holds_noise', False)
    self._guarded = guarded_clients.GuardedClients(plan, b'a secret') if is_held else None
    self.ledger = plan.new_ledger()
    self.state = self._process.initialize()
    self.outputs = []

  def round(self):
    cohort = _COHORTS[len(self.outputs)]
    answers = {} if self._guarded is None else self._guarded.answers(len(self.outputs) + 1, cohort)
    output = self._process.next(self.state, [_client(client, answers.get(client)) for client in self._in_order(cohort)])
    self.state = output.state
    self.ledger.append(self._plan.record(output, cohort))
    self.outputs.append(output)


def _played(plan, config, in_order=list):
  """Two rounds."""
  with runtime.activate(config):
    run = _Run(plan, in_order)
    run.round()
    run.round()
  return run


def _here():
  return runtime.RuntimeConfig(device='cpu', num_threads=2)


def _workers(count):
  return runtime.RuntimeConfig('workers', num_workers=count)


def _assert_same(found, expected):
  comparison.assert_same(found.outputs, expected.outputs, tolerance=0)
  comparison.assert_same(dict(found.ledger.state_dict()), dict(expected.ledger.state_dict()), tolerance=0)


@pytest.mark.thorough
@pytest.mark.parametrize('trust', ['server', pytest.param('secure_sum', marks=pytest.mark.thorough)])
def test_a_certified_run_of_a_linear_model_has_the_bits_of_one_process(trust):
  """With any number of workers, and with clients in another order."""
  plan = _certified(trust)
  expected = _played(plan, _here())
  assert all(multiplier > 0 for multiplier in expected.ledger.state_dict()['noise_multipliers'])
  for count in (1, 3):
    _assert_same(_played(plan, _workers(count), in_order=reversed), expected)


@pytest.mark.thorough
def test_a_run_of_quap_has_those_of_one_process_but_for_the_order_of_sums():
  plan = _quap()
  found, again, expected = (_played(plan, config) for config in (_workers(2), _workers(2), _here()))
  _assert_same(found, again)
  comparison.assert_same(found.outputs, expected.outputs, tolerance=1e-5)


@pytest.mark.thorough
def test_a_round_in_which_a_worker_dies_fails_and_can_be_called_again_on_others(monkeypatch):
  """The noise of the round that failed is the noise of the one that was called again."""
  plan = _quap()
  expected = _played(plan, _workers(2))
  with runtime.activate(_workers(2)) as context:
    run = _Run(plan)
    run.round()
    state, ledger = run.state, dict(run.ledger.state_dict())
    victim, compute = context.workers[1], workers._Stub.compute

    def disturbed(stub, request):  # It has begun its part, and its result is asked for.
      if stub.worker is victim:
        os.kill(victim.pid, signal.SIGKILL)
      return compute(stub, request)

    monkeypatch.setattr(workers._Stub, 'compute', disturbed)
    with pytest.raises(runtime.WorkerError, match=f'process {victim.pid}'):
      run.round()
    assert run.state is state and len(run.outputs) == 1
    comparison.assert_same(dict(run.ledger.state_dict()), ledger, tolerance=0)
  with runtime.activate(_workers(2)):
    run.round()
  _assert_same(run, expected)
