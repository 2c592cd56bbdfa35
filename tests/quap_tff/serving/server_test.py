"""A run keeps its order: written before it is released, begun from the latest state, and no noise drawn twice."""

import collections
import functools
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

import quap_tff
from quap_tff import plans
from quap_tff.common import durable
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.serving import server as servers
from tests.quap_tff import examples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('context')]

_MODEL_FN = quap_tff.models.build_model_fn('linear_features', (8,), 3)


def _plan(noise_seed=3, schedule=tuple(examples.SCHEDULE), **changes):
  config = examples.guarantee(clip=clip_rules.Fixed(0.5), noise_seed=noise_seed, **changes)
  averaging = postprocessing.Tail(2)
  return plans.Plan.certified(config, schedule, certificate=noise_seed is None, averaging=averaging)


_KINDS = {
  'correlated': lambda **seed: _plan(correlation=correlation.Ar1(0.5), **seed).build_process(_MODEL_FN),
  'held': lambda **seed: _plan(correlation=correlation.HeldNoise(0.5), **seed).build_process(_MODEL_FN),
}


class _FromOneState(plans.BuiltProcess):
  """An engine whose runs all begin from one state: the seed of clients' batches is drawn with each new one."""

  @functools.cached_property
  def first(self):
    return self.process.initialize()

  def initialize(self):
    return self.first


@pytest.fixture(name='engines', scope='module')
def _engines(context):
  """The engines of two kinds of plans, with a public seed of the noise, traced once. Their runs can be compared."""
  return {kind: _FromOneState(**vars(build())) for kind, build in _KINDS.items()}


@pytest.fixture(name='engine')
def _engine(engines):
  return engines['correlated']


@pytest.fixture(name='drawing', scope='module')
def _drawing(context):
  """An engine whose noise has a key from the operating system."""
  return _KINDS['correlated'](noise_seed=None)


def _examples(clients, seed=0):
  rng = np.random.default_rng(seed)
  made = {}
  for client in clients:
    y = rng.integers(0, 3, 5).astype(np.int32)
    made[client] = collections.OrderedDict(x=np.eye(8, dtype=np.float32)[y], y=y)
  return made


def _played(engine, folder=None, rounds=3, secret=bytes(32)):
  """A run that played its rounds one after another."""
  run = servers.Server.of(engine, folder, client_secret=secret)
  while run.done < rounds:
    run.play(_examples(run.ask()))
  return run


def _same(one, other):
  expected, found = one.state_dict(), other.state_dict()
  assert expected.keys() == found.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name)


