"""Which code ran which rounds: every run says so, and a certified run goes on with other code only if told to."""

import contextlib
import json

import numpy as np
import pytest

from experiments.folders import directory as run_directory
from experiments.folders import folder as run_folder
from tests.experiments import harness
from tests.experiments import library as runs

_IDENTITY = {'rounds': 8}


@contextlib.contextmanager
def _opened(path, **options):
  directory = run_directory.RunDirectory(str(path), _IDENTITY, _IDENTITY, {'num_clients': 2}, b'data', **options)
  with contextlib.closing(directory):
    yield directory


def _run_rounds(path, first, last, **options):
  """What a process does that runs these rounds; none if `last` is `first` - 1, as one that is killed in its first."""
  with _opened(path, **options) as directory:
    directory.begin_stretch(first)
    for round_num in range(first, last + 1):
      directory.store.write({'done': np.array(round_num)})


def _run_json(path):
  return json.loads((path / 'run.json').read_text(encoding='utf-8'))


def _stretches(path):
  return [
    (one['first_round'], one['code'] and one['code']['source_sha256'][:1]) for one in _run_json(path)['stretches']
  ]


@pytest.fixture(name='code_is')
def _code_is(monkeypatch):
  """A function that makes this program another one."""
  return lambda name: monkeypatch.setattr(run_folder, 'source_digest', lambda: name * 64)


class TestSourceDigest:
  def test_is_of_every_file(self, tmp_path):
    def digest(files):
      root = tmp_path / str(len(list(tmp_path.iterdir())))
      for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
      return run_folder.source_digest(str(root))

    files = {'quap_tff/a.py': 'a', 'data/b.py': 'b', 'experiments/x/c.py': 'c'}
    others = [{**files, 'data/b.py': 'd'}, {**files, 'quap_tff/new.py': ''}, {**files, 'experiments/x/c.py': 'd'}]
    assert digest(files) == digest({**files, 'tests/t.py': 't', 'quap_tff/notes.txt': 'n'})
    assert len({digest(f) for f in [files, *others]}) == 4


class TestStretches:
  def test_one_for_all_rounds_of_one_code(self, tmp_path, code_is):
    code_is('a')
    _run_rounds(tmp_path, 1, 2)
    before = harness.files(tmp_path)['run.json']
    _run_rounds(tmp_path, 3, 4)
    assert _stretches(tmp_path) == [(1, 'a')] and harness.files(tmp_path)['run.json'] == before
    run = _run_json(tmp_path)
    assert run['stretches'][0]['versions'] == run['versions'] and run['stretches'][0]['machine'] == run['machine']

  def test_another_code_begins_another(self, tmp_path, code_is):
    for name, first, last in (('a', 1, 2), ('b', 3, 3), ('a', 4, 5)):
      code_is(name)
      _run_rounds(tmp_path, first, last)
    assert _stretches(tmp_path) == [(1, 'a'), (3, 'b'), (4, 'a')]

  def test_one_of_which_no_round_was_kept_is_replaced(self, tmp_path, code_is):
    for name, first, last in (('a', 1, 0), ('b', 1, 2), ('c', 3, 2), ('d', 3, 2)):
      code_is(name)
      _run_rounds(tmp_path, first, last)
    assert _stretches(tmp_path) == [(1, 'b'), (3, 'd')]
    code_is('b')
    _run_rounds(tmp_path, 3, 4)
    assert _stretches(tmp_path) == [(1, 'b')]

  def test_other_versions_or_another_machine_are_written_down_and_not_refused(self, tmp_path, monkeypatch):
    _run_rounds(tmp_path, 1, 2)
    monkeypatch.setattr(run_folder, 'machine', lambda: {'cores': 1000})
    _run_rounds(tmp_path, 3, 4, needs_same_code=True)
    first, second = _run_json(tmp_path)['stretches']
    assert (second['first_round'], second['machine']) == (3, {'cores': 1000})
    assert second['code'] == first['code'] and second['versions'] == first['versions']

  @pytest.mark.parametrize(
    'change',
    [
      lambda stretches: None,
      lambda stretches: 'abc',
      lambda stretches: [],
      lambda stretches: [1],
      lambda stretches: [{**stretches[0], 'first_round': '1'}],
      lambda stretches: [{**stretches[0], 'first_round': True}],
      lambda stretches: [{**stretches[0], 'first_round': 2}],
      lambda stretches: [*stretches, stretches[0]],
      lambda stretches: [{**stretches[0], 'code': None}],
      lambda stretches: [{**stretches[0], 'code': {}}],
      lambda stretches: [{name: value for name, value in stretches[0].items() if name != 'machine'}],
    ],
  )
  def test_others_are_refused_before_anything_is_written(self, change, tmp_path):
    _run_rounds(tmp_path, 1, 2)
    run = _run_json(tmp_path)
    (tmp_path / 'run.json').write_text(json.dumps({**run, 'stretches': change(run['stretches'])}))
    before = harness.files(tmp_path)
    with pytest.raises(run_folder.RunDirectoryError, match='run.json is damaged: .*stretches .* Put it back'):
      _run_rounds(tmp_path, 3, 4)
    assert harness.files(tmp_path) == before


