"""Tests of runs that are simulated from a bundle: what they leave, and what is refused before or after them."""

import json
import os
import re

import numpy as np
import pytest

import quap_tff
from quap_tff.accounting import RunLedger
from quap_tff.bundle import __main__ as program
from quap_tff.bundle import bundle_engine
from quap_tff.bundle import bundle_files
from quap_tff.bundle import simulation
from quap_tff.certificates.folders import about as abouts
from quap_tff.certificates.folders import signatures
from quap_tff.common.lazy import tf
from quap_tff.mechanisms.held import guarded_clients
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples

pytestmark = pytest.mark.slow

_MODEL_FN = quap_tff.models.build_model_fn('linear_features', (8,), 3)
_ABOUT = abouts.About('made-up numbers', 'They were written down.', 'Not tuned.', 'Numbers that no client holds.')


def _certified(schedule=tuple(examples.SCHEDULE), averaging=postprocessing.LastIterate(), **changes):
  config = examples.guarantee(clip=clip_rules.Fixed(0.5), **changes)
  plan = quap_tff.Plan.certified(config, schedule, certificate='noise_seed' not in changes, averaging=averaging)
  return plan.build_process(_MODEL_FN)


def _written(built, path, **options):
  about = _ABOUT if built.plan.mechanism.facts.is_certified else None
  quap_tff.export(built, path, about=about, **options)
  return path


@pytest.fixture(scope='module')
def bundle(context, tmp_path_factory):
  return _written(_certified(averaging=postprocessing.Tail(1)), tmp_path_factory.mktemp('bundles') / 'certified')


@pytest.fixture
def clients(tmp_path):
  """A file with the data of four clients."""
  generator = np.random.default_rng(1)
  owners = np.array([3, 0, 1, 2] * 5)
  y = generator.integers(0, 3, len(owners)).astype(np.int32)
  x = (np.eye(8)[y] + 0.1 * generator.random([len(y), 8])).astype(np.float32)
  np.savez(tmp_path / 'clients.npz', x=x, y=y, client=owners, x_test=x, y_test=y)
  return str(tmp_path / 'clients.npz')


def _run(bundle, clients, output, *flags):
  return program.main(['run', str(bundle), f'--clients={clients}', f'--output={output}', '--threads=2', *flags])


def test_a_certified_run_is_valid(bundle, clients, tmp_path, capsys):
  assert _run(bundle, clients, tmp_path / 'run', '--rounds=3') == 0
  summary = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert (summary['rounds'], summary['planned_rounds'], summary['model_protected']) == (3, 3, True)
  verdict = quap_tff.certificates.verify(str(tmp_path / 'run'))
  assert not verdict.problems and 'ε = 3' in verdict.statement
  issuer = json.loads((tmp_path / 'run' / 'certificate' / 'certificate.json').read_text())['issuer']
  assert (issuer['dataset'], issuer['tests']) == ('made-up numbers', 1)
  assert issuer['test_accuracy'] == summary['test_accuracy']


@pytest.mark.thorough
def test_a_run_that_is_stopped_says_so(bundle, clients, tmp_path):
  assert _run(bundle, clients, tmp_path / 'run', '--rounds=1') == 0
  certificate = json.loads((tmp_path / 'run' / 'certificate' / 'certificate.json').read_text())
  assert (certificate['achieved']['rounds'], certificate['achieved']['is_reading']) == (1, True)
  assert not quap_tff.certificates.verify(str(tmp_path / 'run')).problems


def test_a_run_without_a_round_has_tested_nothing(bundle, tmp_path):
  found = quap_tff.Bundle(bundle)
  server = bundle_engine.new_server(bundle_engine.BundleEngine(found))
  summary = simulation.keep(found, server, str(tmp_path / 'run'), lambda weights: {'accuracy': 0.5})
  assert (summary['rounds'], summary['test_accuracy']) == (0, 0.5) and 'no_certificate' not in summary
  certificate = json.loads((tmp_path / 'run' / 'certificate' / 'certificate.json').read_text())
  assert certificate['issuer']['tests'] == 0


def test_an_interrupted_run_keeps_whole_rounds(bundle, clients, monkeypatch):
  found, lines = quap_tff.Bundle(bundle), []
  attempt = found.attempt

  def interrupted(data, message):
    if len(lines) == 2:
      raise KeyboardInterrupt
    return attempt(data, message)

  monkeypatch.setattr(found, 'attempt', interrupted)
  outcome = simulation.simulate(found, simulation.read_clients(clients)[0], say=lines.append)
  assert (outcome.done, outcome.ledger.num_rounds) == (2, 2)
  assert lines[-1] == 'Interrupted: 2 rounds are kept.'