class TestOrder:
  @pytest.mark.parametrize('kind', _KINDS)
  def test_a_run_that_stopped_after_each_round_is_the_uninterrupted_one(self, kind, engines, tmp_path):
    whole = _played(engines[kind])
    for rounds in (1, 2, 3):
      with _played(engines[kind], tmp_path / 'run', rounds) as run:
        assert run.done == rounds
    _same(whole, run)
    assert run.is_over and run.ledger.num_rounds == 3

  def test_nothing_is_released_before_it_is_written(self, engine, tmp_path, monkeypatch):
    run = _played(engine, tmp_path, rounds=1)
    before = durable.content_of(tmp_path / 'state')

    def fail(arrays):
      raise OSError('The disk is full.')

    monkeypatch.setattr(run._store, 'write', fail)
    with pytest.raises(OSError, match='The disk is full'):
      run.play(_examples(run.ask()))
    assert durable.content_of(tmp_path / 'state') == before
    # The object may be ahead of the disk, so it has let go of the run, which goes on from the disk.
    with _played(engine, tmp_path, rounds=3) as again:
      _same(_played(engine), again)

  def test_an_engine_that_fails_changes_nothing(self, engine, monkeypatch):
    run = _played(engine, rounds=1)
    before = run.state_dict()

    class FailingError(Exception):
      pass

    def fail(state, attendance):
      raise FailingError

    with monkeypatch.context() as patch:
      patch.setattr(type(engine), 'play', lambda self, state, attendance: fail(state, attendance))
      with pytest.raises(FailingError):
        run.play(_examples(run.ask()))
    assert all(np.array_equal(before[name], array) for name, array in run.state_dict().items())
    while not run.is_over:
      run.play(_examples(run.ask()))
    _same(_played(engine), run)

  def test_guards_that_answered_for_a_round_that_failed_answer_it_again(self, engines, monkeypatch):
    run = _played(engines['held'], rounds=1)
    with monkeypatch.context() as patch:
      patch.setattr(type(run.engine), 'play', lambda self, state, attendance: 1 / 0)
      with pytest.raises(ZeroDivisionError):
        run.play(_examples(run.ask()))
    while not run.is_over:
      run.play(_examples(run.ask()))
    _same(_played(engines['held']), run)

  def test_a_signal_while_a_round_is_written_waits(self, engine, tmp_path, monkeypatch):
    run = _played(engine, tmp_path, rounds=1)
    write = run._store.write

    def interrupted(arrays):
      signal.raise_signal(signal.SIGINT)
      write(arrays)

    monkeypatch.setattr(run._store, 'write', interrupted)
    with pytest.raises(KeyboardInterrupt):
      run.play(_examples(run.ask()))
    assert run.done == 2
    run.close()
    with servers.Server.of(engine, tmp_path) as again:
      assert again.done == 2  # The whole round is on disk.
    with _played(engine, tmp_path) as again:
      _same(_played(engine), again)

  def test_rounds_between_checkpoints_are_played_again_where_that_is_allowed(self, tmp_path):
    plan = quap_tff.Plan(examples.whole(noise=NoiseConfig(calibration='analytic', seed=1)))
    engine = _FromOneState(**vars(plan.build_process(_MODEL_FN)))
    run = servers.Server.of(engine, tmp_path / 'crashed', checkpoint_every=2)
    with servers.Server.of(engine, tmp_path / 'ended', checkpoint_every=2) as ended:
      for cohort in examples.SCHEDULE:
        run.play(_examples(cohort.tolist()))
        ended.play(_examples(cohort.tolist()))
    with servers.Server.of(engine, tmp_path / 'ended') as again:
      _same(run, again)  # A run that ends in order loses nothing.
    run.close()  # As a crash does: nothing more is written.
    with servers.Server.of(engine, tmp_path / 'crashed', checkpoint_every=2) as again:
      assert again.done == 2 and not again.is_over
      again.play(_examples(examples.SCHEDULE[2].tolist()))
      _same(run, again)

  def test_of_two_rounds_from_one_state_only_one_is_released(self, engine):
    run = servers.Server.of(engine)
    one, other = run.compute(_examples([0, 2, 3])), run.compute(_examples([0, 2]))
    run.release(one)
    with pytest.raises(ValueError, match='Round 1 cannot be released after round 1: it was computed from an older'):
      run.release(other)

  def test_a_closed_run_computes_nothing(self, engine, tmp_path):
    with servers.Server.of(engine, tmp_path) as run:
      pass
    with pytest.raises(durable.StateError, match='is not open in this process'):
      run.play(_examples([0, 2, 3]))


class TestState:
  def test_an_older_one_is_refused_and_the_latest_is_taken(self, engine, tmp_path):
    _played(engine, tmp_path, rounds=1).close()
    shutil.copy(tmp_path / 'state', tmp_path / 'older')
    _played(engine, tmp_path, rounds=2).close()
    shutil.move(tmp_path / 'state', tmp_path / 'latest')
    shutil.copy(tmp_path / 'older', tmp_path / 'state')
    with pytest.raises(durable.StateError, match='not the latest copy'):
      servers.Server.of(engine, tmp_path)
    shutil.copy(tmp_path / 'latest', tmp_path / 'state')
    with servers.Server.of(engine, tmp_path) as run:
      assert run.done == 2

  def test_two_at_once(self, engine, tmp_path):
    with servers.Server.of(engine, tmp_path):
      with pytest.raises(durable.StateError, match='in use'):
        servers.Server.of(engine, tmp_path)

  def test_another_plan_is_refused_and_shows_no_value_of_the_state(self, engine, engines, tmp_path):
    _played(engine, tmp_path, rounds=1).close()
    with pytest.raises(ValueError, match='is of another run.* or another folder') as raised:
      servers.Server.of(engines['held'], tmp_path)
    assert 'array(' not in str(raised.value)

  def test_only_its_owner_can_read_it(self, engine, tmp_path):
    with _played(engine, tmp_path / 'new', rounds=1):
      assert os.stat(tmp_path / 'new' / 'state').st_mode & 0o077 == 0
      assert os.stat(tmp_path / 'new').st_mode & 0o077 == 0

  def test_each_start_draws_a_new_key_and_keeps_all_else(self, drawing, tmp_path):
    run = _played(drawing, tmp_path, rounds=1)
    run.close()
    with servers.Server.of(drawing, tmp_path) as again:
      before, after = run.state_dict(), again.state_dict()
    key = np.asarray(run.state.aggregator.noise.seed)
    differing = [name for name, array in before.items() if not np.array_equal(array, after[name])]
    assert len(differing) == 1
    np.testing.assert_array_equal(before[differing[0]], key)

  def test_two_starts_from_one_state_release_different_noise(self, drawing, tmp_path):
    weights = []
    for _ in range(2):
      run = servers.Server.of(drawing)
      if not weights:
        first = run.state_dict()
      run._restore(first)
      run.play(_examples(run.ask()))
      weights.append(run.weights.trainable[0])
    assert not np.array_equal(*weights)

  def test_a_public_seed_is_kept(self, engine, tmp_path):
    run = _played(engine, tmp_path, rounds=1)
    run.close()
    with servers.Server.of(engine, tmp_path) as again:
      _same(run, again)


