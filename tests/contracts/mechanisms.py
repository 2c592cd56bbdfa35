"""The contract of mechanisms: what a run of any of them keeps in TFF, in its ledger, on disk and in its certificate.

    class TestMine(mechanisms.MechanismContract):

      @pytest.fixture(scope='class')
      def plan(self):
        return …            # a plan of five clients over `SCHEDULE`; pytest does the rest

So a mechanism of a program of your own keeps it as those of this project do (`registered_test.py`). `FunctionsContract`
is the part that needs no TFF computation: it plays the same rounds as plain functions, in a fraction of the time.
"""

import collections
import dataclasses
import json
from typing import Any, Callable, Optional

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from data import cohorts
from quap_tff import accounting
from quap_tff import certificates
from quap_tff import methods
from quap_tff import plans
from quap_tff import runtime
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files
from quap_tff.common import registry
from quap_tff.common.numbers import samplers
from quap_tff.federated import aggregation
from quap_tff.federated import leaving_clients
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.parts import layers
from quap_tff.training import client_update
from tests.quap_tff import compiled_loops
from tests.quap_tff import linear_model
from tests.quap_tff import remembered_curves
from tests.quap_tff import rounds as pure_rounds
from tests.quap_tff.certificates import made

NUM_CLIENTS = 5
SCHEDULE = [np.array(cohort, np.int64) for cohort in ([0, 2, 3], [1, 2], [], [0, 3, 4])]
_WIDTHS, _LEARNING_RATE = (1, 2, 2), 0.5
_SPECS = [tf.TensorSpec(shape, tf.float32) for shape in zip(_WIDTHS[:-1], _WIDTHS[1:])]
MODEL = layers.ModelShape(layers.from_shapes([spec.shape for spec in _SPECS]), tuple(tuple(s.shape) for s in _SPECS))
# What a client says of itself in addition to its id.
_OWN = {'staleness': tff.to_type(np.int32), 'answer': tff.types.tensorflow_to_type(client_update.answer_spec())}
_ABOUT = certificates.About('data', 'A schedule that was written by hand.', 'By theory.', 'None.', tests=0)
# Of a round's record: what no plan knows, and what says how the record was made.
_NOT_PLANNED = {'clipping_norms'}


@dataclasses.dataclass
class Run:
  """A run of a plan over `SCHEDULE`.

  Attributes:
    plan: The plan.
    states: The state before the first round, and after each one.
    outputs: What each round gave.
    ledger: The rounds as recorded.
    model: The model's weights after the last round.
    replay: Plays a round, by its number from 1, once more from a state; returns what it gives.
    record: The cost of the round that gave an output, if this cohort was in it.
    built: The process that TFF runs, with its plan; None where rounds are plain functions.
  """

  plan: plans.Plan
  states: list[Any]
  outputs: list[Any]
  ledger: accounting.RunLedger
  model: list[np.ndarray]
  replay: Callable[[int, Any], Any]
  record: Callable[[Any, Any], accounting.RoundRecord]
  built: Optional[plans.BuiltProcess] = None

  def state_before(self, round_num: int) -> Any:
    """The state before a round, from 1, as it comes from a checkpoint."""
    return tf.nest.map_structure(np.array, self.states[round_num - 1])


def setting() -> methods.Setting:
  """The setting in which a method plans a run over `SCHEDULE`."""
  population = cohorts.Population(NUM_CLIENTS, 2, seed=0)
  return methods.Setting(
    NUM_CLIENTS,
    rounds=len(SCHEDULE),
    participation=cohorts.ParticipationModel(
      population, lambda t: SCHEDULE[t - 1], sampler=samplers.CohortSampler(), mean_cohort_size=2.0
    ),
    has_dropout=True,
    order=lambda: np.arange(NUM_CLIENTS),
    options=plans.PlanOptions(model=MODEL),
  )


def run_in_tff(plan: plans.Plan) -> Run:
  """Trains for the rounds of `SCHEDULE`, by the plan's process."""
  built = plan.build_process(
    linear_model.functional(*_WIDTHS), client_optimizer=tff.learning.optimizers.build_sgdm(_LEARNING_RATE)
  )
  plan, process = built.plan, built.process
  guarded = guarded_clients.GuardedClients(plan, b'of the simulation') if plan.holds_noise else None
  names = tff.structure.name_list(process.next.type_signature.parameter[1].member)
  data = []
  for round_num, cohort in enumerate(SCHEDULE, 1):
    answers = guarded.answers(round_num, cohort) if guarded is not None else {}
    absent = np.setdiff1d(np.arange(NUM_CLIENTS), cohort)[:1] if 'absent' in names else None
    client = lambda i, own=answers, away=absent: linear_model.client(
      i, y=i - 1.5, x=0.1 * (i + 1), width=_WIDTHS[-1], answer=own.get(i), absent=away
    )
    data.append([client(int(i)) for i in cohort])
  run = _played(
    plan, process.initialize(), lambda round_num, state: process.next(state, data[round_num - 1]), plan.record
  )
  run.built, run.model = built, linear_model.weights(process, run.states[-1])
  return run


