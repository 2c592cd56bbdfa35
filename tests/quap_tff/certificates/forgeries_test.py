"""Folders that were changed and sealed again by their issuer, who has the program: each is found out.

The certificate, its digests and its page are made anew after each change, whatever refuses it (`made.reseal`).
"""

import csv
import io
import json
import os
import re
import zipfile

import numpy as np
import pytest

from quap_tff import plans
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import shapes
from quap_tff.common import files
from quap_tff.common import registry
from quap_tff.mechanisms import sparsity
from tests.quap_tff.certificates import made

_MECHANISM, _SCHEDULE, _LEDGER, _CLIENTS = folders.MECHANISM, folders.SCHEDULE, folders.LEDGER, folders.CLIENTS
_WRITTEN = 'not defined, or a value that is written in another way'
_HIDDEN = b'client 7 has the label 3\n'


def _check(path, words, capsys):
  status, lines = made.answer(path, capsys)
  assert status == 1 and lines[0] == 'INVALID', lines
  assert [line for line in lines[1:] if words in line], lines


def _check_sealed(path, words, capsys):
  made.reseal(path)
  _check(path, words, capsys)


def _at(value, *keys):
  for key in keys:
    value = value[key]
  return value


def _set(*place, value):
  """Changes a value in mechanism.json."""
  return lambda path: made.change(path, _MECHANISM, lambda v: _at(v, *place[:-1]).__setitem__(place[-1], value))


def _refit(path):
  """Makes the ledger and clients.csv anew, as the changed mechanism would have them."""
  value = made.read(path, _MECHANISM)
  config = folders.read_config(value['trust'], value['mechanism'])
  schedule, attendance = folders._schedule(str(path), config)
  plan = plans.Plan.certified(
    config,
    schedule,
    attendance=attendance,
    colluders=value['colluders'],
    model=shapes.model_shape(value),
    sparsity=registry.parse_spec('sparsity', value['sparsity'], sparsity.SPARSITIES),
    own_updates='updates' in value,
  )
  ledger = made.ledger(plan)
  made.write_arrays(path / _LEDGER, ledger.state_dict())
  (path / _CLIENTS).write_text(folders.clients_text(plan, ledger))


class TestNobody:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', ['certified', 'held', 'own_updates'])
  def test_who_changes_nothing_is_not_found_out(self, name, request, capsys):
    path = request.getfixturevalue(name)
    before = (path / folders.CERTIFICATE).read_bytes()
    made.reseal(path)
    assert (path / folders.CERTIFICATE).read_bytes() == before
    _refit(path)
    made.reseal(path)
    assert made.answer(path, capsys)[0] == 0

  @pytest.mark.slow
  def test_who_makes_another_consistent_run_is_not_found_out(self, certified, capsys):
    _set('mechanism', 'noise_multiplier', value=9.0)(certified)
    _set('mechanism', 'epsilon', value=2.5)(certified)
    _set('issuer', 'tuning', value='By luck.')(certified)
    _refit(certified)
    made.reseal(certified)
    assert made.answer(certified, capsys)[0] == 0


