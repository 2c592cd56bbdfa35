"""Tests of `quap_tff.ClientGuard`: what it answers, and each lie of a server that it refuses."""

import base64
import dataclasses
import math
import multiprocessing
import os
import shutil
import stat

import numpy as np
import pytest

from quap_tff import plans
from quap_tff.common import durable
from quap_tff.common import files
from quap_tff.mechanisms.held import guard
from quap_tff.mechanisms.held import guard_memory
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from tests import processes
from tests.quap_tff import examples

_CLIENTS = 6
_SCHEDULE = [[0, 1, 2], [0, 1, 3], [1, 2, 3], [0, 1, 2], [0, 2, 3]]
_KEY = bytes(range(32))


def _plan(schedule=_SCHEDULE, decay=0.5, **changes):
  config = examples.held(num_clients=_CLIENTS, correlation=correlation.HeldNoise(decay), **changes)
  return plans.Plan.certified(config, schedule)


@pytest.fixture(name='plan', scope='module')
def _planned():
  return guard.PublicPlan.of(_plan())


def _guard(plan, client=0, memory=None):
  return guard.ClientGuard(plan, client, _KEY, memory)


def _noise_key(one):
  return one.answer(1, [0, 1], [])['noise_key'].tobytes()


def _told(one, rounds, schedule=_SCHEDULE):
  """A guard that has heard of the first rounds, in which all came."""
  came = []
  for round_num, cohort in enumerate(schedule[:rounds], 1):
    (one.answer if one.client_id in cohort else one.follow)(round_num, cohort, came)
    came = cohort
  return one


class TestAnswer:
  def test_by_hand(self, plan):
    own, came = _guard(plan), []
    for round_num, last_round in ((1, 0), (2, 1), (4, 2)):
      cohort = _SCHEDULE[round_num - 1]
      found = own.answer(round_num, cohort, came)
      assert (found['plan'], found['round'], found['last_round']) == (plan.number, round_num, last_round)
      assert found['weight'] == np.float32(plan.weights[0]) > 0
      assert [one.dtype.name for one in found.values()] == ['int64', 'int64', 'int64', 'float32', 'int64']
      came = cohort
      if round_num == 2:
        own.follow(3, _SCHEDULE[2], came)
        came = _SCHEDULE[2]

  def test_who_came_late_or_not_at_all_changes_the_digest(self, plan):
    def digest(came):
      own = _told(_guard(plan), 1)
      own.answer(2, _SCHEDULE[1], came)
      return own.digest

    assert digest([0, 1, 2]) == digest([2, 1, 0])
    assert len({digest(came) for came in ([0, 1, 2], [0, 1], [0, 2])}) == 3
    assert _told(_guard(plan), 2).digest == _told(_guard(plan, 1), 2).digest == digest([0, 1, 2])

  def test_a_client_who_came_is_not_taken_for_one_who_is_announced(self, plan):
    digests = set()
    for cohort, came in (([1, 2], [0]), ([2], [0, 1])):
      own = _guard(plan, 5)
      own.follow(1, [0, 1], [])
      own.follow(2, cohort, came)
      digests.add(own.digest)
    assert len(digests) == 2

  def test_a_key_is_32_bytes_or_four_integers(self, plan):
    key = np.frombuffer(_KEY, np.int64)
    of = lambda key, plan=plan, client=0: _noise_key(guard.ClientGuard(plan, client, key))
    assert of(key) == of(_KEY)
    # Two plans, or two clients, that share a key do not share noise.
    assert len({of(_KEY), of(_KEY[::-1]), of(_KEY, client=1), of(_KEY, guard.PublicPlan.of(_plan(decay=0.6)))}) == 4
    assert _KEY not in (of(_KEY), of(_KEY, client=1))
    for wrong in (_KEY[:31], key[:3], key.astype(np.float64)):
      with pytest.raises(ValueError, match='size|32 bytes'):
        of(wrong)

  def test_the_account_is_that_of_held_noise(self, plan):
    own, account = _told(_guard(plan), 5), plan.opened
    for cohort in _SCHEDULE[:4]:
      account = account.after(cohort, plan.weights[cohort])
    np.testing.assert_allclose(own._standing.chain.account.spent, account.spent, rtol=1e-12)

  def test_weights_are_charged_as_they_are_sent(self):
    config = dataclasses.replace(_plan().config, planned_weights=(0.3,) * _CLIENTS).to_mechanism()
    sent = guard.ClientGuard(config, 0, _KEY).answer(1, [0, 1, 2], [])['weight']
    assert float(sent) > 0.3 and guard.PublicPlan.of(config).weights[0] == sent

  def test_a_plan_that_holds_no_noise_has_no_guards(self):
    with pytest.raises(ValueError, match='quap_tff.Plan.certified of a HeldConfig'):
      guard.ClientGuard(examples.noised(num_clients=_CLIENTS), 0, _KEY)


