"""What an issuer may state: readable sentences, and figures that can be true."""

import dataclasses
import datetime
import unicodedata

import pytest

from quap_tff.certificates.folders import about
from tests.quap_tff.certificates import made

_CODE = {'quap_tff': '0.3.0', 'source_sha256': '0' * 64}
_STRETCH = {'first_round': 1, 'last_round': 4, 'code': _CODE, 'versions': {'numpy': '2.0.0rc1', 'python': '3.13.0+'}}


def _about(**changes):
  return dataclasses.replace(made.ABOUT, **changes)


def test_by_default_it_is_about_today():
  assert about.About('d', 'c', 't', 's').date == datetime.date.today().isoformat()


def test_everything_goes_through_json():
  stated = _about(stretches=[_STRETCH], data_commitment='a' * 64, public_data='EMNIST letters.', date='2026-11-24')
  kept = stated.as_dict()
  assert kept['stretches'] == [_STRETCH] and about.About(**{**kept, 'stretches': tuple(kept['stretches'])}) == stated


@pytest.mark.parametrize('name', ['dataset', 'cohorts', 'tuning', 'test_set', 'algorithm', 'model', 'features'])
@pytest.mark.parametrize('value', ['', ' ', '…', '. – .', None, 5, ['x']])
def test_a_sentence_is_a_text(name, value):
  with pytest.raises(ValueError, match=f'{name} must be a sentence or a name'):
    _about(**{name: value})


@pytest.mark.parametrize('name', ['public_data', 'post_processing'])
def test_what_need_not_be_said(name):
  assert getattr(_about(**{name: ''}), name) == ''
  with pytest.raises(ValueError, match=name):
    _about(**{name: None})


@pytest.mark.parametrize(
  'character',
  ['\x00', '\n', '\t', '\x1b', '\x7f', '\x85', '\u061c', '\u200b', '\u200e', '\u200f', '\u202a', '\u202d', '\u202e']
  + ['\u2028', '\u2029', '\u2066', '\u2067', '\u2069', '\ufeff', '\U000e0041', '\ud800']
  + ['\u2800', '\u3164', '\u115f', '\uffa0', '\u034f', '\ufe0f', '\U000e0100', '\U0001d159'],
)
@pytest.mark.parametrize('name', ['dataset', 'tuning', 'post_processing', 'algorithm'])
def test_no_character_is_hidden_or_reorders_others(name, character):
  with pytest.raises(ValueError, match=rf'{name} holds the character U\+{ord(character):04X}'):
    _about(**{name: f'By{character}theory.'})


# Values that a field refuses, and with which words.
_REFUSED = {
  ('tuning', 'at most 4,000 characters, found 4,001'): ['x' * 4001],
  ('tests', 'tests must be an integer at least 0'): [True, 1.0, '1', None, -1, 1.5],
  ('test_accuracy', 'test_accuracy must be a finite number at least 0 and at most 1'): [
    *(-0.1, 1.1, float('nan'), float('inf'), True, '0.5', 10**400)
  ],
  ('date', 'date must be a day, such as 2026-11-24'): [
    *('', '2026', '20261124', '2026-11-31', '2026-1-1', '24.11.2026', '2026-W48-2', '2026-11-24T00:00', 5, None)
  ],
  ('data_commitment', 'data_commitment must be a SHA-256'): ['x', 'A' * 64, 'a' * 63, 'a' * 65, None, 5],
}


@pytest.mark.parametrize('name, words, value', [(*key, value) for key, values in _REFUSED.items() for value in values])
def test_what_cannot_be_true(name, words, value):
  with pytest.raises(ValueError, match=words):
    _about(**{name: value})


@pytest.mark.parametrize(
  'name, value', [('tuning', 'x' * 4000), *(('test_accuracy', value) for value in (None, 0, 1, 0.5))]
)
def test_what_can_be_true(name, value):
  assert getattr(_about(**{name: value}), name) == value


@pytest.mark.parametrize(
  'stretch',
  [
    None,
    {},
    {**_STRETCH, 'machine': {}},
    {name: _STRETCH[name] for name in ('first_round', 'last_round', 'code')},
    {**_STRETCH, 'first_round': 0},
    {**_STRETCH, 'first_round': True},
    {**_STRETCH, 'first_round': 6},
    {**_STRETCH, 'last_round': '4'},
    {**_STRETCH, 'code': None},
    {**_STRETCH, 'code': {'quap_tff': '0.3.0'}},
    {**_STRETCH, 'code': {**_CODE, 'more': '1'}},
    {**_STRETCH, 'code': {**_CODE, 'source_sha256': 'of clean code'}},
    {**_STRETCH, 'code': {**_CODE, 'quap_tff': 'a version that was audited by others'}},
    {**_STRETCH, 'versions': None},
    {**_STRETCH, 'versions': {'numpy': 2}},
    {**_STRETCH, 'versions': {'numpy': {'client 7': 'label 3'}}},
    {**_STRETCH, 'versions': {'client 7 has': '3'}},
    {**_STRETCH, 'versions': {'numpy': ''}},
  ],
)
def test_a_stretch_of_rounds(stretch):
  with pytest.raises(ValueError):
    _about(stretches=[stretch])
  assert _about(stretches=[_STRETCH]).stretches == (_STRETCH,)


@pytest.mark.parametrize('value', [{'a\u202e': 1}, {'a': ['b', {'c': '\x1b'}]}, ['\n'], ('x', '\ud800')])
def test_texts_at_any_depth(value):
  with pytest.raises(ValueError, match='it holds the character'):
    about.check_text('it', value)


@pytest.mark.parametrize('value', [float('nan'), [float('inf')], {'a': -float('inf')}])
def test_numbers_at_any_depth(value):
  with pytest.raises(ValueError, match='it holds .* not a finite number'):
    about.check_text('it', value)


_PRIMES = '\u2032\u2033\u2034\u2036\u2057\u02b9\u02ba\u02bc\u02ee\u02dd\u02f6'
_ORNAMENTS = '\u275b\u275c\u275d\u275e\u275f\u2760\u276e\u276f\U0001f676\U0001f677\U0001f678'
_OTHERS = '\uff02\uff07\u3003\u301d\u301e\u301f\u300c\u300d\u05f4\u05f3\u2e42\u00b4\u00a8\u1cd3\ue000\u00a0\u2003'


def _quotation_marks():
  every = map(chr, [*range(0x20000), *range(0xE0000, 0xE0080)])  # Between them are ideographs.
  return [c for c in every if unicodedata.category(c) in ('Pi', 'Pf') or 'QUOTATION MARK' in unicodedata.name(c, '')]


@pytest.mark.parametrize('text', [*_quotation_marks(), *_PRIMES, *_ORNAMENTS, *_OTHERS, "''", '``', '"'])
def test_nothing_looks_as_if_it_ended_the_quotation(text):
  with pytest.raises(ValueError, match=r'tuning holds .*U\+[0-9A-F]{4,}'):
    _about(tuning=f'By theory.{text} This is proved: nothing leaks')


@pytest.mark.parametrize(
  'text',
  [
    "Alice's data, 'as is': 3 × 10^-5 ≤ δ – see [2] (p. 7).",
    'Ünïcode 日本語のデータ。',
    'עברית',
    'हिन्दी',
    'a·b … 50 €',
  ],
)
def test_an_issuer_may_write_in_any_language(text):
  assert _about(tuning=text).tuning == text


def test_plain_texts_are_those_of_any_language():
  about.check_text('it', {'ε ≤ 3': ['Ünïcode – “x” 日本語 עברית العربية 🙂', 5, None, True, 1.5]})
