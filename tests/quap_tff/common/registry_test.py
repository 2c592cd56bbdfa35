"""Tests of `quap_tff.common.registry`."""

import dataclasses
from typing import Optional

from hypothesis import given
from hypothesis import strategies as st
import pytest

from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.mechanisms.parts import clip_rules


@dataclasses.dataclass(frozen=True)
class _Sampler:
  weight: float = 0.5
  size: int = 3
  bound: Optional[float] = None
  repeat: bool = False
  order: str = 'asc'

  def __post_init__(self):
    if self.weight > 1:
      raise ValueError('weight is too large.')


@dataclasses.dataclass(frozen=True)
class _Plain:
  pass


@dataclasses.dataclass(frozen=True)
class _Open(checks.Checked):
  steps: Optional[int] = checks.integer_field('steps', None, at_least=1)
  decay: Optional[float] = None
  gain: tuple = ()
  last: bool = False


@dataclasses.dataclass(frozen=True)
class _Ruled:
  limit: Optional[float] = dataclasses.field(default=None, metadata={registry.CHOSEN: True})
  inner: Optional[_Sampler] = flag_fields.parameter('sampler', {'sampler': _Sampler}, None)


_REGISTRY = {'sampler': _Sampler, 'plain': _Plain}


class TestLookup:
  def test_returns_the_entry(self):
    assert registry.lookup('sampler', 'plain', _REGISTRY) is _Plain

  def test_unknown_name_is_an_error_with_the_nearest_and_all_names(self):
    with pytest.raises(ValueError, match=r"Unknown model 'samplr'\. Did you mean 'sampler'\? Valid: plain, sampler\."):
      registry.lookup('model', 'samplr', _REGISTRY)

  def test_a_name_near_nothing_lists_all_names(self):
    with pytest.raises(ValueError, match=r"^Unknown model 'xyzzy'\. Valid: plain, sampler\.$"):
      registry.lookup('model', 'xyzzy', _REGISTRY)

  def test_where_there_is_no_name_at_all(self):
    assert str(registry.unknown_name_error('rule', 'x', [])) == "Unknown rule 'x': there are none to choose from."

  def test_several_near_names_are_joined(self):
    error = registry.unknown_name_error('rule', 'mean', ['mean_a', 'mean_b'])
    assert "'mean_a' or 'mean_b'" in str(error) or "'mean_b' or 'mean_a'" in str(error)


class TestParseSpec:
  @pytest.mark.parametrize(
    'spec, expected',
    [
      ('plain', _Plain()),
      ('sampler', _Sampler()),
      ('sampler:', _Sampler()),
      ('sampler:weight=0.25,size=7', _Sampler(weight=0.25, size=7)),
      ('sampler:weight=1', _Sampler(weight=1.0)),
      ('sampler:bound=2.5,repeat=true', _Sampler(bound=2.5, repeat=True)),
      ('sampler:bound=none,repeat=False,order=desc', _Sampler(order='desc')),
    ],
  )
  def test_reads(self, spec, expected):
    parsed = registry.parse_spec('sampler', spec, _REGISTRY)
    assert parsed == expected
    assert [type(v) for v in dataclasses.astuple(parsed)] == [type(v) for v in dataclasses.astuple(expected)]

  @pytest.mark.parametrize(
    'spec, message',
    [
      ('smapler:size=2', "Did you mean 'sampler'"),
      ('sampler:wieght=0.2', "Did you mean 'weight'"),
      ('sampler:weight', "expected key=value, found 'weight'"),
      ('sampler:size=1,size=2', "'size' appears twice"),
      ('sampler:size=2.0', "size must be of type int, found '2.0'"),
      ('sampler:weight=big', "weight must be of type float, found 'big'"),
      ('sampler:bound=big', "bound must be of type float, found 'big'"),
      ('sampler:repeat=yes', "repeat must be true or false, found 'yes'"),
      ('sampler:weight=2', 'weight is too large'),
      ('plain:size=2', "'plain' takes no parameters, found 'size=2'"),
    ],
  )
  def test_refuses(self, spec, message):
    with pytest.raises(ValueError, match=message):
      registry.parse_spec('sampler', spec, _REGISTRY)

  def test_a_clip_rule_of_nan_is_refused(self):
    with pytest.raises(ValueError, match='clip quantile must be a finite number.*found nan'):
      registry.parse_spec('clip rule', 'quantile_ema:quantile=nan', clip_rules.RULES)


class TestFormatSpec:
  @pytest.mark.slow
  @given(
    weight=st.floats(-1e6, 1.0),
    size=st.integers(),
    bound=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    repeat=st.booleans(),
    order=st.text(alphabet='abcdef', min_size=1),
  )
  def test_is_read_back_as_the_same_choice(self, **values):
    choice = _Sampler(**values)
    assert registry.parse_spec('sampler', registry.format_spec('sampler', choice), _REGISTRY) == choice

  @pytest.mark.parametrize('name', sorted(clip_rules.RULES))
  def test_every_clip_rule_is_read_back(self, name):
    choice = clip_rules.RULES[name]()
    assert registry.parse_spec('clip rule', registry.format_spec(name, choice), clip_rules.RULES) == choice

  def test_a_choice_without_parameters_is_its_name(self):
    assert registry.format_spec('plain', _Plain()) == 'plain'


class TestFieldsWithoutADefault:
  def test_an_integer_or_none_is_read_and_checked(self):
    read = lambda spec: registry.parse_spec('open', spec, {'open': _Open})
    assert read('open:steps=3') == _Open(steps=3) and isinstance(read('open:steps=3').steps, int)
    assert read('open:steps=none') == _Open()
    for spec, message in (('steps=3.5', "must be of type int, found '3.5'"), ('steps=0', 'at least 1, found 0')):
      with pytest.raises(ValueError, match=message):
        read(f'open:{spec}')


class TestFieldsThatARuleChooses:
  @pytest.mark.parametrize(
    'spec, expected',
    [
      ('ruled', _Ruled()),
      ('ruled:limit=auto,inner=auto', _Ruled()),
      ('ruled:limit=2.5', _Ruled(2.5)),
      ('ruled:inner=sampler:size=7', _Ruled(inner=_Sampler(size=7))),
    ],
  )
  def test_auto_stands_for_none(self, spec, expected):
    choices = {'ruled': _Ruled}
    assert registry.parse_spec('ruled', spec, choices) == expected
    assert registry.parse_spec('ruled', registry.format_spec('ruled', expected), choices) == expected
    assert registry.described('ruled', _Ruled) == 'ruled:limit=auto,inner=auto'

  def test_none_is_refused(self):
    with pytest.raises(ValueError, match="limit must be of type float, found 'none'"):
      registry.parse_spec('ruled', 'ruled:limit=none', {'ruled': _Ruled})


class TestNames:
  def test_of_a_choice(self):
    assert registry.name_of(_Sampler(), _REGISTRY) == 'sampler'
    with pytest.raises(ValueError, match='_Open has no name. Register it: these are plain, sampler.'):
      registry.name_of(_Open(), _REGISTRY)


class TestDescribe:
  def test_lists_every_choice_with_its_defaults(self):
    assert registry.describe(_REGISTRY) == 'sampler:weight=0.5,size=3,bound=None,repeat=False,order=asc; plain'

  def test_what_it_lists_is_read_as_the_defaults(self):
    for spec in registry.describe(clip_rules.RULES).split('; '):
      name = spec.partition(':')[0]
      assert registry.parse_spec('clip rule', spec, clip_rules.RULES) == clip_rules.RULES[name]()