def run_of_functions(plan: plans.Plan) -> Run:
  """Plays the rounds of `SCHEDULE` as plain functions, with updates that nobody trained."""
  pure, clients = pure_process(plan), _Clients(plan)
  own = [clients.own(round_num, cohort) for round_num, cohort in enumerate(SCHEDULE, 1)]
  replay = lambda round_num, state: pure.next(state, _updates(SCHEDULE[round_num - 1]), own[round_num - 1])
  record = lambda output, cohort: plan.recorded(output.state, output.measurements, cohort)
  return _played(plan, pure.initialize(), replay, record)


def _played(plan, initial, replay, record) -> Run:
  run = Run(
    plan, [initial], [], plan.new_ledger(), [np.zeros(spec.shape, np.float32) for spec in _SPECS], replay, record
  )
  for round_num, cohort in enumerate(SCHEDULE, 1):
    run.outputs.append(replay(round_num, run.states[-1]))
    run.states.append(run.outputs[-1].state)
    run.ledger.append(record(run.outputs[-1], cohort))
  return run


def pure_process(plan: plans.Plan) -> pure_rounds.Process:
  """The rounds of a plan as plain functions."""
  return pure_rounds.Process(plan.mechanism, _SPECS, MODEL.layers, _rate)


def is_lifted(plan: plans.Plan) -> bool:
  """Whether its rounds are pure functions, which the one aggregation factory lifts to TFF."""
  return plan.mechanism.server_parts(linear_model.functional, MODEL, None) is None


class _Clients:
  """What the clients of a plan say of themselves, round by round."""

  def __init__(self, plan):
    self._guarded = guarded_clients.GuardedClients(plan, b'of the simulation') if plan.holds_noise else None
    self._is_stale = plan.mechanism.facts.staleness is not None

  def own(self, round_num, cohort):
    answers = self._guarded.answers(round_num, cohort) if self._guarded is not None else {}
    return [
      collections.OrderedDict(
        client_id=np.int64(i),
        **({'staleness': np.int32(i % 3)} if self._is_stale else {}),
        **({'answer': answers[i]} if answers else {}),
      )
      for i in map(int, cohort)
    ]


def _updates(cohort):
  """An update for each client, of norms from 0.1 to 100."""
  generator, scales = np.random.default_rng(len(cohort)), np.geomspace(0.1, 100, max(len(cohort), 1))
  return [
    [np.float32(scale * generator.normal(size=spec.shape)) for spec in _SPECS] for _, scale in zip(cohort, scales)
  ]


def _leaves(value):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def _assert_same(found, expected):
  assert len(_leaves(found)) == len(_leaves(expected))
  for one, other in zip(_leaves(found), _leaves(expected)):
    np.testing.assert_array_equal(one, other)


def _rate(round_num):
  return tf.pow(0.5, tf.cast(round_num, tf.float32))


def _bad_ids(pure):
  """Cohorts with ids that no round may have, and what is said of each."""
  if 'answer' in pure.rounds.own_fields:
    pytest.skip('No guard answers for such a client.')
  outside = rf'(?s)Client ids must lie in \[0, {NUM_CLIENTS}\), .*; found.*\[(0 )?5\]'
  bad = [([0, NUM_CLIENTS], outside)]
  bad.append(([-1, 1], 'Client ids must lie in'))
  if not pure.rounds.own_fields:  # A buffer can hold a client twice.
    bad.append(([4, 4], 'appears twice'))
  return bad


def _own_of(ids, pure):
  return [{'client_id': np.int64(i), **dict.fromkeys(pure.rounds.own_fields, np.int32(0))} for i in ids]