@pytest.mark.thorough
def test_clients_that_hold_noise_get_a_certificate(context, clients, tmp_path):
  # Nobody comes in the last round: its sum is zero in each of its places.
  path = _written(_certified([*examples.SCHEDULE, []], correlation=correlation.HeldNoise(0.5)), tmp_path / 'held')
  assert _run(path, clients, tmp_path / 'run') == 0
  assert not quap_tff.certificates.verify(str(tmp_path / 'run')).problems


@pytest.mark.thorough
def test_no_certificate_for_noise_with_a_known_seed(context, clients, tmp_path, capsys):
  path = _written(_certified(noise_seed=3), tmp_path / 'seeded')
  assert _run(path, clients, tmp_path / 'run') == 0
  assert 'There is no certificate. This run cannot be certified. Its noise has a seed' in capsys.readouterr().err
  assert sorted(os.listdir(tmp_path / 'run')) == ['final_model.npz', 'ledger.npz', 'summary.json']


@pytest.mark.thorough
def test_a_run_without_certificate_keeps_model_and_ledger(context, clients, tmp_path):
  config = examples.whole(noise=NoiseConfig(calibration='analytic'))
  built = quap_tff.Plan(config, averaging=postprocessing.Tail(1)).build_process(_MODEL_FN)
  rounds = bundle_files.PlannedRounds(examples.SCHEDULE, shrinkage=0.5)
  path = _written(built, tmp_path / 'bundle', rounds=rounds)
  assert _run(path, clients, tmp_path / 'run') == 0
  ledger = RunLedger.load(tmp_path / 'run' / 'ledger.npz')
  assert ledger.rounds.tolist() == [2, 1, 3, 2]
  with np.load(tmp_path / 'run' / 'final_model.npz') as model:
    assert [model[name].shape for name in model.files] == [(8, 3)]


def test_the_average_that_the_plan_chose_is_published(bundle, clients):
  found = quap_tff.Bundle(bundle)
  assert found.plan.averaging == postprocessing.Tail(1)
  found.rounds = bundle_files.PlannedRounds(found.rounds.cohorts, shrinkage=0.5)
  seen, update = [], found.update
  found.update = lambda *arguments: seen.append(update(*arguments)) or seen[-1]
  weights = simulation.simulate(found, simulation.read_clients(clients)[0]).weights.trainable
  expected = np.mean([found.weights(state).trainable[0] for state, _ in seen], axis=0, dtype=np.float64) / 2
  np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


def test_who_is_absent_sends_nothing(bundle, clients):
  found = quap_tff.Bundle(bundle)
  data = bundle_engine.client_data(found, 2, simulation.read_clients(clients)[0][2], [2])
  assert (data['examples'], data['client_id']) == ([], 2)


# What one client's data may be.
_UNUSABLE = {
  'a label that is no class': lambda x, y: dict(x=x, y=np.where(y == y[0], 12, y)),
  'a label below 0': lambda x, y: dict(x=x, y=np.where(y == y[0], -1, y)),
  'other shapes': lambda x, y: dict(x=x[:, :3], y=y),
  'another dtype': lambda x, y: dict(x=x.astype(str), y=y),
  'too few labels': lambda x, y: dict(x=x, y=y[:1]),
  'NaN': lambda x, y: dict(x=np.where(x == x[0], np.float32('nan'), x), y=y),
  'infinity': lambda x, y: dict(x=x * np.float32('inf'), y=y),
  'a norm that overflows': lambda x, y: dict(x=np.full_like(x, 3e38), y=y),
  'no labels': lambda x, y: dict(x=x),
  'nothing at all': lambda x, y: None,
}


@pytest.fixture(scope='module')
def held(context, tmp_path_factory):
  plan = _certified(correlation=correlation.HeldNoise(0.5))
  return _written(plan, tmp_path_factory.mktemp('bundles') / 'held')


@pytest.mark.parametrize('kind', ['bundle', 'held'])
def test_a_client_whose_data_cannot_be_used_adds_zero_and_its_noise(kind, clients, request):
  found = quap_tff.Bundle(request.getfixturevalue(kind))
  message = found.prepare(found.initialize())
  guarded = guarded_clients.GuardedClients(found.plan, b'0' * 32) if kind == 'held' else None
  answers = None if guarded is None else guarded.answers(1, found.rounds.cohorts[0])
  examples = simulation.read_clients(clients)[0][2]
  attempt = lambda own: found.attempt(bundle_engine.client_data(found, 2, own, answers=answers), message)
  nothing, own = attempt([]), attempt(examples)
  assert not nothing.problem and not own.problem
  assert any((a != b).any() for a, b in zip(_arrays(own.sums), _arrays(nothing.sums)))
  for name, change in _UNUSABLE.items():
    sums, problem = attempt(change(**examples))
    assert problem, name
    for found_array, expected in zip(_arrays(sums), _arrays(nothing.sums)):
      np.testing.assert_array_equal(found_array, expected, err_msg=name)


