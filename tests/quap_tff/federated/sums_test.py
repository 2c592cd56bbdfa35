"""Tests of `quap_tff.federated.sums.secure_sum`: exact signed sums, and an error for all that would wrap around."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from quap_tff.federated import leaving_clients
from quap_tff.federated import sums

_STRUCT = tff.to_type([(np.int64, [3]), np.int64])
_CLIENTS = 5
_BOUNDS = [100, 2**40]
_LARGEST = (2**63 - 1) // (2 * _CLIENTS**2)


def _total(bounds=tuple(_BOUNDS), max_clients=_CLIENTS, member=_STRUCT, placement=tff.CLIENTS):
  build = lambda values: sums.secure_sum(values, bounds, max_clients)
  return tff.federated_computation(build, tff.FederatedType(member, placement))


def _value(vector, scalar):
  return [np.array(vector, np.int64), scalar]


def _check(total, cohort):
  vector, scalar = total(cohort)
  assert vector.dtype == scalar.dtype == np.int64
  assert vector.tolist() == [sum(int(value[0][i]) for value in cohort) for i in range(3)]
  assert scalar == sum(value[1] for value in cohort)


_COHORTS = [
  [],
  [_value([1, 0, -1], 5)],
  [_value([1, 2, 3], -5), _value([-7, -2, 100], 2**40)],
  [_value([-100, 100, 99], -(2**40))] * _CLIENTS,
]


@pytest.mark.slow
@pytest.mark.parametrize('cohort', _COHORTS)
def test_the_sum_is_exact(context, cohort):
  _check(_total(), cohort)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
  'kind',
  [pytest.param('native', marks=pytest.mark.thorough), 'workers', pytest.param('tff', marks=pytest.mark.thorough)],
)
def test_in_other_contexts(kind):
  own = tff.framework.get_context_stack().install
  context = own(tff.backends.test.create_sync_test_cpp_execution_context()) if kind == 'tff' else runtime.activate(kind)
  with context:
    total = _total()
    for cohort in _COHORTS:
      _check(total, cohort)
    extreme = _total([0, _LARGEST])
    _check(extreme, [_value([0, 0, 0], -_LARGEST)] * _CLIENTS)


@pytest.mark.slow
@pytest.mark.parametrize('sign', [pytest.param(1, marks=pytest.mark.thorough), -1])
def test_the_largest_bound(context, sign):
  _check(_total([0, _LARGEST]), [_value([0, 0, 0], sign * _LARGEST)] * _CLIENTS)


@pytest.mark.slow
def test_the_order_of_clients_changes_nothing(context):
  cohort = [_value([i, -i, 7], (-1) ** i * (2**40 - i)) for i in range(4)]
  total = _total()
  found = {(tuple(vector), int(scalar)) for vector, scalar in map(total, map(list, itertools.permutations(cohort)))}
  assert found == {((6, -6, 28), 2)}


@pytest.mark.slow
def test_names_do_not_reorder_tensors(context):
  member = tff.to_type(collections.OrderedDict(b=np.int64, a=(np.int64, [2])))
  total = _total([1, 20], member=member)
  b, a = total([collections.OrderedDict(b=-1, a=np.int64([20, -20]))] * 2)
  assert (b, a.tolist()) == (-2, [40, -40])


def test_nothing_else_leaves_clients():
  (found,) = leaving_clients.leaving_clients(_total())
  assert found[0] == 'federated_secure_modular_sum'
  assert found[1].compact_representation() == '<int64[3],int64,int64>'  # The last one counts clients.


@pytest.mark.slow
@pytest.mark.parametrize(
  'value, found',
  [
    (_value([0, 101, 0], 0), r'tensor 0 .* in \[-100, 100\], its bound; found \[101\]'),
    pytest.param(_value([0, -101, 100], 0), r'tensor 0 .* found \[-101\]', marks=pytest.mark.thorough),
    pytest.param(
      *(_value([0, 0, 0], 2**40 + 1), r'tensor 1 .* in \[-1099511627776, 1099511627776\]'), marks=pytest.mark.thorough
    ),
    (_value([0, 0, 0], -(2**63)), r'tensor 1 .* found \[-9223372036854775808\]'),
  ],
)
def test_an_entry_beyond_its_bound(context, value, found):
  with pytest.raises(runtime.ClientError, match=f'^Client 1 .*An entry of {found}'):
    _total()([_value([0, 0, 0], 0), value])


@pytest.mark.slow
def test_more_clients_than_were_said(context):
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'at most 5 clients was given more.*of clients: \[6\]'):
    _total()([_value([0, 0, 0], 0)] * 6)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(max_clients=0), 'max_clients must be an integer at least 1, found 0'),
    (dict(bounds=[1]), 'one number for each of the 2 tensors, found 1'),
    (dict(bounds=[1, -1]), r'bounds\[1\] must be an integer at least 0, found -1'),
    (dict(bounds=[1.5, 1]), r'bounds\[0\] must be an integer at least 0, found 1.5'),
    (
      dict(bounds=[1, _LARGEST + 1]),
      rf'bounds\[1\] is {_LARGEST + 1}, but with 5 clients .* up to a bound of {_LARGEST}',
    ),
  ],
)
def test_numbers_that_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    _total(**arguments)


@pytest.mark.parametrize(
  'arguments',
  [
    dict(member=tff.to_type([(np.int32, [3]), np.int64])),
    dict(member=tff.to_type([[(np.int64, [3])], np.int64])),
    dict(member=tff.to_type(np.int64)),
    dict(member=tff.to_type([]), bounds=[]),
    dict(placement=tff.SERVER),
  ],
)
def test_types_that_are_refused(arguments):
  with pytest.raises(TypeError, match='Expected a struct of int64 tensors at the clients to sum securely, found'):
    _total(**arguments)


def test_what_is_no_federated_value():
  with pytest.raises(TypeError, match='Expected a struct of int64 tensors at the clients .* found 3'):
    sums.secure_sum(3, [1], 1)