# Where a key or an entry more is put.
_MORE = {
  'it': [],
  'the mechanism': ['mechanism'],
  'participation': ['mechanism', 'participation'],
  'a layer': ['layers', 0],
  'the issuer': ['issuer'],
  'the code': ['code'],
}
_VALUES = {
  'another epsilon': (('mechanism', 'epsilon', 4.0), 'fingerprint'),
  'less noise': (('mechanism', 'noise_multiplier', 0.5), 'fingerprint'),
  'other weights': (('mechanism', 'weights', 'uniform'), 'fingerprint'),
  'no rounds': (('mechanism', 'num_rounds', None), 'the mechanism plans None'),
  'fewer rounds': (('mechanism', 'num_rounds', 3), 'the mechanism plans 3'),
  'no noise': (('mechanism', 'noise_multiplier', None), 'needs its noise_multiplier, found None'),
  'no divisor': (('mechanism', 'divisor', None), 'needs its divisor, found None'),
  'a rule that is not a text': (('mechanism', 'weights', {'uniform': 1}), 'the weight rule must be a text'),
  'a field less': (('mechanism', 'participation', {}), _WRITTEN),
  'a seed of the noise': (('mechanism', 'noise_seed', 3), 'could get no certificate. Its noise has a seed'),
  'an integer for a float': (('mechanism', 'epsilon', 3), _WRITTEN),
  'a float for an integer': (('mechanism', 'num_clients', 6.0), 'num_clients must be an integer'),
  'a truth for a number': (('mechanism', 'num_clients', True), 'num_clients must be an integer'),
  'a text for a number': (('mechanism', 'delta', '1e-05'), 'delta must be a finite number'),
  'a parameter in another way': (('mechanism', 'weights', 'participation:beta=2.0,alpha=0.5'), _WRITTEN),
  'a default that is left out': (('mechanism', 'weights', 'participation'), _WRITTEN),
  'colluders with a trusted server': (('colluders', [1]), 'Colluders are clients that hold noise'),
  'colluders that are none': (('colluders', [1.0]), 'colluders must be an integer'),
  'a text of colluders': (('colluders', ''), _WRITTEN),
  'sparsity that is none': (('sparsity', {'random': 0.1}), 'is damaged'),
  'a sparse update': (('sparsity', 'random:share=0.1'), 'not all is among'),
  'a seed that is a text': (('sparsity_seed', 'client 7 has the label 3'), 'sparsity seed must be an integer'),
  'a seed that is a struct': (('sparsity_seed', {'client 7': 3}), 'sparsity seed must be an integer'),
  'no seed': (('sparsity_seed', None), 'sparsity seed must be an integer'),
  # The model.
  'no layers': (('layers', []), 'do not hold each of the 2 tensors'),
  'a tensor that is in no layer': (('layers', 0, 'indices', [0]), 'do not hold each of the 2 tensors'),
  'a tensor twice': (('layers', 0, 'indices', [0, 1, 1]), 'do not hold each of the 2 tensors'),
  'a tensor that is not there': (('layers', 0, 'indices', [0, 2]), 'do not hold each of the 2 tensors'),
  'a truth as an index': (('layers', 0, 'indices', [0, True]), 'do not hold each of the 2 tensors'),
  'a float as an index': (('layers', 0, 'indices', [0, 1.0]), 'do not hold each of the 2 tensors'),
  'a layer without a name': (('layers', 0, 'name', None), 'must have a text as its name'),
  'a layer with a struct as its name': (('layers', 0, 'name', {'client 7': 3}), 'must have a text as its name'),
  'a layer that is half dense': (('layers', 0, 'is_dense', 'half'), 'is_dense must be true or false'),
  'a layer that is dense by 1': (('layers', 0, 'is_dense', 1), 'is_dense must be true or false'),
  'a hidden name': (('layers', 0, 'name', 'den\u202ese'), 'U+202E'),
  'other shapes': (('shapes', [[2, 3], [2]]), 'not all is among'),
  'no shapes': (('shapes', []), 'shapes must be lists of integers'),
  'a negative size': (('shapes', [[-3, -2], [2]]), 'shapes must be lists of integers'),
  'a size that is true': (('shapes', [[3, 2], [True]]), 'shapes must be lists of integers'),
  'a size with a fraction': (('shapes', [[3.0, 2], [2]]), 'shapes must be lists of integers'),
  'more than memory holds': (('shapes', [[10**19] * 40, [2]]), 'more than 2,147,483,648 weights'),
  # What the issuer states.
  'a higher accuracy': (('issuer', 'test_accuracy', 1.01), 'test_accuracy must be a finite number at least 0'),
  'an accuracy below zero': (('issuer', 'test_accuracy', -0.5), 'test_accuracy must be a finite number at least 0'),
  'an accuracy that is true': (('issuer', 'test_accuracy', True), 'test_accuracy must be a finite number'),
  'more tests than rounds': (('issuer', 'tests', 5), 'The issuer states 5 tests, but the run has 4 rounds'),
  'tests below zero': (('issuer', 'tests', -1), 'tests must be an integer at least 0'),
  'tests that are true': (('issuer', 'tests', True), 'tests must be an integer'),
  'half a test': (('issuer', 'tests', 1.0), 'tests must be an integer'),
  'tests in words': (('issuer', 'tests', '1'), 'tests must be an integer'),
  'a day that is none': (('issuer', 'date', '2026-11-31'), 'date must be a day'),
  'an hour of a day': (('issuer', 'date', '2026-11-24T10:00'), 'date must be a day'),
  'a control character': (('issuer', 'tuning', 'By \x1b[2Jtheory.'), 'U+001B'),
  'two lines': (('issuer', 'tuning', 'By theory.\nε = 0.'), 'U+000A'),
  'a bidirectional mark': (('issuer', 'dataset', 'my\u202edata'), 'U+202E'),
  'the end of a quotation': (('issuer', 'tuning', 'By theory.” This is proved: “'), 'tuning holds ” (U+201D)'),
  'an ornament as its end': (('issuer', 'tuning', 'By theory.❞ This is proved.'), 'tuning holds ❞ (U+275E)'),
  'a double prime as its end': (('issuer', 'cohorts', 'Fixed.″ This is proved.'), 'cohorts holds ″ (U+2033)'),
  'a wide mark as its end': (('issuer', 'test_set', 'Own.＂ This is proved.'), 'test_set holds ＂ (U+FF02)'),
  'a blank as a sentence': (('issuer', 'tuning', '\u2800'), 'tuning holds the character U+2800'),
  'a commitment in words': (('issuer', 'data_commitment', 'checked by others'), 'data_commitment must be a SHA-256'),
  'stretches that are none': (('issuer', 'stretches', [{'client 7': 3}]), 'A stretch must have'),
  'a stretch in words': (('issuer', 'stretches', 'x'), 'A stretch must have'),
  'code in words': (('code', 'quap_tff', 'a version that was audited by others'), 'code must be'),
  'a digest that is none': (('code', 'source_sha256', 'of clean code'), 'code must be'),
  # What leaves clients.
  'nothing leaves clients': (('leaves_clients', []), 'not all is among'),
  'an update less': (('leaves_clients', 2, ['federated_aggregate', 'client_id', 'int64']), 'not all is among'),
  'an update of floats': (('leaves_clients', 2, 2, 'float32[2]'), 'not all is among'),
  'words about it': (('leaves_clients', 0, 1, 'nothing but an id'), 'must have an intrinsic, a name and a type'),
  'an intrinsic that is none': (('leaves_clients', 0, 0, 'trusted hardware'), 'must have an intrinsic'),
  'a type that is none': (('leaves_clients', 0, 2, 'encrypted'), 'must have an intrinsic'),
  'an entry of two': (('leaves_clients', 0, ['federated_sum', 'int64']), 'must have an intrinsic'),
  'an entry of numbers': (('leaves_clients', 0, [1, 2, 3]), 'is damaged'),
  'an entry that is a text': (('leaves_clients', 0, 'abc'), 'must have an intrinsic'),
}
# The same without a trusted server.
_VALUES_OF_HELD = {
  'another trust': (('trust', 'server'), 'is damaged'),
  'an unknown trust': (('trust', 'nobody'), "Unknown trust 'nobody'"),
  'minus zero': (('mechanism', 'dropout', -0.0), _WRITTEN),
  'no dropout': (('mechanism', 'dropout', None), 'dropout must be a finite number'),
  'fewer colluders than there could be': (('colluders', [6]), 'at most 5 can collude'),
  'weights of others': (('mechanism', 'planned_weights', [0.5]), 'planned_weights must be float[6]'),
  'a key that leaves': (
    ('leaves_clients', 0, ['federated_aggregate', 'noise_key', 'int64[4]']),
    'nothing leaves a client but the secure sums and the report of the mechanism',
  ),
  'an id that is a vector': (
    ('leaves_clients', 0, ['federated_aggregate', 'client_id', 'float32[8]']),
    'nothing leaves',
  ),
  'an exact sum': (('leaves_clients', 0, ['federated_secure_sum', 'loss', 'float32']), 'nothing leaves'),
  'another exact sum': (('leaves_clients', 0, ['federated_secure_sum', 'examples', 'int64']), 'nothing leaves'),
  'no count': (('leaves_clients', 3, ['federated_aggregate', 'client_id', 'int64']), 'not all is among'),
  'sums that are not secure': (('leaves_clients', 1, 0, 'federated_sum'), 'not all is among'),
}
# The same where updates came from a program of the issuer's own.
_VALUES_OF_OWN_UPDATES = {
  'an audited program': (('updates', 'of a program that was audited by others'), _WRITTEN),
  'no program': (('updates', None), _WRITTEN),
  'a truth as its program': (('updates', False), _WRITTEN),
}
_OF_RUN = {'certified': _VALUES, 'held': _VALUES_OF_HELD, 'own_updates': _VALUES_OF_OWN_UPDATES}