def _arrays(sums):
  return [np.asarray(leaf) for leaf in tf.nest.flatten([sums.plain, sums.secure])]


def test_a_secure_sum_is_a_remainder(held, clients):
  found, examples_of = quap_tff.Bundle(held), simulation.read_clients(clients)[0]
  message, cohort = found.prepare(found.initialize()), found.rounds.cohorts[0]
  answers = guarded_clients.GuardedClients(found.plan, b'0' * 32).answers(1, cohort)
  sent, total = [], found.zero()
  for client in cohort.tolist():
    data = bundle_engine.client_data(found, client, examples_of[client], answers=answers)
    sent.append(found.work(data, message))
    total = found.add(total, sent[-1])
  assert len(sent) > 1
  wrapped = False
  for modulus, leaf, *parts in zip(*map(tf.nest.flatten, [found.modulus, total.secure, *(one.secure for one in sent)])):
    whole = np.sum(parts, axis=0)
    np.testing.assert_array_equal(leaf, whole % modulus)
    wrapped = wrapped or bool(np.any(whole >= modulus))
  assert wrapped


def test_what_is_wrong_with_all_still_ends_the_round(held, clients):
  found = quap_tff.Bundle(held)
  data = {'client_id': np.int64(2), 'examples': simulation.read_clients(clients)[0][2]}
  with pytest.raises(ValueError, match='data must be .*answer.*, found client_id, examples'):
    found.attempt(data, found.prepare(found.initialize()))  # No guard has answered.


def test_one_clients_data_do_not_end_the_run_of_others(bundle, clients):
  found, lines = quap_tff.Bundle(bundle), []
  data = simulation.read_clients(clients)[0]
  data[2] = _UNUSABLE['a label that is no class'](**data[2])
  with pytest.warns(UserWarning, match=r'data of client 2 cannot be used, and it added zero: InvalidArgumentError'):
    outcome = simulation.simulate(found, data, say=lines.append)
  assert outcome.done == outcome.ledger.num_rounds == 3
  assert [line[:18] for line in lines].count('client 2 adds zero') == 1


@pytest.mark.parametrize(
  'change, error',
  [
    (lambda arrays: arrays.pop('client'), 'must be an .npz file with x, y and client, of one length'),
    (lambda arrays: arrays.update(client=arrays['client'] + 1), 'no examples of client 0, who takes part'),
    (lambda arrays: arrays.update(x=arrays['x'][:, :2]), r'x must be float32\[\?,8\], found float32\[5, 2\]'),
  ],
)
def test_refuses_other_data(change, error, bundle, clients, tmp_path, capsys):
  arrays = dict(np.load(clients))
  change(arrays)
  np.savez(tmp_path / 'other.npz', **arrays)
  assert _run(bundle, tmp_path / 'other.npz', tmp_path / 'run') == 2
  said = capsys.readouterr().err.splitlines()[-1]
  assert re.search(error, said) and not os.path.exists(tmp_path / 'run')


def test_refuses_what_is_no_data_no_bundle_and_no_new_folder(bundle, clients, tmp_path, capsys):
  (tmp_path / 'text').write_text('x')
  assert _run(bundle, tmp_path / 'text', tmp_path / 'run') == 2
  assert _run(tmp_path, clients, tmp_path / 'run') == 2
  assert _run(bundle, clients, tmp_path) == 2
  assert _run(bundle, clients, tmp_path / 'run', '--rounds=0') == 2
  lines = capsys.readouterr().err.splitlines()
  assert [line[:7] for line in lines] == 4 * ['Error: ']
  assert 'must be an .npz file with x, y and client' in lines[0] and 'manifest.json is missing' in lines[1]


def test_a_bundle_without_rounds_cannot_be_simulated(bundle, clients):
  found = quap_tff.Bundle(bundle)
  found.rounds = bundle_files.PlannedRounds()
  with pytest.raises(ValueError, match='does not say who takes part'):
    simulation.simulate(found, simulation.read_clients(clients)[0])


def test_signs_the_certificate(bundle, clients, tmp_path):
  ed25519 = pytest.importorskip('cryptography.hazmat.primitives.asymmetric.ed25519')
  serialization = pytest.importorskip('cryptography.hazmat.primitives.serialization')
  key = ed25519.Ed25519PrivateKey.generate()
  pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
  (tmp_path / 'key.pem').write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
  assert _run(bundle, clients, tmp_path / 'run', f'--signing_key={tmp_path / "key.pem"}') == 0
  assert not signatures.signature_problems(
    str(tmp_path / 'run' / 'certificate'), 'certificate.json', key.public_key(), 'key'
  )