class TestDishonestServers:
  """Each of them would get something that the account does not pay for."""

  @pytest.mark.parametrize(
    'round_num, cohort, came, words',
    [
      (2, _SCHEDULE[1], [0, 1, 2], 'is not after round 2'),  # The same noise twice: the difference is the bare update.
      (2, [0, 1], [0, 1, 2], 'is not after round 2'),
      (1, _SCHEDULE[0], [], 'is not after round 2'),
      (0, _SCHEDULE[2], _SCHEDULE[1], 'at least 1|>= 1'),
      (-1, _SCHEDULE[2], _SCHEDULE[1], 'at least 1'),
      (True, _SCHEDULE[2], _SCHEDULE[1], 'must be an integer'),
      (3.0, _SCHEDULE[2], _SCHEDULE[1], 'must be an integer'),
      (math.nan, _SCHEDULE[2], _SCHEDULE[1], 'must be an integer'),
      (3, [0.0, 1.0], _SCHEDULE[1], r'must be int\[clients\]'),
      (3, [True, False], _SCHEDULE[1], r'must be int\[clients\]'),
      (3, [0, 1, 2, 3], _SCHEDULE[1], 'The plan has at most 3'),  # More draws than the account of rounding has.
      (3, [1, 2], _SCHEDULE[1], 'not announced for round 3'),
      (3, [0, 0, 1], _SCHEDULE[1], 'twice|distinct'),
      (3, [0, 6], _SCHEDULE[1], r'\[0, 6\)'),
      (3, [0, -1], _SCHEDULE[1], r'\[0, 6\)'),
      (3, [0, 1], [0, 1, 2], 'Client 2 is said to have come in round 2'),
      (3, [0, 1], [0, 0], 'twice|distinct'),
      (6, [0, 1], [0, 1], 'has 5 rounds'),
    ],
  )
  def test_an_announcement_that_cannot_be(self, plan, round_num, cohort, came, words):
    own = _told(_guard(plan), 2)
    before = own.digest
    with pytest.raises(ValueError, match=words):
      own.answer(round_num, cohort, came)
    # Nothing was taken in: the honest announcement is answered.
    assert own.digest == before
    assert own.answer(3, [0, 1], [0, 1, 3])['last_round'] == 2

  def test_a_round_that_the_guard_was_not_told_of(self, plan):
    own = _told(_guard(plan), 2)
    with pytest.raises(guard.RefusedError, match=r'tell the guard of it first: follow\(round_num, cohort, came\)'):
      own.answer(4, [0, 1, 2], [2, 3])
    own.follow(3, [1, 2, 3], [0, 1, 3])
    assert own.answer(4, [0, 1, 2], [2, 3])['last_round'] == 2

  def test_a_client_that_came_without_an_answer_is_somebody_else(self, plan):
    own = _guard(plan)
    own.follow(1, [0, 1], [])
    with pytest.raises(guard.RefusedError, match='Somebody uses its name'):
      own.answer(2, [0, 1], [0, 1])

  def test_a_round_that_somebody_cannot_pay_for(self, plan):
    own, came, round_num = _guard(plan), [], 0
    with pytest.raises(guard.RefusedError, match='past its bound'):
      for round_num in range(1, 6):
        own.answer(round_num, [0, 1], came)
        came = [0, 1]
    account = plan.opened
    for _ in range(round_num):
      before, account = account, account.after([0, 1], plan.weights[[0, 1]])
    assert before.is_within(plan.limit) and not account.is_within(plan.limit)

  def test_two_cohorts_for_one_round_are_seen_when_digests_are_compared(self, plan):
    one, other = _guard(plan), _guard(plan, 1)
    one.answer(1, [0, 1, 2], [])
    other.answer(1, [0, 1], [])
    assert one.digest != other.digest

  def test_the_weight_the_clip_and_the_rounds_are_the_plans(self, plan):
    # A server cannot say any of them: they are no arguments.
    with pytest.raises(TypeError):
      _guard(plan).answer(1, [0, 1], [], weight=10.0)

  def test_a_chain_is_answered_once(self, plan):
    own, chain = _guard(plan), guard.Chain(plan).then(1, [0, 1], [])
    own.answer_at(chain)
    with pytest.raises(guard.RefusedError, match='answered already'):
      own.answer_at(chain)

  def test_a_client_without_a_weight_answers_nothing(self, plan):
    assert plan.weights[5] == 0
    with pytest.raises(guard.RefusedError, match='no weight in this plan'):
      _guard(plan, 5).answer(1, [0, 5], [])