class TestMechanism:
  @pytest.mark.parametrize('name', _MORE)
  def test_a_key_that_is_not_defined(self, name, certified, capsys):
    made.change(certified, _MECHANISM, lambda value: _at(value, *_MORE[name]).update(more=1))
    _check_sealed(certified, 'mechanism.json', capsys)

  def test_updates_of_a_program_that_is_not_named_any_more(self, own_updates, capsys):
    """Whoever leaves it out of mechanism.json alone still has the certificate that says it."""
    made.change(own_updates, _MECHANISM, lambda value: value.pop('updates') and value)
    _check(own_updates, 'it says "Nothing in the folder shows how updates were computed', capsys)

  def test_what_is_assumed_of_the_issuers_program_is_not_left_out(self, own_updates, capsys):
    def silenced(certificate):
      certificate['assumptions'] = [one for one in certificate['assumptions'] if "issuer's own did it" not in one]
      certificate['statement'] = certificate['statement'].partition(" The clients' updates came from a program")[0]

    made.reseal(own_updates, silenced)
    _check(own_updates, 'assumptions: it says', capsys)

  @pytest.mark.parametrize('name', ['layers', 'shapes', 'leaves_clients'])
  def test_an_entry_more(self, name, certified, capsys):
    made.change(certified, _MECHANISM, lambda value: value[name].append(value[name][-1]))
    made.reseal(certified)
    status, lines = made.answer(certified, capsys)
    assert status == 1 or name == 'leaves_clients', lines  # A trusted server may get anything twice.

  @pytest.mark.slow
  @pytest.mark.parametrize('run, name', [(run, name) for run, table in _OF_RUN.items() for name in table])
  def test_a_value(self, run, name, request, capsys):
    (*place, value), words = _OF_RUN[run][name]
    path = request.getfixturevalue(run)
    _set(*place, value=value)(path)
    _check_sealed(path, words, capsys)

  @pytest.mark.parametrize(
    'place, words',
    [
      (('mechanism', 'planned_costs', [1.0] * 6), 'planned_costs are those of planned_rounds'),
      (('mechanism', 'planned_costs', 'client 7 has the label 3'), 'planned_costs are those of planned_rounds'),
      (('mechanism', 'participation', 'count_during_warmup', 1), 'count_during_warmup must be true or false'),
      (('mechanism', 'participation', 'count_during_warmup', 'yes'), 'count_during_warmup must be true or false'),
      (('mechanism', 'participation', 'count_during_warmup', {'client 7': 3}), 'must be true or false'),
    ],
  )
  def test_what_nothing_else_depends_on(self, place, words, certified, capsys):
    _set(*place[:-1], value=place[-1])(certified)
    with pytest.raises(ValueError):
      _refit(certified)
    _check_sealed(certified, words, capsys)

  def test_a_cohort_that_is_larger_than_the_secure_sums(self, held, capsys):
    """The account of rounding, and the modulus of the sum, are for so many clients."""
    _set('mechanism', 'most_clients', value=2)(held)
    with pytest.raises(ValueError, match='has 4 clients, but most_clients=2'):
      _refit(held)
    _check_sealed(held, 'A round of the schedule has 4 clients, but most_clients=2', capsys)

  @pytest.mark.parametrize('number', ['NaN', 'Infinity', '1e400', '-1e999', '9' * 5000])
  def test_a_number_that_is_none(self, number, certified, capsys):
    text = (certified / _MECHANISM).read_text().replace('"test_accuracy": 0.5', f'"test_accuracy": {number}')
    (certified / _MECHANISM).write_text(text)
    _check_sealed(certified, 'mechanism.json is damaged', capsys)

  @pytest.mark.parametrize(
    'text',
    [b'', b'[]', b'null', b'{"a": ', b'\xff\xfe', b'[' * 99999, b'{"version": 12, "a": ' + b'[' * 900 + b']' * 900],
  )
  def test_a_file_that_is_none(self, text, certified, capsys):
    (certified / _MECHANISM).write_bytes(text)
    _check_sealed(certified, 'mechanism.json is damaged', capsys)

  @pytest.mark.parametrize(
    'how',
    [
      lambda text: text + ' ',
      lambda text: text.replace('": ', '" : '),
      lambda text: text.replace('"version"', '"vers\\u0069on"'),
      lambda text: json.dumps(json.loads(text)),
      lambda text: text.replace('\n', '\r\n'),
    ],
  )
  def test_another_way_of_writing(self, how, certified, capsys):
    (certified / _MECHANISM).write_bytes(how((certified / _MECHANISM).read_text()).encode())
    _check_sealed(certified, _WRITTEN, capsys)

  def test_a_key_twice(self, certified, capsys):
    text = (certified / _MECHANISM).read_text().replace('{', '{"version": 12,', 1)
    (certified / _MECHANISM).write_text(text)
    _check_sealed(certified, 'a key appears twice', capsys)