class _AccountContract:
  """The account of a run, whatever has played it. A subclass has a fixture `run`, of the scope of a class."""

  @pytest.fixture(scope='class', autouse=True)
  def curves(self):
    with remembered_curves.used():
      yield

  def test_a_resumed_run_is_the_uninterrupted_one(self, run):
    found = run.replay(2, run.state_before(2))
    if getattr(getattr(run.plan.mechanism, 'stock', None), 'takes_noise_seed', True):
      _assert_same(found, run.outputs[1])
    else:  # TFF draws the noise of these from no seed.
      one, other = (run.record(output, SCHEDULE[1]) for output in (found, run.outputs[1]))
      tf.nest.map_structure(np.testing.assert_array_equal, one, other)

  def test_what_is_planned_is_spent(self, run):
    facts = run.plan.mechanism.facts
    if facts.unplannable:
      with pytest.raises(accounting.NoBoundError):
        run.plan.planned_ledger(SCHEDULE)
      return
    if not facts.adds_noise:
      pytest.skip('Without noise, no budget is spent.')
    found, planned = (one.state_dict() for one in (run.ledger, run.plan.planned_ledger(SCHEDULE)))
    for name in found.keys() - _NOT_PLANNED:
      if found[name].dtype.kind == 'f':
        np.testing.assert_allclose(found[name], planned[name], rtol=1e-5, err_msg=name)
      else:
        np.testing.assert_array_equal(found[name], planned[name], err_msg=name)

  def test_figures_are_the_same_live_and_loaded(self, run, tmp_path):
    files.write(str(tmp_path / 'ledger.npz'), files.npz(run.ledger.state_dict()))
    loaded = accounting.RunLedger.load(tmp_path / 'ledger.npz')
    _assert_same(loaded.state_dict(), run.ledger.state_dict())
    live, again = (run.plan.report(one, SCHEDULE) for one in (run.ledger, loaded))
    assert again.as_dict() == live.as_dict() and str(again) == str(live)
    if live.formal.epsilon is not None:
      assert again.formal.epsilon.tobytes() == live.formal.epsilon.tobytes()

  def test_another_cohort_is_not_recorded(self, run):
    # Of secret cohorts nothing says who came, so another client cannot be told apart.
    others = [] if run.plan.mechanism.facts.needs_secret_cohorts else [[2]]
    for cohort in (*others, [1, 1], [1, NUM_CLIENTS], [-1, 2], [1.0, 2.0]):
      with pytest.raises(ValueError):
        run.record(run.outputs[1], cohort)

  def test_its_value_names_all_that_the_account_depends_on(self, run):
    plan, value = run.plan, json.loads(run.plan.fingerprint)
    assert isinstance(value, dict) and value
    if plan.mechanism.facts.is_certified:
      name = registry.name_of(plan.config, folders.MECHANISMS)
      assert folders.read_config(name, json.loads(json.dumps(registry.value_of(plan.config)))) == plan.config

  def test_its_certificate_is_valid(self, run, tmp_path):
    plan = run.plan
    if not plan.mechanism.facts.is_certified:
      pytest.skip('It gets no certificate.')
    if run.built is None:  # What leaves clients is read off the process. This is what it would be.
      plan = dataclasses.replace(plan, model=MODEL)
    leaving = run.built.leaving if run.built is not None else made.leaving(plan)
    folder = str(tmp_path / 'certified')
    written = certificates.write_run(folder, plan, leaving, run.ledger, run.model, _ABOUT)
    verdict = certificates.verify(folder)
    assert not verdict.problems and verdict.statement == written['statement']
    content = folders.read(folder)
    assert content.plan.config == plan.config and list(content.leaving) == list(leaving)
    live, loaded = (
      of.report(ledger, SCHEDULE).formal.epsilon for of, ledger in ((plan, run.ledger), (content.plan, content.ledger))
    )
    assert loaded.tobytes() == live.tobytes() and live.max() <= plan.config.epsilon
    assert written['leaves_clients'] == [dict(zip(('by', 'value', 'type'), one)) for one in leaving]


class FunctionsContract(_AccountContract):
  """The contract of the rounds as plain functions. A subclass has a fixture `plan`, of the scope of a class."""

  @pytest.fixture(scope='class', autouse=True)
  def loops(self):
    with compiled_loops.used():
      yield

  @pytest.fixture(scope='class')
  def run(self, plan, loops):
    if plan.holds_noise:
      pytest.skip('As a plain function, a round needs the answer of somebody who comes.')
    return run_of_functions(plan)

  def test_bad_ids_are_refused(self, plan):
    pure = pure_process(plan)
    for ids, message in _bad_ids(pure):
      with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pure.next(pure.initialize(), _updates(ids), _own_of(ids, pure))