class TestSaidToBeAbsent:
  """A client has answered, and the server says that it did not come."""

  def _absent(self, plan):
    own = _told(_guard(plan), 2)
    return own, own.answer(3, [0, 1, 2], [1, 3])

  def test_it_takes_nothing_back(self):
    everyone = list(range(_CLIENTS))
    own = _guard(guard.PublicPlan.of(_plan([everyone] * 9)))
    found = [own.answer(t, everyone, came)['last_round'] for t, came in enumerate([[], everyone, [1, 2, 3, 4]], 1)]
    assert found == [0, 1, guard.NEW_CHAIN]
    # From then on, the new chain is one like any other.
    assert own.answer(4, everyone, everyone)['last_round'] == 3

  def test_it_charges_itself_for_the_round(self, plan):
    own, _ = self._absent(plan)
    charged, said = own._standing.charged, own._standing.chain.account
    assert charged.num_releases == said.num_releases == 2
    assert 0 in charged.cohorts()[1] and 0 not in said.cohorts()[1]
    assert charged.spent[0] > said.spent[0]

  def test_a_round_of_nobody_is_charged_as_if_all_had_come(self, plan):
    own = _told(_guard(plan), 1)
    own.answer(2, _SCHEDULE[1], [])
    np.testing.assert_array_equal(own._standing.charged.cohorts()[0], _SCHEDULE[0])
    assert own._standing.chain.account.num_releases == 0

  def test_it_ends_where_its_own_account_ends(self, plan):
    """Said to be absent from every round, it stops although the account of the others would pay for more."""
    limit = plan.limit
    plan = dataclasses.replace(plan, limit=np.array([1e9, limit, *[1e9] * (_CLIENTS - 2)]))  # Its own, and no other.
    own, came, answered = _guard(plan, 1), [], 0
    with pytest.raises(guard.RefusedError, match='past its bound'):
      for round_num in range(1, 6):
        own.answer(round_num, [0, 1], came)
        came, answered = [0], answered + 1
    assert own._standing.chain.account.spent[1] == 0 and own._standing.charged.spent[1] <= limit
    assert answered < 5


class TestThreshold:
  @pytest.fixture(scope='class')
  def half(self):
    return guard.PublicPlan.of(_plan([[0, 1, 2, 3]] * 4, 0.0, threshold=0.5))

  def test_fewer_than_the_sum_opens_with(self, half):
    own = _guard(half)
    own.answer(1, [0, 1, 2, 3], [])
    with pytest.raises(guard.RefusedError, match='1 of 4 clients are said to have come'):
      own.answer(2, [0, 1, 2, 3], [1])
    assert own.answer(2, [0, 1, 2, 3], [0, 1])['round'] == 2

  def test_clients_without_a_weight_do_not_count(self, half):
    own = _guard(half)
    own.answer(1, [0, 1, 4, 5], [])
    with pytest.raises(guard.RefusedError, match='0 of 2 clients are said to have come'):
      own.answer(2, [0, 1], [4, 5])
    own.follow(2, [1, 2], [0])  # Half of those that can come.

  def test_nobody_may_come(self, half):
    own = _guard(half)
    own.answer(1, [0, 1, 2, 3], [])
    assert own.answer(2, [0, 1, 2, 3], [])['round'] == 2

  def test_the_noise_of_the_smallest_set_is_that_of_the_account(self):
    plan = _plan([[0, 1, 2, 3]] * 4, 0.0, threshold=2 / 3)
    fresh, taken_back = plan.core.share_stddevs
    assert taken_back == 0 and fresh == pytest.approx(plan.config.noise_multiplier * math.sqrt(1.5), rel=1e-12)