def _stretch(first_round, letter='a'):
  code = {'quap_tff': '0.4.0', 'source_sha256': 64 * letter}
  machine = {'platform': 'x', 'cores': 2, 'gpus': 0, 'onednn': True}
  return {'first_round': first_round, 'code': code, 'versions': {'numpy': '1.25.2'}, 'machine': machine}


@pytest.mark.parametrize(
  'num_rounds, rounds', [(0, [(1, 0)]), (3, [(1, 3)]), (6, [(1, 3), (4, 6)]), (7, [(1, 3), (4, 6), (7, 7)])]
)
def test_which_code_ran_which_rounds_as_a_certificate_states_it(num_rounds, rounds):
  """A process may have ended before the first of its rounds was kept."""
  run = {'stretches': [_stretch(1), _stretch(4, 'b'), _stretch(7)]}
  found = run_folder.stated_stretches(run, num_rounds)
  assert [(one['first_round'], one['last_round']) for one in found] == rounds
  assert ''.join(one['code']['source_sha256'][0] for one in found) == 'aba'[: len(rounds)]
  assert all(set(one) == {'first_round', 'last_round', 'code', 'versions'} for one in found)
  with pytest.raises(ValueError, match='the stretches are not those of a run: '):
    run_folder.stated_stretches({'stretches': [_stretch(2)]}, num_rounds)


class TestOtherCode:
  def test_is_refused_where_it_must_be_the_same(self, tmp_path, code_is):
    code_is('a')
    _run_rounds(tmp_path, 1, 2, needs_same_code=True)
    code_is('b')
    before = harness.files(tmp_path)
    with pytest.raises(run_folder.RunDirectoryError, match=r'round 2 .* other code: .* a{64}\. This .* b{64}\.'):
      run_folder.check(str(tmp_path), _IDENTITY, needs_same_code=True)
    with pytest.raises(run_folder.RunDirectoryError, match='--allow_code_change'):
      _run_rounds(tmp_path, 3, 4, needs_same_code=True)
    assert harness.files(tmp_path) == before

  def test_may_begin_a_run_of_which_no_round_was_kept(self, tmp_path, code_is):
    code_is('a')
    with _opened(tmp_path, needs_same_code=True) as directory:
      directory.begin_stretch(1)
      directory.store.write({'done': np.array(0)})
    code_is('b')
    _run_rounds(tmp_path, 1, 1, needs_same_code=True)
    assert _stretches(tmp_path) == [(1, 'b')]

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_a_certified_run_goes_on_with_it_only_if_told_to(self, tmp_path, code_is, capsys):
    path = tmp_path / 'run'
    arguments = [*harness.TINY, *runs.RUNS['certified'], f'--output_dir={path}']
    code_is('a')
    assert harness.main(*arguments, '--stop_after=2') == 0
    code_is('b')
    before = harness.files(path)
    assert harness.main(*arguments) == 1
    err = capsys.readouterr().err
    assert 'round 2 was run by other code' in err and '--allow_code_change' in err and 'Traceback' not in err
    assert harness.files(path) == before
    assert harness.main(*arguments, '--allow_code_change') == 0
    expected = [(1, 'a'), (3, 'b')]
    assert _stretches(path) == expected
    # Nothing is left to run, so there is nothing to refuse.
    code_is('c')
    assert harness.main(*arguments) == 0
    assert 'finished already' in capsys.readouterr().err and _stretches(path) == expected

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_any_other_run_goes_on_and_writes_it_down(self, tmp_path, code_is, capsys):
    path = tmp_path / 'run'
    code_is('a')
    assert harness.main(*harness.TINY, f'--output_dir={path}', '--stop_after=2') == 0
    code_is('b')
    assert harness.main(*harness.TINY, f'--output_dir={path}') == 0
    assert _stretches(path) == [(1, 'a'), (3, 'b')]