class _InTff:
  @pytest.fixture(scope='class', autouse=True)
  def context(self):
    with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=2)):
      yield


class LiftedContract(_InTff):
  """The contract of a mechanism's aggregation process. A subclass has a fixture `plan`, of the scope of a class."""

  @pytest.fixture(scope='class')
  def lifted(self, plan, context):
    """The plan's pure functions, and the aggregation process that they make in TFF."""
    if not is_lifted(plan):
      pytest.skip('It has a TFF computation of its own.')
    pure = pure_process(plan)
    own = collections.OrderedDict(client_id=np.int64, **{name: _OWN[name] for name in pure.rounds.own_fields})
    factory = aggregation.AggregationFactory(plan.mechanism, MODEL.layers, _rate)
    return pure, factory.create(tff.to_type([(np.float32, list(spec.shape)) for spec in _SPECS]), tff.to_type(own))

  def test_its_rounds_in_tff_are_those_of_its_functions(self, plan, lifted):
    pure, process = lifted
    clients, state = _Clients(plan), process.initialize()
    expected = state  # Two initial states have two keys.
    for round_num, cohort in enumerate(SCHEDULE, 1):
      own = clients.own(round_num, cohort)
      output = process.next(state, _updates(cohort), own)
      if not own and plan.holds_noise:  # As a plain function, such a round needs somebody's answer.
        state = expected = output.state
        continue
      found = pure.next(expected, _updates(cohort), own)
      for name in ('state', 'result', 'measurements'):
        one, other = _leaves(getattr(output, name)), _leaves(getattr(found, name))
        assert len(one) == len(other)
        for a, b in zip(one, other):
          np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=2e-6, atol=1e-6, err_msg=f'{name} of {cohort}')
      assert list(output.measurements) == list(found.measurements)
      state, expected = output.state, found.state

  def test_the_order_of_the_cohort_does_not_matter(self, plan, lifted):
    _, process = lifted
    updates, own = _updates(SCHEDULE[0]), _Clients(plan).own(1, SCHEDULE[0])
    state = process.initialize()
    first, second = (process.next(state, updates[::step], own[::step]) for step in (1, -1))
    for a, b in zip(_leaves(first.result), _leaves(second.result)):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

  def test_bad_ids_are_refused_in_tff(self, lifted):
    pure, process = lifted
    for ids, message in _bad_ids(pure):
      with pytest.raises(Exception, match=message):
        process.next(process.initialize(), _updates(ids), _own_of(ids, pure))

  def test_it_compiles_to_mergeable_form_if_it_has_one_level(self, lifted):
    pure, process = lifted
    if pure.rounds.secure_bounds is not None:
      pytest.skip('That form has no secure sums.')
    if not pure.rounds.clips_by_this_round:
      form = tff.backends.native.compile_to_mergeable_comp_form(process.next)
      assert isinstance(form, tff.framework.MergeableCompForm)
    else:
      with pytest.raises(ValueError, match='aggregate dependent on another'):
        tff.backends.native.compile_to_mergeable_comp_form(process.next)


class TrainedContract(_InTff, _AccountContract):
  """The contract of a plan's learning process. A subclass has a fixture `plan`, of the scope of a class."""

  @pytest.fixture(scope='class')
  def run(self, plan, context):
    return run_in_tff(plan)

  def test_what_leaves_clients_is_what_is_stated(self, run):
    plan = run.plan
    tensors = [
      (uri, name, tensor.compact_representation())
      for uri, value in leaving_clients.leaving_clients(run.built.process.next)
      for name, tensor in leaving_clients.tensors(value)
    ]
    assert tensors
    if plan.mechanism.facts.is_certified:
      assert list(run.built.leaving) == tensors
    elif is_lifted(plan) and plan.extension is None:
      pure = pure_process(plan).rounds
      own = dict(client_id=tf.constant(0, tf.int64), staleness=tf.constant(0))
      report = pure.report([tf.zeros(spec.shape) for spec in _SPECS], own, pure.announce(pure.initial_state()))
      metrics = {'loss', 'num_examples', 'num_batches'} if plan.client_metrics else set()
      positions = {str(i) for i in range(len(_SPECS))} if pure.needs_each_update else set()
      names = {name.rpartition('.')[2] for _, name, _ in tensors} - {''}
      assert names <= {'client_id', *report.keys()} - set(pure.kept_fields) | metrics | positions


class MechanismContract(LiftedContract, TrainedContract):
  """The whole contract, see the module. A subclass has a fixture `plan`, of the scope of a class."""