def _answer_in_process(plan, memory, barrier, results):
  own = _guard(plan, memory=memory)
  barrier.wait()
  try:
    results.put(own.answer(1, [0, 1], [])['round'])
  except guard.RefusedError as error:
    results.put(str(error))


class TestMemory:
  @pytest.fixture
  def path(self, tmp_path):
    (tmp_path / 'client').mkdir()
    return str(tmp_path / 'client' / 'memory')

  def test_a_guard_goes_on_where_it_ended(self, plan, path):
    first = _told(_guard(plan, memory=path), 2)
    again = _guard(plan, memory=path)
    assert again.digest == first.digest
    with pytest.raises(guard.RefusedError, match='not after round 2'):
      again.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    assert again.answer(4, _SCHEDULE[3], _SCHEDULE[1])['last_round'] == 2
    # The first one learns of it.
    with pytest.raises(guard.RefusedError, match='not after round 4'):
      first.answer(3, [0, 1], _SCHEDULE[1])

  def test_a_round_in_which_it_has_no_part_is_remembered(self, plan, path):
    own = _told(_guard(plan, memory=path), 3)
    again = _guard(plan, memory=path)
    assert again.digest == own.digest
    assert again.answer(4, _SCHEDULE[3], _SCHEDULE[2])['last_round'] == 2

  def test_it_is_written_before_the_answer(self, plan, path, monkeypatch):
    own = _told(_guard(plan, memory=path), 1)
    monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('No space left on device')))
    with pytest.raises(guard.RefusedError, match='No space left'):
      own.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    monkeypatch.undo()
    # It did not answer: the round is still open.
    assert _guard(plan, memory=path).digest == own.digest
    assert own.answer(2, _SCHEDULE[1], _SCHEDULE[0])['last_round'] == 1

  def test_its_folder_is_flushed_before_the_answer(self, plan, path, monkeypatch):
    own, done, real, moved = _told(_guard(plan, memory=path), 1), [], os.fsync, os.replace
    monkeypatch.setattr(os, 'fsync', lambda fd: done.append(stat.S_ISDIR(os.fstat(fd).st_mode)) or real(fd))
    monkeypatch.setattr(os, 'replace', lambda *names: done.append('replace') or moved(*names))
    own.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    assert done == [False, 'replace', True, False]  # And then it counts.

  def test_a_crash_in_the_first_answer_costs_no_more_than_its_round(self, plan, path, monkeypatch):
    write = durable._write_whole
    monkeypatch.setattr(durable, '_write_whole', lambda *file: (write(*file), 1 / 0))
    with pytest.raises(ZeroDivisionError):
      _guard(plan, memory=path).answer(1, [0, 1], [])
    monkeypatch.undo()
    assert _guard(plan, memory=path).answer(2, [0, 1], [])['last_round'] == guard.NEW_CHAIN

  def test_its_files_are_their_owners_alone(self, plan, path):
    before = os.umask(0)
    try:
      _told(_guard(plan, memory=path), 2)
    finally:
      os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

  def test_a_crash_after_writing_costs_the_round(self, plan, path, monkeypatch):
    own, write = _told(_guard(plan, memory=path), 1), guard_memory.Memory.store
    monkeypatch.setattr(guard_memory.Memory, 'store', lambda self, lines: (write(self, lines), 1 / 0))
    with pytest.raises(ZeroDivisionError):
      own.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    monkeypatch.undo()
    again = _guard(plan, memory=path)
    with pytest.raises(guard.RefusedError, match='not after round 2'):
      again.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    assert again.answer(4, _SCHEDULE[3], [])['last_round'] == guard.NEW_CHAIN

  def test_another_history_of_the_same_length_is_refused(self, plan, path, tmp_path):
    own = _told(_guard(plan, memory=path), 1)
    other = str(tmp_path / 'other')
    _guard(plan, memory=other).answer(1, [0, 3], [])
    shutil.copyfile(other, path)
    with pytest.raises(guard.RefusedError, match='another one'):
      own.answer(2, [0, 1], [0, 1])

  @pytest.mark.parametrize('again', [False, True])
  @pytest.mark.parametrize(
    'damage, words',
    [
      (lambda path, old: os.remove(path), 'is gone'),
      (lambda path, old: shutil.copyfile(old, path), 'is not the latest copy'),
      (lambda path, old: os.truncate(path, os.path.getsize(path) - 1), 'damaged'),
      (lambda path, old: os.truncate(path, 0), 'damaged'),
      (lambda path, old: files.write(path, 'x'), 'damaged'),
      (lambda path, old: (os.remove(path), os.mkdir(path)), 'regular file'),
      (lambda path, old: (os.remove(path), os.symlink(old, path)), 'is not the latest copy'),
      (lambda path, old: shutil.rmtree(os.path.dirname(path)), 'is gone'),
    ],
  )
  def test_damage_is_refused(self, plan, path, tmp_path, damage, words, again):
    own = _told(_guard(plan, memory=path), 1)
    shutil.copyfile(path, tmp_path / 'old')  # All that its folder has.
    own.answer(2, _SCHEDULE[1], _SCHEDULE[0])
    damage(path, tmp_path / 'old')
    with pytest.raises(guard.RefusedError, match=words):
      (_guard(plan, memory=path) if again else own).answer(3, [0, 1], _SCHEDULE[1])

  def test_any_other_byte_is_refused(self, plan, path):
    _told(_guard(plan, memory=path), 2)
    with open(path, 'rb') as f:
      content = f.read()
    for place in range(0, len(content), 7):
      with open(path, 'wb') as f:
        f.write(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
      with pytest.raises(guard.RefusedError, match='damaged'):
        _guard(plan, memory=path)

  def test_another_plan_and_another_client_are_refused(self, plan, path):
    _told(_guard(plan, memory=path), 1)
    for other in (lambda: _guard(plan, 1, path), lambda: _guard(guard.PublicPlan.of(_plan(decay=0.6)), 0, path)):
      with pytest.raises(guard.RefusedError, match='another plan or another client'):
        other()

  def test_its_place_must_be_there(self, plan, tmp_path):
    with pytest.raises(guard.RefusedError, match='cannot be used'):
      _guard(plan, memory=str(tmp_path / 'no folder' / 'memory'))

  @pytest.mark.slow
  def test_of_two_processes_one_answers(self, plan, path):
    context = multiprocessing.get_context('fork')
    barrier, results = context.Barrier(2, timeout=processes.DEADLINE_SECONDS), context.Queue()
    both = [context.Process(target=_answer_in_process, args=(plan, path, barrier, results)) for _ in range(2)]
    for process in both:
      process.start()
    found = sorted((results.get(timeout=processes.DEADLINE_SECONDS) for _ in both), key=str)
    for process in both:
      process.join()
    assert found[0] == 1 and 'Round 1 is not after round 1' in found[1]

  def test_a_line_has_its_cohort(self, plan, path):
    _told(_guard(plan, memory=path), 1)
    with open(path, encoding='ascii') as f:
      _, _, line = f.read().splitlines()
    round_num, answered, cohort, came = line.split(' ')
    assert (round_num, answered, came) == ('1', '1', '')
    assert np.frombuffer(base64.b64decode(cohort), np.int32).tolist() == _SCHEDULE[0]


class TestGuardedClients:
  def test_who_cannot_pay_and_who_has_no_weight_is_silent(self):
    config = _plan().core
    guarded = guarded_clients.GuardedClients(config, b'secret')
    answers = guarded.answers(1, [5, 0])
    assert list(answers) == [0, 5] and answers[0]['weight'] > 0 and answers[5]['weight'] == 0
    assert not answers[5]['noise_key'].any()
    for round_num in range(2, 6):
      answers = guarded.answers(round_num, [0, 1])
    assert answers[0]['weight'] == answers[1]['weight'] == 0
    assert guarded.spent_max <= 1

  def test_after_the_planned_rounds_all_are_silent(self):
    answers = guarded_clients.GuardedClients(_plan().core, b'secret').answers(6, [0, 1, 2])
    assert not any(one['weight'] for one in answers.values())

  def test_keys_are_the_clients_own(self):
    config = _plan().core
    keys = lambda secret: [
      one['noise_key'].tobytes() for one in guarded_clients.GuardedClients(config, secret).answers(1, [0, 1]).values()
    ]
    assert len({*keys(b'one'), *keys(b'two')}) == 4 and keys(b'one') == keys(b'one')
