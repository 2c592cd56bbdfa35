"""Tests that every certified plan compiles to TFF's forms, and that their own functions play the same round."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import fedvarp
from quap_tff import plans
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff import examples
from tests.quap_tff import linear_model
from tests.quap_tff import without_noise

pytestmark = pytest.mark.slow

_SCHEDULE = examples.SCHEDULE
_SECRET = b'of the simulation'
_HELD = dict(correlation=correlation.HeldNoise(0.5))
_PLANS = {
  'independent': ({}, {}),
  'ar1': (dict(correlation=correlation.Ar1(0.9), num_rounds=3), {}),
  'private quantile': (dict(clip=clip_rules.PrivateQuantile(initial_clip=0.5)), {}),
  'sparse': ({}, dict(sparsity=sparsity.RandomMask(0.5))),
  'fedvarp': ({}, dict(extension=fedvarp.FedVarp(memory='released'))),
  'held': (_HELD, {}),
  'held, independent': (dict(correlation=correlation.HeldNoise(0.0), threshold=0.5), {}),
}


def _plan(name):
  changes, options = _PLANS[name]
  values = dict(num_clients=4, epsilon=3.0, delta=1e-5, clip=clip_rules.Fixed(0.5), noise_seed=3)
  return plans.Plan.certified(examples.guarantee(**{**values, **changes}), _SCHEDULE, certificate=False, **options)


def _clients(plan, round_num):
  """The clients' data of a round, after the rounds before it."""
  answers = dict.fromkeys(_SCHEDULE[round_num - 1])
  if plan.holds_noise:
    guarded = guarded_clients.GuardedClients(plan, _SECRET)
    for t, cohort in enumerate(_SCHEDULE[:round_num], 1):
      answers = guarded.answers(t, cohort)
  return [linear_model.client(int(client), y=1.0 + client, answer=answer) for client, answer in answers.items()]


def _map_reduce(process, state, clients):
  """A round by the functions of a `MapReduceForm`."""
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
  message = form.prepare(state)  # To every client.
  updates = [form.work(data, message) for data in clients]  # On each client, or a shard of clients.
  total = form.zero()
  for update in updates:
    total = form.accumulate(total, update[0])  # Plain sums.
  modulus = form.secure_modular_sum_modulus()  # Of sums that the server must not see apart.
  parts = [update[3] for update in updates]
  secure = tf.nest.map_structure(lambda m, *values: sum(values) % m, modulus, *parts)
  report = form.report(form.merge(total, form.zero()))
  state, output = form.update(state, (report, (), (), secure)).values()
  return state, output


def _distribute_aggregate(process, state, clients):
  form = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(process.next)
  broadcast, kept = form.server_prepare(state).values()
  message = form.server_to_client_broadcast(broadcast)
  work = form.client_work(clients, message)
  return form.server_result(kept, form.client_to_server_aggregation(kept, work))


# The rest are the same forms around other choices.
_NOISED = ('independent', 'held, independent')
_FIRST = ('independent',)


@pytest.fixture(
  scope='module', params=[pytest.param(name, marks=() if name in _FIRST else pytest.mark.thorough) for name in _PLANS]
)
def played(request, context):
  """A plan's process, the clients of its second round, the state before that round, and the round."""
  plan = _plan(request.param)
  # To draw noise takes most of the time: one plan of each kind does.
  with contextlib.nullcontext() if request.param in _NOISED else without_noise.used():
    process, clients = plan.build_process(linear_model.Linear).process, _clients(plan, 2)
  state = process.next(process.initialize(), _clients(plan, 1)).state
  return process, clients, state, process.next(state, clients)


@pytest.mark.parametrize('play', [_map_reduce, pytest.param(_distribute_aggregate, marks=pytest.mark.thorough)])
def test_a_round_of_the_form_is_the_round(play, played):
  process, clients, state, expected = played
  found = play(process, state, clients)
  flat = lambda value: tff.structure.flatten(tff.structure.from_container(value, recursive=True))
  assert len(flat(expected)) == len(flat(found)) > 15
  for one, other in zip(flat(expected), flat(found)):
    np.testing.assert_array_equal(one, other)
