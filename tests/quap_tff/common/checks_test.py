"""Tests of `quap_tff.common.checks`."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
from typing import Optional

import numpy as np
import pytest

import data
import experiments
import quap_tff
from quap_tff.common import checks


@dataclasses.dataclass(frozen=True)
class _Checked(checks.Checked):
  share: float = checks.number_field('the share', 0.5, at_least=0, below=1)
  most: Optional[int] = checks.integer_field('most', None, at_least=1)


def _classes():
  """Every dataclass of the project that has checked fields."""
  found = {}
  for package in (quap_tff, data, experiments):
    for one in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):
      # These need packages of other environments.
      if not one.name.startswith('quap_tff.flower'):
        found.update({v: None for v in vars(importlib.import_module(one.name)).values() if isinstance(v, type)})
  return [one for one in found if dataclasses.is_dataclass(one) and _checked(one)]


def _checked(one):
  return [field.name for field in dataclasses.fields(one) if 'check' in field.metadata]


class TestNumber:
  @pytest.mark.parametrize('value', [1, 1.5, np.float32(1.5), np.float64(1.5), np.int64(2)])
  def test_returns_a_float(self, value):
    result = checks.number('x', value, above=0, at_most=2)
    assert result == value
    assert type(result) is float  # pylint: disable=unidiomatic-typecheck

  @pytest.mark.parametrize(
    'value', [math.nan, math.inf, -math.inf, None, '1', True, [1.0], 1j, 10**400, np.bool_(True)]
  )
  def test_refuses_what_is_no_finite_number(self, value):
    with pytest.raises(ValueError, match='x must be a finite number'):
      checks.number('x', value)

  @pytest.mark.parametrize(
    'bounds, at_bound',
    [(dict(above=2), False), (dict(at_least=2), True), (dict(below=2), False), (dict(at_most=2), True)],
  )
  def test_bounds_are_open_or_closed_as_their_names_say(self, bounds, at_bound):
    if at_bound:
      assert checks.number('x', 2, **bounds) == 2.0
    else:
      with pytest.raises(ValueError, match='x must be a finite number (greater|less) than 2, found 2'):
        checks.number('x', 2, **bounds)

  @pytest.mark.parametrize(
    'bounds, outside', [(dict(above=0), -1), (dict(at_least=0), -1), (dict(below=0), 1), (dict(at_most=0), 1)]
  )
  def test_outside_is_refused(self, bounds, outside):
    with pytest.raises(ValueError, match='found'):
      checks.number('x', outside, **bounds)

  def test_the_error_says_all_bounds(self):
    message = r'^delta must be a finite number greater than 0 and less than 1, found 1\.0\.$'
    with pytest.raises(ValueError, match=message):
      checks.number('delta', 1.0, above=0, below=1)


class TestInteger:
  @pytest.mark.parametrize('value', [0, 3, np.int32(3), np.int64(0)])
  def test_accepts_integers(self, value):
    assert checks.integer('n', value, at_least=0, at_most=3) == value

  @pytest.mark.parametrize('value', [1.0, math.nan, None, '1', True, np.float32(1), np.bool_(True)])
  def test_refuses_what_is_no_integer(self, value):
    with pytest.raises(ValueError, match='n must be an integer'):
      checks.integer('n', value)

  @pytest.mark.parametrize('value', [0, 5, 10**400])
  def test_refuses_what_is_outside(self, value):
    with pytest.raises(ValueError, match='n must be an integer at least 1 and at most 4, found'):
      checks.integer('n', value, at_least=1, at_most=4)

  def test_the_error_has_the_same_number_with_every_numpy(self):
    with pytest.raises(ValueError, match=r'found 1\.0\.$'):
      checks.integer('n', np.float32(1))
    with pytest.raises(ValueError, match=r'found -1\.5\.$'):
      checks.number('x', np.float64(-1.5), at_least=0)

  def test_without_bounds_the_error_reads_well(self):
    with pytest.raises(ValueError, match='^n must be an integer, found None.$'):
      checks.integer('n', None)


class TestFields:
  def test_bounds_hold_where_a_field_is_given(self):
    assert _Checked(0.9, 2) == _Checked(0.9, most=2) and _Checked().most is None
    for wrong, words in (
      (dict(share=1), 'the share must be a finite number at least 0 and less than 1, found 1'),
      (dict(share=None), 'the share must be a finite number'),
      (dict(most=0), 'most must be an integer at least 1, found 0'),
    ):
      with pytest.raises(ValueError, match=words):
        _Checked(**wrong)
      with pytest.raises(ValueError, match=words):
        dataclasses.replace(_Checked(), **wrong)

  @pytest.mark.parametrize('given, same', [(0, 0.0), (-0.0, 0.0), (np.float32(0.5), 0.5)])
  def test_one_value_has_one_text(self, given, same):
    assert repr(_Checked(given, np.int64(2))) == repr(_Checked(same, 2))

  def test_no_class_forgets_to_check(self):
    pytest.importorskip('tensorflow_federated')
    classes = _classes()
    assert len(classes) > 40
    for one in filter(lambda one: not inspect.isabstract(one), classes):
      others = {f.name: None for f in dataclasses.fields(one) if f.default is f.default_factory is dataclasses.MISSING}
      for name in _checked(one):
        with pytest.raises(ValueError, match='must be|Unknown'):
          one(**{**others, name: 'text'})


@dataclasses.dataclass(frozen=True)
class _Switch(checks.Checked):
  on: bool = False
  other: object = None


@pytest.mark.parametrize('value', [1, 0, 'yes', None, {'client 7': 3}])
def test_a_field_that_is_true_or_false(value):
  assert _Switch(True).on and not _Switch(other=value).on
  with pytest.raises(ValueError, match='on must be true or false, found'):
    _Switch(on=value)


class TestNumbersOfClients:
  @pytest.mark.parametrize('values', [(1, 2.5), [1.0, np.float32(2.5)], np.array([1, 2.5], np.float16)])
  def test_numbers_in_the_order_of_the_ids(self, values):
    found = checks.numbers_of_clients('bounds', values, 2)
    assert found.dtype == np.float64 and found.tolist() == [1.0, 2.5]

  @pytest.mark.parametrize(
    'values, found',
    [
      (['1', '2'], r'text of shape \[2\]'),
      ('12', "the str '12'"),
      ({0: 1.0, 1: 2.0}, 'the dict {0: 1.0'),
      ({1.0, 2.0}, 'the set {'),
      ([True, False], r'true or false of shape \[2\]'),
      ([None, 1.0], r'object of shape \[2\]'),
      ([1.0], r'float64 of shape \[1\]'),
      ([1.0, [2.0]], r'\[1.0, \[2.0\]\]'),
      (1.0, 'the float 1.0'),
    ],
  )
  def test_other_values_are_refused(self, values, found):
    message = r'bounds must be float\[2\], one number for each client in the order of the ids, found ' + found
    with pytest.raises(ValueError, match=message):
      checks.numbers_of_clients('bounds', values, 2)