def _put(name, content=b'x'):
  return lambda path: made.put(path, name, content)


_FILES = {
  **{
    name: (_put(name, b''), f'{name} does not belong there')
    for name in (
      *('losses.txt', 'run.json', 'summary.json', 'metrics.csv', 'plot.png', '.lock', 'certificate.json.bak'),
      *('final_model.keras', 'audit.json', 'audit.sig', 'certificate/certificate.json', 'certificate/losses.txt'),
      *('checkpoints/secret', 'checkpoints/round_3/arrays.npz', 'checkpoints/losses.txt', 'a/b/losses.txt'),
      *('features/glyphs/card.json', 'a/checkpoints/losses.txt', 'ledger.npz.part'),
    )
  },
  'an empty folder': (lambda path: (path / 'client 7 has the label 3').mkdir(), 'client 7 has the label 3 does not'),
  'empty checkpoints': (lambda path: (path / 'checkpoints').mkdir(), 'checkpoints does not belong there'),
  'a folder in place of a signature': (lambda path: (path / 'certificate.sig').mkdir(), 'certificate.sig'),
  'a link': (lambda path: (path / 'more').symlink_to(path / _LEDGER), 'more is a link'),
  'a link to nothing': (lambda path: (path / 'more').symlink_to('nowhere'), 'more is a link'),
  'a link to a folder': (lambda path: (path / 'checkpoints').symlink_to(path.parent), 'checkpoints is a link'),
  'a pipe': (lambda path: os.mkfifo(path / 'more'), 'more is a pipe'),
  'a name of two lines': (_put('losses\nVALID'), 'losses\\nVALID does not belong there'),
  'a name that commands a terminal': (_put('\x1b[2J'), '\\x1b[2J does not belong there'),
  'a name of bytes': (lambda path: _put_bytes(path, b'\xff\xfe'), '\\udcff\\udcfe does not belong there'),
}


def _put_bytes(path, name):
  with open(os.path.join(os.fsencode(path), name), 'w'):
    pass


class TestFiles:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', _FILES)
  def test_one_that_the_certificate_does_not_name(self, name, certified, capsys):
    put, words = _FILES[name]
    put(certified)
    if name != 'a name of bytes':  # A certificate cannot name it.
      _check_sealed(certified, words, capsys)

  @pytest.mark.parametrize('name', [_MECHANISM, _SCHEDULE, _LEDGER, _CLIENTS, 'final_model.npz'])
  def test_one_that_is_missing(self, name, certified, capsys):
    (certified / name).unlink()
    _check_sealed(certified, f'{name} is missing', capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize('name', [_MECHANISM, _SCHEDULE, _LEDGER, _CLIENTS, 'final_model.npz', 'certificate.json'])
  @pytest.mark.parametrize('kind', ['link', 'pipe', 'folder'])
  def test_one_that_is_no_file(self, name, kind, certified, tmp_path, capsys):
    (certified / name).rename(tmp_path / 'elsewhere')
    if kind == 'link':
      (certified / name).symlink_to(tmp_path / 'elsewhere')
    elif kind == 'pipe':
      os.mkfifo(certified / name)
    else:
      (certified / name).mkdir()
    status, lines = made.answer(certified, capsys)
    assert status == (2 if (name, kind) == ('certificate.json', 'folder') else 1), lines

  @pytest.mark.parametrize('name', [_MECHANISM, _SCHEDULE, _LEDGER, _CLIENTS, 'final_model.npz', 'certificate.json'])
  def test_one_that_was_changed_and_not_sealed_again(self, name, certified, capsys):
    with open(certified / name, 'ab') as f:
      f.write(b'\n')
    assert made.answer(certified, capsys)[0] == 1

  def test_another_model_of_the_same_shape(self, certified, capsys):
    made.write_model(certified / 'final_model.npz', [1 + tensor for tensor in made.WEIGHTS])
    _check(certified, 'provenance.files_sha256.final_model.npz: it says', capsys)


class TestClients:
  def test_an_epsilon_that_is_slightly_too_small(self, certified, capsys):
    rows = list(csv.DictReader(io.StringIO((certified / _CLIENTS).read_text())))
    for row in rows:
      row['formal_epsilon'] = repr(float(row['formal_epsilon']) * (1 - 9e-6))
    with open(certified / _CLIENTS, 'w', newline='') as f:
      writer = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)
    _check_sealed(certified, 'clients.csv: it says', capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'how',
    [
      lambda text: text.replace('2.', '02.'),
      lambda text: text.replace('\n', '\r\n'),
      lambda text: text.replace('0,2,', '0,1,'),
      lambda text: text.replace(',', ', '),
      lambda text: text + '\n',
      lambda text: text[:-1],
      lambda text: text + '7,1,0.5\n',
      lambda text: text.replace('\n', ',examples\n', 1).replace('\n', ',9\n').replace('examples,9', 'examples'),
      lambda text: text.partition('\n')[0] + '\n',
      lambda text: '',
    ],
  )
  def test_any_other_text(self, how, certified, capsys):
    (certified / _CLIENTS).write_bytes(how((certified / _CLIENTS).read_text()).encode())
    _check_sealed(certified, 'clients.csv', capsys)

  @pytest.mark.parametrize('content', [b'\xff\xfe', b'client\n\0'])
  def test_what_is_no_text(self, content, certified, capsys):
    (certified / _CLIENTS).write_bytes(content)
    _check_sealed(certified, 'clients.csv', capsys)


