"""Tests of `quap_tff.runtime.workers`: what each worker gets of an argument."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from quap_tff.runtime import workers
from quap_tff.runtime.values import values

_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)
_EVERYWHERE = tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True)
_AT_SERVER = tff.FederatedType(np.int32, tff.SERVER)


@pytest.mark.parametrize(
  'clients, count, expected',
  [
    (5, 2, [[0, 1, 2], [3, 4]]),
    (4, 2, [[0, 1], [2, 3]]),
    (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    (7, 2, [[0, 1, 2, 3], [4, 5, 6]]),
    (2, 3, [[0], [1]]),
    (3, 1, [[0, 1, 2]]),
    (0, 3, [[]]),
  ],
)
def test_parts_are_contiguous_and_even(clients, count, expected):
  assert workers.split(list(range(clients)), _AT_CLIENTS, count) == expected


def test_what_is_not_each_clients_own_goes_to_all():
  type_spec = tff.to_type(collections.OrderedDict(state=_AT_SERVER, data=_AT_CLIENTS, rate=_EVERYWHERE))
  found = workers.split(collections.OrderedDict(state=7, data=[1, 2, 3], rate=9), type_spec, 2)
  assert [tff.structure.to_odict(part) for part in found] == [
    {'state': 7, 'data': [1, 2], 'rate': 9},
    {'state': 7, 'data': [3], 'rate': 9},
  ]


def test_an_argument_without_clients_has_no_cohort():
  assert values.num_clients(7, _AT_SERVER) is None
  assert values.num_clients(None, None) is None