class TestClients:
  def test_who_may_come_has_a_weight(self, engine):
    run = servers.Server.of(engine)
    assert list(run.ask()) == [0, 2, 3] and all(0 < weight <= 1 for weight in run.ask().values())
    assert list(run.ask([3, 0])) == [3, 0]
    with pytest.raises(ValueError, match='Client 1 is not planned for round 1'):
      run.ask([1])

  def test_a_plan_that_does_not_know_must_be_told(self):
    plan = quap_tff.Plan(examples.whole(noise=NoiseConfig(calibration='analytic')))
    run = servers.Server.of(plan.build_process(_MODEL_FN))
    assert run.ask([2, 1]) == {2: 1.0, 1: 1.0}
    with pytest.raises(ValueError, match='does not say who comes in round 1: give `ask` the clients'):
      run.ask()

  def test_planned_clients_that_are_missing_are_charged_and_add_nothing(self, engine):
    runs = [servers.Server.of(engine) for _ in range(2)]
    everybody = _examples([0, 2, 3])
    runs[0].play({0: everybody[0], 3: everybody[3]})
    nothing = collections.OrderedDict(x=np.zeros([0, 8], np.float32), y=np.zeros([0], np.int32))
    runs[1].play({0: everybody[0], 3: everybody[3], 2: nothing})
    _same(*runs)
    assert runs[0].ledger.rounds.tolist() == [1, 0, 1, 1]

  def test_a_dataset_is_taken(self, engine):
    runs = [servers.Server.of(engine) for _ in range(2)]
    everybody = _examples([0, 2, 3])
    runs[0].play(everybody)
    runs[1].play({client: tf.data.Dataset.from_tensors(one) for client, one in everybody.items()})
    _same(*runs)

  def test_metrics_of_clients_are_withheld_with_the_guarantee(self, engine):
    metrics = servers.Server.of(engine).play(_examples([0, 2, 3]))
    assert metrics['cohort_size'] == 3 and not {'train_loss', 'update_norm_mean'} & set(metrics)


class TestEnd:
  def test_the_average_that_the_plan_chose_is_published(self, engine):
    run, iterates = servers.Server.of(engine), []
    while not run.is_over:
      run.play(_examples(run.ask()))
      iterates.append(np.asarray(run.engine.weights(run.state).trainable[0], np.float64))
    expected = np.mean(iterates[1:], axis=0)
    np.testing.assert_allclose(run.weights.trainable[0], expected, rtol=1e-6)

  def test_a_report_before_the_end_is_the_bound_of_the_plan(self, drawing):
    run = _played(drawing, rounds=1)
    assert run.report().formal.reading is not None
    while not run.is_over:
      run.play(_examples(run.ask()))
    assert run.report().formal.reading is None
    with pytest.raises(ValueError, match='Round 4 is not in the plan'):
      run.play(_examples([0]))

  def test_a_certificate_is_of_the_run_so_far(self, drawing, tmp_path):
    stated = dict(dataset='made-up numbers', cohorts='They were written down.', tuning='Not tuned.')
    with servers.Server.of(drawing, tmp_path / 'run') as run:
      run.play(_examples(run.ask()))
      path = run.certify(**stated)
      early = quap_tff.certificates.verify(path)
      while not run.is_over:
        run.play(_examples(run.ask()))
      assert run.certify(**stated) == path == str(tmp_path / 'run' / 'certificate')
    verdict = quap_tff.certificates.verify(path)
    assert not early.problems and not verdict.problems and early.statement != verdict.statement
    with np.load(os.path.join(path, 'final_model.npz')) as kept:
      np.testing.assert_array_equal(kept['arr_0'], run.weights.trainable[0])
    with pytest.raises(ValueError, match='this run has none: give `Server` a folder'):
      servers.Server.of(drawing).certify(**stated)


@pytest.mark.thorough  # The first program of README.md is made in this way.
def test_the_constructor_builds_the_process(tmp_path):
  plan = _plan(noise_seed=None)
  with quap_tff.Server(plan, _MODEL_FN, tmp_path) as run:
    run.play(_examples(run.ask()))
  with quap_tff.Server(plan, _MODEL_FN, tmp_path) as run:
    assert run.done == 1 and run.plan.model is not None