def _arrays(**changes):
  """Changes arrays, each by a function."""

  def change(arrays):
    return {**arrays, **{name: how(arrays[name]) for name, how in changes.items()}}

  return change


def _text(spec):
  return np.frombuffer(spec.encode(), np.uint8)


_SCHEDULES = {
  'an array more': (lambda arrays: {**arrays, 'labels': np.arange(9)}, 'it must hold the arrays'),
  'who comes to a trusted server': (lambda a: {**a, 'comes': np.ones(9, bool)}, 'only where clients hold the noise'),
  'an array less': (lambda arrays: {'clients': arrays['clients']}, 'it must hold the arrays'),
  'other cohorts': (_arrays(clients=lambda c: (c + 1) % 6), 'other clients than are planned'),
  'a negative id': (_arrays(clients=lambda c: np.where(c == 3, -3, c)), 'must be ids in [0, 6)'),
  'a stranger': (_arrays(clients=lambda c: np.where(c == 4, 6, c)), 'must be ids in [0, 6)'),
  'a client twice': (_arrays(clients=lambda c: np.where(c == 4, 3, c)), 'only once'),
  'an id more': (_arrays(clients=lambda c: np.append(c, 5)), 'offsets must ascend from 0 to the number of clients'),
  'an offset more': (_arrays(offsets=lambda o: np.append(o, 9)), 'it has 5 rounds, and the mechanism plans 4'),
  'an offset less': (_arrays(offsets=lambda o: o[[0, 1, 2, 4]]), 'it has 3 rounds, and the mechanism plans 4'),
  'offsets that descend': (_arrays(offsets=lambda o: o[[0, 2, 1, 3, 4]]), 'offsets must ascend'),
  'offsets from 1': (_arrays(offsets=lambda o: np.array([1, 3, 5, 5, 9])), 'offsets must ascend from 0'),
  'no offsets': (_arrays(offsets=lambda o: o[:0]), 'a schedule has 1 to 1,000,000 rounds'),
  'offsets without an end': (_arrays(offsets=lambda o: np.arange(10**6 + 2)), 'a schedule has 1 to 1,000,000 rounds'),
  'objects': (_arrays(clients=lambda c: c.astype(object)), 'Object arrays cannot be loaded'),
  'floats': (_arrays(clients=lambda c: c.astype(float)), 'must be int64[n]'),
  'small integers': (_arrays(clients=lambda c: c.astype(np.int32)), 'must be int64[n]'),
  'integers of another order': (_arrays(clients=lambda c: c.astype('>i8')), 'must be int64[n]'),
  'a matrix': (_arrays(clients=lambda c: c[np.newaxis]), 'must be int64[n]'),
  'a number': (_arrays(offsets=lambda o: np.int64(3)), 'must be int64[n]'),
}
_SCHEDULES_OF_HELD = {
  'others come': (_arrays(comes=lambda c: ~c), 'other clients than are planned'),
  'who comes for a few': (_arrays(comes=lambda c: c[:3]), 'one for each client'),
  'who comes in numbers': (_arrays(comes=lambda c: c.astype(np.int64)), 'comes bool[n]'),
}
_LEDGERS_OF_HELD = {
  'no decay': (_arrays(correlation=lambda c: _text('held')), 'ledger.npz is damaged'),
  'lower figures against colluders': (_arrays(against=lambda a: a * (1 - 1e-6)), 'other figures against colluders'),
  'fewer figures against colluders': (_arrays(against=lambda a: a[1:]), 'against must be float[2, 6]'),
}
_LEDGERS = {
  'other conditions': (
    _arrays(conditions=lambda c: np.frombuffer(c.tobytes().replace(b'false', b'true'), np.uint8)),
    'conditions in ledger.npz is not that',
  ),
  'an array more': (lambda arrays: {**arrays, 'labels': np.arange(9)}, 'it must hold the arrays'),
  'an array less': (lambda arrays: {k: v for k, v in arrays.items() if k != 'released'}, 'it must hold the arrays'),
  'halved weights': (_arrays(weights=lambda w: w / 2), 'other weights than follow from the cohorts'),
  'slightly smaller weights': (_arrays(weights=lambda w: w * (1 - 2e-6)), 'other weights than follow'),
  'a weight of nothing': (_arrays(weights=lambda w: w * np.nan), 'weights must be at least 0'),
  'more noise': (_arrays(noise_multipliers=lambda z: z * (1 + 1e-8)), 'noise_multipliers is'),
  'one round noisier': (_arrays(noise_multipliers=lambda z: z * [1, 1, 2, 1]), 'Round 3'),
  'no noise': (_arrays(noise_multipliers=lambda z: 0 * z), 'noise_multipliers is 0'),
  'counts': (_arrays(count_noise_multipliers=lambda c: np.full_like(c, 9.0)), 'count_noise_multipliers is 9'),
  'another clip': (_arrays(clipping_norms=lambda c: c / 2), 'clipping_norms is 0.5'),
  'other budgets': (_arrays(budgets=lambda b: b * 1.1), 'other budgets than its weights give'),
  'clients swapped': (_arrays(clients=lambda c: (c + 1) % 6), 'other clients than are planned'),
  'a participation less': (
    lambda a: {
      **{k: v[1:] if k in ('clients', 'weights', 'budgets') else v for k, v in a.items()},
      'offsets': np.maximum(a['offsets'] - 1, 0),
    },
    'other clients than are planned',
  ),
  'a round more': (
    lambda a: {
      **{
        k: np.append(v, v[-1]) if k.endswith('multipliers') or k.endswith('norms') or k == 'released' else v
        for k, v in a.items()
      },
      'offsets': np.append(a['offsets'], 9),
    },
    'has 5 rounds, and 4 are planned',
  ),
  'an id more': (_arrays(clients=lambda c: np.append(c, 5).astype(np.int32)), 'clients must have 9 values'),
  'another delta': (_arrays(delta=lambda d: d / 10), 'delta in ledger.npz is not that of the mechanism'),
  'another run': (_arrays(fingerprint=lambda f: f[::-1]), 'fingerprint in ledger.npz'),
  'a larger population': (_arrays(num_clients=lambda n: np.array(2**31 - 1)), 'it must be of 6 clients'),
  'a population in a list': (_arrays(num_clients=lambda n: n[np.newaxis]), 'it must be of 6 clients'),
  'other correlation': (_arrays(correlation=lambda c: _text('ar1:decay=0.5')), 'correlation in ledger'),
  'half of a correlation': (_arrays(correlation=lambda c: _text('blt:gain=0.5')), 'as many gains as decays'),
  'noise of clients': (_arrays(correlation=lambda c: _text('held:decay=0.5')), 'correlation in ledger'),
  'a family that nobody knows': (_arrays(correlation=lambda c: _text('tree')), "Unknown noise correlation 'tree'"),
  'rounds that released nothing': (_arrays(released=np.logical_not), 'ledger.npz is damaged'),
  'objects': (_arrays(weights=lambda w: w.astype(object)), 'Object arrays cannot be loaded'),
  'small floats': (_arrays(weights=lambda w: w.astype(np.float32)), 'weights must be float64[n]'),
  'a matrix': (_arrays(weights=lambda w: w[np.newaxis]), 'weights must be float64[n]'),
}


