"""Reading logs: what is a client, a weight and a release, and what is refused."""

import unicodedata

import numpy as np
import pytest

from quap_tff.accounting import logs
from quap_tff.mechanisms.noise import correlation as correlations


def _log(tmp_path, text):
  path = tmp_path / 'log.csv'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return logs.Log(str(path))


def _read(tmp_path, text):
  log = _log(tmp_path, text)
  return log, list(log.rounds())


def _refused(tmp_path, text):
  with pytest.raises(logs.LogError) as error:
    _read(tmp_path, text)
  return str(error.value).partition('log.csv, ')[2]


class TestReleased:
  def test_it_is_written(self, tmp_path):
    log, rounds = _read(tmp_path, 'round,client,weight,released\n1,a,1,yes\n1,b,0,YES\n2,,,yes\n3,,0, no \n4,a,0,no\n')
    assert [one.released for one in rounds] == [True, True, False, False]
    assert [one.ids.tolist() for one in rounds] == [[0, 1], [], [], [0]] and list(log.names) == ['a', 'b']
    assert [one.weights.tolist() for one in rounds] == [[1, 0], [], [], [0]]

  def test_without_the_column_it_is_a_weight(self, tmp_path):
    assert [one.released for one in _read(tmp_path, 'round,client,weight\n1,a,0\n2,,\n3,a,.5\n')[1]] == [0, 0, 1]
    assert [one.released for one in _read(tmp_path, 'round,client\n1,a\n2,\n3, \n4,a\n')[1]] == [1, 0, 0, 1]

  @pytest.mark.parametrize('released', ['yes', 'no'])
  def test_the_account_counts_releases(self, tmp_path, released):
    """A round that releases nothing does not fade what is seen of earlier ones, and shows nothing of them."""
    log = _log(tmp_path, f'round,client,weight,released\n1,a,1,yes\n2,,,{released}\n3,,,{released}\n4,a,1,yes\n')
    found = logs.account(log, 2.0, correlations.Ar1(0.9))
    column = correlations.Ar1(0.9).coefficients(4)
    second = 3 if released == 'yes' else 1
    moved = [column[s] + (column[s - second] if s >= second else 0.0) for s in range(second + 1)]
    assert found.mu_squared[0] == pytest.approx(sum(one * one for one in moved) / 4)
    assert sum(one * one for one in moved) / 4 <= found.mu_squared[0]

  def test_a_log_that_does_not_say_what_was_released_is_charged_for_both(self, tmp_path):
    """Round 2 may have released noise that shows round 1, or nothing, and then rounds 1 and 3 follow each other."""
    log = _log(tmp_path, 'round,client,weight\n1,a,1\n2,a,0\n3,a,1\n4,a,0\n')
    found = logs.account(log, 2.0, correlations.Ar1(0.9))
    released = 1 + 0.9**2 + (1 + 0.81) ** 2 + 0.9**2 * (1 + 0.81) ** 2
    assert found.mu_squared[0] >= max(released, 1 + 1.9**2) / 4
    assert found.num_rounds == 4

  @pytest.mark.parametrize(
    'rows, words',
    [
      ('1,a,1,yes\n1,b,1,no', 'line 3: its cell released is not that of the first row'),
      ('1,a,0,no\n1,b,.5,no', 'line 3: its client has a weight in a round that released nothing'),
      ('1,a,1,maybe', "line 2: released must be yes or no, found 'maybe'"),
      ('1,a,1,', "line 2: released must be yes or no, found ''"),
      ('1,a,1,yes\n1,,0,yes', 'line 3: it names no client, but its round has other rows'),
      ('1,,,yes\n1,,,yes', 'line 2: it names no client, but its round has other rows'),
      ('1,,.5,yes', 'line 2: it has a weight of .5, but no client'),
      ('1,,x,yes', "line 2: a weight must be a number from 0 to 1, found 'x'"),
      ('1,a,,yes', "line 2: a weight must be a number from 0 to 1, found ''"),
    ],
  )
  @pytest.mark.parametrize('chunk', [1, 1000])
  def test_contradictions_are_refused(self, rows, words, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, '_CHUNK', chunk)
    assert words in _refused(tmp_path, f'round,client,weight,released\n{rows}\n')


class TestColumns:
  @pytest.mark.parametrize(
    'header', ['round,client,weight,Weight', 'round,client,weight, weight', 'round,client,weight,weight\u200b']
  )
  def test_a_repeated_column_is_refused(self, header, tmp_path):
    words = _refused(tmp_path, f'{header}\n1,a,1,0.001\n')
    assert words.startswith("line 1: the header names a column twice, 'weight' and '") and words.isascii()

  def test_other_columns_are_not_read(self, tmp_path):
    log, _ = _read(tmp_path, 'Seconds,ROUND, Client ,,\n3,1,a,,\n4,1,b,,\n')
    assert list(log.names) == ['a', 'b']


