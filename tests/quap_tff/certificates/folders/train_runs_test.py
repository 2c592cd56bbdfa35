"""The stretches of run.json, as all read them: a run that goes on, and both verifiers.

tests/experiments/verify_test.py has the files of real runs, and what both verifiers refuse of them.
"""

import pytest

from quap_tff.certificates.folders import folder_files
from quap_tff.certificates.folders import train_runs

_CODE = {'quap_tff': '0.4.0', 'source_sha256': '0' * 64}
_OTHER = {**_CODE, 'source_sha256': 'f' * 64}
_HERE = {'versions': {'numpy': '1.25.2'}, 'machine': {'platform': 'x', 'cores': 2, 'gpus': 0}}


def _stretch(first_round, code=_CODE, **changes):
  return {'first_round': first_round, 'code': code, **_HERE, **changes}


_RUN = {'stretches': [_stretch(1), _stretch(4, _OTHER), _stretch(7)]}


@pytest.mark.parametrize('last_round, firsts', [(0, []), (1, [1]), (3, [1]), (4, [1, 4]), (6, [1, 4]), (9, [1, 4, 7])])
def test_those_of_the_rounds_that_were_kept(last_round, firsts):
  assert [one['first_round'] for one in train_runs.stretches(_RUN, last_round)] == firsts


@pytest.mark.parametrize(
  'num_rounds, rounds', [(0, [(1, 0)]), (3, [(1, 3)]), (6, [(1, 3), (4, 6)]), (7, [(1, 3), (4, 6), (7, 7)])]
)
def test_what_a_certificate_states(num_rounds, rounds):
  found = train_runs.stated_stretches(_RUN, num_rounds)
  assert [(one['first_round'], one['last_round']) for one in found] == rounds
  assert [one['code'] for one in found] == [_CODE, _OTHER, _CODE][: len(rounds)]
  assert all(set(one) == {'first_round', 'last_round', 'code', 'versions'} for one in found)


def test_a_run_that_has_not_begun_has_none():
  assert train_runs.stretches({'stretches': []}, 0) == []


@pytest.mark.parametrize(
  'run',
  [
    {},
    {'stretches': None},
    {'stretches': 'x'},
    {'stretches': [1]},
    {'stretches': []},
    *(
      {'stretches': [_stretch(1), one]}
      for one in (
        _stretch(1),
        _stretch(0),
        _stretch('2'),
        _stretch(True),
        _stretch(2, None),
        _stretch(2, {}),
        _stretch(2, {**_CODE, 'source_sha256': 'x'}),
        _stretch(2, machine=None),
        _stretch(2, machine={'cores': 2}),
        _stretch(2, versions={'numpy': 'a version without faults'}),
        _stretch(2, more=1),
        _stretch(99, machine={'client 7': 3}),
      )
    ),
    {'stretches': [_stretch(2)]},
  ],
)
def test_others_are_refused_by_every_reader(run):
  with pytest.raises(ValueError, match='the stretches are not those of a run: '):
    train_runs.stretches(run, 2)
  with pytest.raises(folder_files.FolderError, match='run.json does not say which code ran which rounds: the stretch'):
    train_runs.stated_stretches(run, 2)