def _member(name, content=None):
  """Puts a member into an archive, in place of one of that name. Without content, it takes that one out."""

  def change(path):
    with zipfile.ZipFile(path) as kept:
      members = {one: kept.read(one) for one in kept.namelist() if one != name}
    if content is not None:
      members[name] = content
    with zipfile.ZipFile(path, 'w') as archive:
      for one, its_content in members.items():
        archive.writestr(one, its_content)

  return change


def _twice(path):
  with pytest.warns(UserWarning, match='Duplicate name'), zipfile.ZipFile(path, 'a') as archive:
    archive.writestr('clients.npy', b'x')


def _damaged(path):
  """An archive whose compressed bytes are none."""
  with np.load(path) as kept:
    arrays = dict(kept)
  np.savez_compressed(path, **arrays)
  content = bytearray(path.read_bytes())
  begin = content.index(b'.npy') + 30
  content[begin : begin + 8] = bytes(8 * [255])
  path.write_bytes(content)


def _header(text):
  content = text.encode().ljust(117) + b'\n'
  return b'\x93NUMPY\x01\x00' + len(content).to_bytes(2, 'little') + content


def _rewritten(change=lambda name, content: content, after=lambda archive: None, **of_member):
  """Writes an archive anew: with other contents, something after its first member, or other facts about members."""

  def how(path):
    with np.load(path) as kept:
      members = {f'{name}.npy': files.npz({name: kept[name]}) for name in kept.files}
    with zipfile.ZipFile(path, 'w') as archive:
      for number, (name, content) in enumerate(members.items()):
        member = zipfile.ZipInfo(name)
        for key, value in of_member.items():
          setattr(member, key, value)
        archive.writestr(member, change(name, zipfile.ZipFile(io.BytesIO(content)).read(name)))
        if not number:
          after(archive)

  return how


def _gap(archive):
  archive.fp.write(_HIDDEN)
  archive.start_dir = archive.fp.tell()


# Each holds the same arrays as before. `np.load` takes no notice of the rest.
_HIDING = {
  'bytes after arrays': _rewritten(lambda name, content: content + _HIDDEN),
  'a text in headers': _rewritten(lambda name, content: content.replace(b'}' + 8 * b' ', b'}# label3')),
  'a gap': _rewritten(after=_gap),
  'comments of members': _rewritten(comment=_HIDDEN),
  'fields of members': _rewritten(extra=b'\x77\x77' + len(_HIDDEN).to_bytes(2, 'little') + _HIDDEN),
  'times of members': _rewritten(date_time=(2026, 7, 3, 1, 2, 4)),
  'modes of members': _rewritten(external_attr=0o644 << 16),
  'compressed members': _rewritten(compress_type=zipfile.ZIP_DEFLATED),
  'as NumPy writes it': lambda path: np.savez(path, **dict(np.load(path))),
}