class TestCells:
  def test_spaces_around_are_stripped(self, tmp_path):
    log, rounds = _read(tmp_path, 'round, client, weight\n1, a , 0.5\n 1,b\t,1\n2,a,1 \n2,  b,1\n')
    assert list(log.names) == ['a', 'b'] and log.num_clients == 2
    assert [(one.ids.tolist(), one.weights.tolist()) for one in rounds] == [([0, 1], [0.5, 1]), ([0, 1], [1, 1])]

  @pytest.mark.parametrize('text', ['0_1', '0_0', '1_0e-1', '０', '٠', '0.5_5'])
  def test_what_is_not_a_number(self, text, tmp_path):
    assert 'line 3: a weight must be a number' in _refused(tmp_path, f'round,client,weight\n1,a,1\n1,b,{text}\n')
    assert 'line 3: a round must be a number' in _refused(tmp_path, f'round,client\n1,a\n{text},b\n')

  @pytest.mark.parametrize(
    'other',
    ['JOSÉ', 'jose\u0301', 'ｊosé', 'j osé', 'jo\u200bsé', 'jos\xadé', '\u202ejosé', 'jo\ufe0fsé', 'jo\x00sé']
    + ['josé\U0001d159', 'jo\U00016fe4sé', 'josé\U000e0fff', 'jo\u2065sé'],
  )
  def test_names_that_can_be_taken_for_each_other(self, other, tmp_path):
    for first, second, space in (('josé', other, ''), (other, 'josé', ''), ('josé', other, ' ')):
      words = _refused(tmp_path, f'round,client\n1,x\n2,{first}\n2,y\n3,{second}{space}\n')
      assert words.startswith(f'line 5: its client {second!a} and the client {first!a} of line 3 differ only by case')
      assert words.isascii()

  @pytest.mark.parametrize(
    'first, second',
    [('7', '007'), ('07', '7.0'), ('7.', '+7'), ('1.50', '01.5'), ('.5', '0.5'), ('-0', '0.00'), ('70', '7.00E+01')]
    + [('00', '0'), ('0.05', '5E-02'), ('12345678901234567890123456789012', '012345678901234567890123456789012')],
  )
  def test_numbers_that_a_spreadsheet_takes_for_each_other(self, first, second, tmp_path):
    for one, other in ((first, second), (second, first)):
      words = _refused(tmp_path, f'round,client\n1,x\n2,{one}\n3,{other}\n')
      assert words.startswith(f'line 4: its client {other!a} and the client {one!a} of line 3 differ only by')

  def test_all_spellings_are_shown(self, tmp_path):
    words = _refused(tmp_path, 'round,client\n1,7\n1,8\n2,007\n3,07\n4,007\n5,7.0\n6,70\n')
    assert "The log has '7', '007', '07', '7.0'. If they are one client" in words

  @pytest.mark.parametrize('name', ['\u200b', '\u3164', '"\u2800 \u200e"'])
  def test_a_name_that_nobody_sees(self, name, tmp_path):
    assert 'line 3: its client' in (words := _refused(tmp_path, f'round,client\n1,x\n2,{name}\n'))
    assert 'has no visible character' in words

  def test_names_that_differ(self, tmp_path):
    names = [
      'a',
      'a-1',
      'A_1',
      'é',
      'è',
      'e',
      'ß',
      '1',
      '10',
      '1.5',
      '1e5',
      '100000',
      '0x1',
      '1-0',
      '1.0.0',
      '.',
      '-',
      'e+1',
      'Ω',
      'א',
      '山田',
      'f_00.png',
      'Smith John',
    ]
    log, rounds = _read(tmp_path, 'round,client\n' + ''.join(f'{t},{name}\n' for t in (1, 2) for name in names))
    assert list(log.names) == names and rounds[1].ids.tolist() == list(range(len(names)))

  def test_each_name_is_checked_once(self, tmp_path, monkeypatch):
    seen = []
    normalize = unicodedata.normalize
    monkeypatch.setattr(unicodedata, 'normalize', lambda form, text: seen.append(text) or normalize(form, text))
    _read(tmp_path, 'round,client\n' + ''.join(f'{t},é{i}\n' for t in range(200) for i in range(5)))
    assert len(seen) == 2 * 5


def test_a_line_that_is_not_utf8_is_named(tmp_path):
  rows = [f'{t},ünder'.encode() for t in range(1, 4000)]
  rows[2999] = b'3000,\xfcnder'
  assert _refused(tmp_path, b'round,client\n' + b'\n'.join(rows)).startswith('line 3001: it is not text in UTF-8')
  rows[2999] = b'3000,"a\nb\xff"'
  assert _refused(tmp_path, b'round,client\r\n' + b'\r\n'.join(rows)).startswith('line 3002: it is not text in UTF-8')
  assert _refused(tmp_path, 'round,client\n1,a\n'.encode('utf-16')).startswith('line 1: it is not text in UTF-8')


def test_a_client_twice_is_shown_escaped(tmp_path):
  words = _refused(tmp_path, 'round,client\n1,a\x1b[2Jb\n1,a\x1b[2Jb\n')
  assert words.startswith("line 3: client 'a\\x1b[2Jb' is in this round already")


def test_empty_rounds_at_the_ends(tmp_path):
  found = logs.account(_log(tmp_path, 'round,client\n0,\n1,a\n2,\n'), 1.0)
  assert found.num_rounds == 3 and found.counts.tolist() == [1] and np.all(found.mu_squared >= 1)
