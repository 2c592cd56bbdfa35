"""Runs of each kind, exported, with five rounds as TFF plays them.

python -m tests.quap_tff.bundle.kinds FOLDER      for `tests.quap_tff.bundle.playing` in another environment
"""

import collections
import dataclasses
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.systems import fedvarp
import quap_tff
from quap_tff import plans
from quap_tff import runtime
from quap_tff.bundle import structures
from quap_tff.common import files
from quap_tff.federated.stock import stock as stocks
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.training import evaluation
from tests.quap_tff import examples
from tests.quap_tff.bundle import playing

CLIENTS, CLASSES = 6, 3
SCHEDULE = [np.array(one) for one in ([0, 2, 3], [1, 2, 5], [0, 4], [1, 2, 3, 5], [0, 3])]
_PREVIOUS = clip_rules.QuantileEma(timing='previous', initial_clip=1.0)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A run.

  Attributes:
    plan: Makes the plan; None for a process of TFF's own.
    process: Makes that process, from a `model_fn`.
    model: The model's name.
    shape: The shape of an example.
    draws: Whether TFF draws its noise without a seed, so that no two runs have the same states.
  """

  plan: Any = None
  process: Any = None
  model: str = 'linear_features'
  shape: tuple[int, ...] = (8,)
  draws: bool = False

  @property
  def model_fn(self):
    return quap_tff.models.build_model_fn(self.model, self.shape, CLASSES)

  def examples(self, client):
    generator = np.random.default_rng(client)
    x = generator.random((7 + client, *self.shape), np.float32)
    return collections.OrderedDict(x=x, y=generator.integers(0, CLASSES, len(x)).astype(np.int32))


def _certified(options=None, **changes):
  fields = {'num_clients': CLIENTS, 'clip': clip_rules.Fixed(0.5), **changes}
  return Kind(lambda: plans.Plan.certified(examples.guarantee(**fields), SCHEDULE, **(options or {})))


def _quap(**changes):
  budget = BudgetConfig(4.0, 8)
  fields = dict(num_clients=CLIENTS, budget=budget, clip=_PREVIOUS, noise=NoiseConfig(calibration='analytic'))
  return Kind(lambda: plans.Plan(quap_tff.QuapConfig(**{**fields, **changes})))


def _stock():
  config = examples.quap(
    num_clients=CLIENTS,
    budget=BudgetConfig(4.0, 5, round_rule='uniform'),
    critical_layers=layers.ALL,
    noise=NoiseConfig(calibration='analytic'),
  )
  return plans.stock_plan(stocks.DpFedAvg(1.0), config, SCHEDULE, 3.0)


def _tff(model_fn):
  return tff.learning.algorithms.build_weighted_fed_avg(
    model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
  )


def _tff_dp(model_fn):
  aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(2.0, 3.0, 1.0)
  return tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1), model_aggregator=aggregator
  )


_OWN = dict(own_epsilon=(3.0, 1.0, 2.0, 3.0, 1.0, 2.0))
# Every correlation of the noise and every weight rule once, and the other ways in which a certified round may differ.
KINDS = {
  'independent': _certified(weights=weight_rules.ParticipationWeights()),
  'ar1': _certified(correlation=correlation.Ar1(0.9), weights=weight_rules.Online()),
  'banded': _certified(correlation=correlation.Banded(3, (0.5, 0.25)), weights=weight_rules.SpendEvenly()),
  'blt': _certified(correlation=correlation.Blt((0.3, 0.2), (0.9, 0.5)), weights=weight_rules.WorstCase()),
  'held': _certified(correlation=correlation.HeldNoise(0.5)),
  'counted norms': _certified(clip=clip_rules.PrivateQuantile(initial_clip=0.5), weights=weight_rules.UniformWeights()),
  'sparse': _certified(dict(sparsity=sparsity.RandomMask(0.5)), weights=weight_rules.ScaledWeights(), **_OWN),
  'fedvarp': _certified(dict(extension=fedvarp.FedVarp(memory='released')), weights=weight_rules.Sample(), **_OWN),
  'convolutions': dataclasses.replace(_certified(), model='digits_cnn', shape=(8, 8, 1)),
  'quap': _quap(),
  'fedavg': _quap(clip=clip_rules.Unclipped(), noise=NoiseConfig('none')),
  'fedavg, convolutions': dataclasses.replace(
    _quap(clip=clip_rules.Unclipped(), noise=NoiseConfig('none')), model='digits_cnn', shape=(8, 8, 1)
  ),
  'stock dp_fedavg': Kind(_stock, draws=True),
  'tff fed_avg': Kind(process=_tff),
  'tff dp_fedavg': Kind(process=_tff_dp, draws=True),
}


def _data(kind, client, answers):
  examples_of = tf.data.Dataset.from_tensors(kind.examples(client))
  if kind.plan is None:
    return examples_of
  parts = collections.OrderedDict(client_id=tf.data.Dataset.from_tensors(np.int64(client)))
  if answers is not None:
    parts['answer'] = tf.data.Dataset.from_tensors(answers[client])
  parts['examples'] = examples_of
  return parts


def _leaves(value):
  return tff.structure.flatten(tff.structure.from_container(value, recursive=True))


def export(name, folder):
  """Writes the bundle of a kind, and what TFF gives: with TFF's context that is active, or in process."""
  kind = KINDS[name]
  plan = kind.plan() if kind.plan is not None else None
  model_fn = kind.model_fn
  built = plan.build_process(model_fn) if plan is not None else kind.process(model_fn)
  process = built.process if plan is not None else built
  path = os.path.join(folder, 'bundle')
  quap_tff.export(built, path, model_fn=model_fn)
  kept = {f'{part}{i}': value for i in range(CLIENTS) for part, value in kind.examples(i).items()}
  kept.update({'draws': np.array(1)} if kind.draws else {}, **({'no_ids': np.array(1)} if plan is None else {}))
  guarded = guarded_clients.GuardedClients(plan, b'of the test') if plan is not None and plan.holds_noise else None
  ledger = plan.new_ledger() if plan is not None else None

  def keep(what, round_num, value):
    found = _leaves(value)
    kept[f'{what}_leaves'] = np.array(len(found))
    kept.update({f'{what}{round_num}_{i}': np.asarray(leaf) for i, leaf in enumerate(found)})

  bundle = quap_tff.Bundle(path)
  state = process.initialize()
  keep('state', 0, state)
  for t, cohort in enumerate(SCHEDULE, 1):
    answers = guarded.answers(t, cohort) if guarded is not None else None
    output = process.next(state, [_data(kind, client, answers) for client in cohort.tolist()])
    kept[f'cohort{t}'] = cohort
    for client in cohort.tolist() if answers is not None else ():
      kept.update({f'answer{t}_{client}_{field}': np.asarray(v) for field, v in answers[client].items()})
    packed = structures.pack(bundle.state_type, iter(_leaves(state)))
    message, total = bundle.prepare(packed), bundle.zero()
    for client in cohort.tolist():
      total = bundle.add(total, bundle.work(playing.client_data(kept, t, client), message))
    kept.update({f'total{t}_{i}': np.asarray(leaf) for i, leaf in enumerate(playing.leaves(total))})
    state = output.state
    keep('state', t, state)
    keep('metrics', t, output.metrics)
    if ledger is not None:
      ledger.append(plan.record(output, cohort))
  evaluate = evaluation.build_evaluation(model_fn)
  tested = evaluate(process.get_model_weights(state), kept['x0'], kept['y0'])
  kept.update({f'tested_{field}': np.asarray(value) for field, value in tested.items()})
  if ledger is not None:
    kept.update({f'ledger_{field}': value for field, value in ledger.state_dict().items()})
  files.write(os.path.join(folder, 'expected.npz'), files.npz(kept))


if __name__ == '__main__':
  with runtime.activate():
    for own in sys.argv[2:] or KINDS:
      target = os.path.join(sys.argv[1], own.replace(' ', '_'))
      os.makedirs(target)
      export(own, target)