_ARCHIVES = {
  'another member': (_member('losses.txt', b'x'), 'it must hold the arrays'),
  'a folder as a member': (_member('more/', b''), 'it must hold the arrays'),
  'a member twice': (_twice, 'it must hold the arrays'),
  'a member that is no array': (_member('clients.npy', b'hello'), 'is damaged'),
  'an array without an end': (
    _member('clients.npy', _header("{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999,)}")),
    'is damaged',
  ),
  'an array without a header': (_member('clients.npy', _header("{'descr': '<i8', 'shape': ((((((")), 'is damaged'),
  'a header that is code': (_member('clients.npy', _header('__import__("os")')), 'is damaged'),
  'damaged bytes': (_damaged, 'is damaged'),
  'no archive': (lambda path: path.write_bytes(b'PK?'), 'cannot be read'),
  'half of an archive': (lambda path: path.write_bytes(path.read_bytes()[:-40]), 'cannot be read'),
  'bytes before': (lambda path: path.write_bytes(_HIDDEN + path.read_bytes()), 'it holds more than an archive'),
  'bytes after': (lambda path: path.write_bytes(path.read_bytes() + _HIDDEN), 'it holds more than an archive'),
}


_ARRAYS = {
  ('certified', _SCHEDULE): _SCHEDULES,
  ('held', _SCHEDULE): _SCHEDULES_OF_HELD,
  ('certified', _LEDGER): _LEDGERS,
  ('held', _LEDGER): _LEDGERS_OF_HELD,
}


class TestArrays:
  @pytest.mark.slow
  @pytest.mark.parametrize('run, file, name', [(*place, name) for place, table in _ARRAYS.items() for name in table])
  def test_of_the_schedule_and_of_the_ledger(self, run, file, name, request, capsys):
    (change, words), path = _ARRAYS[run, file][name], request.getfixturevalue(run)
    made.change_arrays(path, file, change)
    _check_sealed(path, words, capsys)

  def test_last_bits_of_another_machine(self, held, capsys):
    made.change_arrays(held, _LEDGER, _arrays(against=lambda a: a * (1 + 1e-13)))
    made.reseal(held)
    status, lines = made.answer(held, capsys)
    assert (status, lines[0]) == (0, 'VALID'), lines

  @pytest.mark.slow
  @pytest.mark.parametrize('file', [_SCHEDULE, _LEDGER])
  @pytest.mark.parametrize('name', _ARCHIVES)
  def test_of_an_archive(self, name, file, certified, capsys):
    how, words = _ARCHIVES[name]
    how(certified / file)
    _check_sealed(certified, words, capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize('file', [_SCHEDULE, _LEDGER, 'final_model.npz'])
  @pytest.mark.parametrize('name', _HIDING)
  def test_that_hide_something(self, name, file, certified, capsys):
    with np.load(certified / file) as kept:
      before = {one: kept[one] for one in kept.files}
    _HIDING[name](certified / file)
    with np.load(certified / file) as kept:
      assert all(np.array_equal(kept[one], array) for one, array in before.items()) and len(kept.files) == len(before)
    _check_sealed(certified, f'{file} is damaged: it holds more than its arrays, or is written in another way', capsys)

  def test_a_letter_for_a_truth(self, held, capsys):
    def letters(arrays):
      return {**arrays, 'comes': np.where(arrays['comes'], np.uint8(ord('A')), np.uint8(0)).view(bool)}

    before = (held / _SCHEDULE).read_bytes()
    with np.load(held / _SCHEDULE) as kept:
      arrays = letters(dict(kept))
    np.savez(held / _SCHEDULE, **arrays)
    _check_sealed(held, 'it holds more than its arrays', capsys)
    made.write_arrays(held / _SCHEDULE, arrays)
    assert (held / _SCHEDULE).read_bytes() == before


def _first(how):
  return lambda tensors: [how(tensors[0]), *tensors[1:]]


_MODELS = {
  'not a number': (_first(lambda t: t * np.nan), 'must hold only finite floating-point numbers'),
  'infinite': (_first(lambda t: t + np.inf), 'must hold only finite floating-point numbers'),
  'integers': (_first(lambda t: t.astype(np.int32)), 'must hold only finite floating-point numbers'),
  'complex': (_first(lambda t: t.astype(complex)), 'must hold only finite floating-point numbers'),
  'texts': (_first(lambda t: t.astype('S3')), 'must hold only finite floating-point numbers'),
  'transposed': (_first(lambda t: t.T), 'holds tensors of the shapes [(2, 3), (2,)]'),
  'flat': (_first(np.ravel), 'holds tensors of the shapes [(6,), (2,)]'),
  'in another order': (lambda tensors: tensors[::-1], 'holds tensors of the shapes [(2,), (3, 2)]'),
  'a tensor more': (lambda tensors: [*tensors, tensors[0]], "it must hold the arrays ['arr_0', 'arr_1']"),
  'a number more': (lambda tensors: [*tensors, np.float32(3)], "it must hold the arrays ['arr_0', 'arr_1']"),
  'a tensor less': (lambda tensors: tensors[:1], "it must hold the arrays ['arr_0', 'arr_1']"),
  'none': (lambda tensors: [], 'final_model.npz cannot be read'),
}


class TestModel:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', _MODELS)
  def test_tensors(self, name, certified, capsys):
    how, words = _MODELS[name]
    made.write_model(certified / 'final_model.npz', how(list(made.WEIGHTS)))
    _check_sealed(certified, words, capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64, '>f4'])
  def test_any_floats_will_do(self, dtype, certified, capsys):
    made.write_model(certified / 'final_model.npz', [tensor.astype(dtype) for tensor in made.WEIGHTS])
    made.reseal(certified)
    assert made.answer(certified, capsys)[0] == 0

  @pytest.mark.parametrize(
    'arrays', [dict(a=made.WEIGHTS[0], b=made.WEIGHTS[1]), dict(arr_0=np.ones(2), arr_2=np.ones(2))]
  )
  def test_arrays_of_other_names(self, arrays, certified, capsys):
    made.write_arrays(certified / 'final_model.npz', arrays)
    _check_sealed(certified, "it must hold the arrays ['arr_0', 'arr_1']", capsys)

  def test_arrays_of_objects(self, certified, capsys):
    made.write_model(certified / 'final_model.npz', [tensor.astype(object) for tensor in made.WEIGHTS])
    _check_sealed(certified, 'Object arrays cannot be loaded', capsys)


_SEALED = {
  'statement': (('statement', '(0.01, 0)-DP against all'), 'statement: it says'),
  'epsilon': (('guarantee', 'epsilon', 2.0), 'guarantee.epsilon'),
  'epsilon as an integer': (('guarantee', 'epsilon', 3), 'guarantee.epsilon: it says 3, but the files give 3.0'),
  'unit': (('guarantee', 'unit', 'a client'), 'guarantee.unit'),
  'trust': (('guarantee', 'trust', 'secure_sum'), 'guarantee.trust'),
  'trust in words': (('guarantee', 'trust', 'nobody'), 'guarantee.trust'),
  'colluders': (('guarantee', 'colluders', [{'clients': 5, 'epsilon': 3.0, 'mu': 0.5}]), 'guarantee.colluders'),
  'own bounds': (('guarantee', 'own_bounds', [{'epsilon': 1.0, 'clients': 6}]), 'guarantee.own_bounds'),
  'what was spent': (('achieved', 'epsilon_max', 0.5), 'achieved.epsilon_max'),
  'a count as a float': (('achieved', 'clients', 6.0), 'achieved.clients'),
  'assumptions': (('assumptions', ['None.']), 'assumptions'),
  'what was withheld': (('withheld', []), 'withheld'),
  'how it was released': (('releases', 0, 'how', 'noised'), 'releases[0].how'),
  'other relations': (('other_relations', 1, 'epsilon', 3.0), 'other_relations[1].epsilon'),
  'what leaves clients': (('leaves_clients', []), 'leaves_clients'),
  'the issuer': (('issuer', 'tuning', 'By a prayer.'), 'issuer.tuning'),
  'the code': (('provenance', 'code', {'quap_tff': '0.0.9', 'source_sha256': '0' * 64}), 'provenance.code'),
  'no code': (('provenance', 'code', None), 'provenance.code'),
  'files': (('provenance', 'files_sha256', {}), 'provenance.files_sha256'),
  'the slack': (('facts', 'slack', 'epsilon', 0.0), 'facts.slack.epsilon'),
  'a key more': (('more', 1), 'more does not belong there'),
  'a key more in the guarantee': (('guarantee', 'more', 1), 'guarantee.more does not belong there'),
  'a key more in a release': (('releases', 0, 'more', 1), 'releases[0].more does not belong there'),
}


class TestCertificate:
  @pytest.mark.slow
  @pytest.mark.parametrize('path', ['certified', pytest.param('held', marks=pytest.mark.thorough)])
  @pytest.mark.parametrize('name', _SEALED)
  def test_one_that_was_sealed_with_another_value(self, name, path, request, capsys):
    (*place, value), words = _SEALED[name]
    if path == 'held' and name in ('trust', 'colluders'):
      value = {'trust': 'server', 'colluders': []}[name]
    path = request.getfixturevalue(path)
    made.reseal(path, lambda certificate: _at(certificate, *place[:-1]).__setitem__(place[-1], value))
    _check(path, words, capsys)

  @pytest.mark.slow
  def test_another_page(self, certified, capsys):
    page = certified / folders.PAGE
    page.write_text(page.read_text(encoding='utf-8').replace('ε = 3', 'ε = 1'), encoding='utf-8')
    _check(certified, 'certificate.html does not match certificate.json.', capsys)
    page.unlink()
    assert made.answer(certified, capsys)[0] == 0

  @pytest.mark.parametrize('kind', ['folder', 'pipe', 'bytes'])
  def test_a_page_that_is_none(self, kind, certified, capsys):
    page = certified / folders.PAGE
    page.unlink()
    {'folder': page.mkdir, 'pipe': lambda: os.mkfifo(page), 'bytes': lambda: page.write_bytes(b'\xff')}[kind]()
    _check(certified, 'certificate.html', capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'how',
    [
      lambda text: text + '\n',
      lambda text: re.sub('\n +', '\n', text),
      lambda text: text.replace('ε', '\\u03b5'),
      lambda text: text.replace('"version": 12', '"version": 12, "version": 12'),
      lambda text: text.replace('"epsilon": 3.0', '"epsilon": 3.00'),
    ],
  )
  def test_another_way_of_writing(self, how, certified, capsys):
    text = (certified / folders.CERTIFICATE).read_text(encoding='utf-8')
    (certified / folders.CERTIFICATE).write_text(how(text), encoding='utf-8')
    _check(certified, 'certificate.json is', capsys)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'content',
    [b'', b'[]', b'null', b'{}', b'{"version": 12}', b'{"version": "9"}', b'{"version": 12.0}', b'{"version": true}']
    + [b'{"version": 12, "a": NaN}', b'{"version": 12, "a": 1e400}', b'{"version": ' + b'9' * 5000 + b'}', b'\xff\xfe']
    + [b'[' * 99999, b'{"version": 12, "a": ' + b'[' * 900 + b']' * 900 + b'}'],
  )
  def test_what_is_none(self, content, certified, capsys):
    (certified / folders.CERTIFICATE).write_bytes(content)
    assert made.answer(certified, capsys)[0] == 1
