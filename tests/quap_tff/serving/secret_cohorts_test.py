"""A run that draws its cohorts by secret coins: what it draws, what it refuses, and what it leaves in its folder."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import quap_tff
from quap_tff import certificates
from quap_tff import verify
from quap_tff.certificates.folders import folder as folders
from quap_tff.mechanisms.parts import clip_rules
from tests.quap_tff.certificates import made

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('context')]

_RATES = (0.7, 0.7, 0.2, 0.2, 0.2, 0.2)
_ROUNDS = 4
_MODEL_FN = quap_tff.models.build_model_fn('linear_features', (8,), 3)
_ABOUT = dict(dataset='made', cohorts='Rates of made clients.', tuning='None.')


@pytest.fixture(scope='module', name='engine')
def _engine(context):
  del context
  plan = quap_tff.certified(num_clients=6, epsilon=3.0, delta=1e-5, rates=_RATES, num_rounds=_ROUNDS)
  return plan.build_process(_MODEL_FN)


def _examples(clients):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(6, 12, 8)).astype(np.float32), rng.integers(0, 3, (6, 12)).astype(np.int32)
  return {client: {'x': x[client], 'y': y[client]} for client in clients}


def _run(engine, folder, stays_away=0):
  with quap_tff.Server.of(engine, folder) as run:
    while not run.is_over:
      run.play(_examples(list(run.ask())[stays_away:]))
    run.certify(**_ABOUT)
  return folder / folders.SUBFOLDER


@pytest.fixture(scope='module', name='finished')
def _finished(engine, tmp_path_factory):
  return _run(engine, tmp_path_factory.mktemp('secret') / 'run')


@pytest.fixture(name='folder')
def _folder(finished, tmp_path):
  return pathlib.Path(shutil.copytree(finished, tmp_path / 'certificate'))


def test_coins_have_the_accounted_rates_and_differ_from_run_to_run(engine):
  drawn = [list(quap_tff.Server.of(engine).ask()) for _ in range(2000)]
  counts = np.bincount(np.concatenate([np.array(one, int) for one in drawn]), minlength=6)
  # Keys are the operating system's, so the tolerance is six standard errors: a rate 0.07 off is found.
  error = np.sqrt(np.array(_RATES) * (1 - np.array(_RATES)) / 2000)
  assert (np.abs(counts / 2000 - _RATES) < 6 * error).all()


def test_asking_again_draws_nobody_else_and_weights_are_those_of_the_plan(engine):
  run = quap_tff.Server.of(engine)
  asked = run.ask()
  assert run.ask() == asked
  assert all(weight == np.float32(engine.plan.config.planned_weights[client]) for client, weight in asked.items())


def test_updates_of_a_program_of_its_own_are_in_the_statement(engine, tmp_path):
  plan = quap_tff.certified(num_clients=6, epsilon=3.0, delta=1e-5, rates=_RATES, num_rounds=_ROUNDS)
  weights = [np.zeros([8, 3], np.float32)]
  with quap_tff.Server.of(plan.build_update_process(weights), tmp_path / 'run') as run:
    while not run.is_over:
      run.play({client: [(np.full([8, 3], 0.1, np.float32),)] for client in run.ask()})
    path = run.certify(**_ABOUT)
  verdict = certificates.verify(path)
  assert not verdict.problems and "came from a program of the issuer's own" in verdict.statement
  assert np.all(run.weights.trainable[0] != 0)


def test_those_who_were_not_drawn_are_refused_and_a_cohort_is_not_taken(engine):
  run = quap_tff.Server.of(engine)
  strangers = sorted({*range(6)} - set(run.ask()))
  with pytest.raises(ValueError, match='draws its cohorts by secret coins'):
    run.ask([0])
  with pytest.raises(ValueError, match=f'Client {strangers[0]} was not drawn for round 1'):
    run.play(_examples(strangers[:1]))
  assert run.done == 0


def test_metrics_and_the_state_on_disk_have_the_same_form_whoever_comes(engine, tmp_path):
  metrics, states = [], []
  for name, stays_away in (('all', 0), ('none', 6)):
    with quap_tff.Server.of(engine, tmp_path / name) as run:
      metrics.append(run.play(_examples(list(run.ask())[stays_away:])))
      states.append({name: (one.shape, one.dtype) for name, one in run.state_dict().items()})
      assert run.ledger.num_rounds == 1 and not run.ledger.rounds.any()
  assert metrics[0] == metrics[1] and states[0] == states[1] and 'cohort_size' not in metrics[0]


def test_a_run_that_goes_on_draws_new_coins_and_has_no_more_rounds_than_planned(engine, tmp_path):
  drawn = set()
  for _ in range(_ROUNDS):
    with quap_tff.Server.of(engine, tmp_path / 'run') as run:
      run.play(_examples(run.ask()))
      drawn.add(run._coin_key)
  with quap_tff.Server.of(engine, tmp_path / 'run') as run:
    assert run.is_over and len(drawn) == _ROUNDS
    with pytest.raises(ValueError, match='is not in the plan'):
      run.play(_examples(run.ask()))


def test_the_certificate_rests_on_constants_and_holds_nothing_that_says_who_came(finished, engine):
  assert sorted(path.name for path in finished.iterdir()) == [
    'certificate.html',
    'certificate.json',
    'clients.csv',
    'final_model.npz',
    'mechanism.json',
  ]
  found = json.loads((finished / folders.CERTIFICATE).read_text(encoding='utf-8'))
  assert found['guarantee']['cohorts'] == 'secret' and found['guarantee']['epsilon'] == 3.0
  assert found['guarantee']['neighbours'] == 'add or remove one client'
  assert found['achieved'].keys().isdisjoint({'rounds', 'clients_that_took_part'})
  assert 'The coins must stay secret' in found['statement'] and 'network sees whom' in found['statement']
  assert str(found['guarantee']['epsilon_if_coins_become_known']) in found['statement']
  rows = (finished / folders.CLIENTS).read_text(encoding='utf-8').splitlines()
  assert rows[0] == 'client,rate,weight,formal_epsilon' and len(rows) == 7
  assert float(rows[1].split(',')[1]) == 0.7 and float(rows[6].split(',')[3]) <= 3
  assert certificates.verify(str(finished)).problems == []


@pytest.mark.thorough
def test_two_runs_with_other_cohorts_have_one_certificate_but_for_the_model(engine, finished, tmp_path):
  other = _run(engine, tmp_path / 'other', stays_away=6)
  for name in (folders.MECHANISM, folders.CLIENTS):
    assert (finished / name).read_bytes() == (other / name).read_bytes()
  one, two = (json.loads((path / folders.CERTIFICATE).read_text(encoding='utf-8')) for path in (finished, other))
  del one['provenance'], two['provenance'], one['sha256'], two['sha256']
  assert one == two


def _changed_mechanism(path, name, how):
  made.change(
    path, folders.MECHANISM, lambda value: value['mechanism'].__setitem__(name, how(value['mechanism'][name]))
  )


def _times(factor):
  def scaled(values):
    return [min(1.0, value * factor) for value in values] if isinstance(values, list) else values * factor

  return scaled


_FORGERIES = {
  'lower rates': ('rates', _times(0.5)),
  'higher weights': ('planned_weights', _times(1.2)),
  'less noise': ('noise_multiplier', _times(0.8)),
  'fewer rounds': ('num_rounds', lambda rounds: rounds - 1),
  'more rounds': ('num_rounds', lambda rounds: rounds + 4),
  'smaller epsilon': ('epsilon', lambda epsilon: epsilon / 2),
}


@pytest.mark.parametrize(
  'forgery, is_sealed',
  [
    *((forgery, True) for forgery in _FORGERIES),
    # The seal says the same of each of them.
    ('lower rates', False),
    *(pytest.param(forgery, False, marks=pytest.mark.thorough) for forgery in _FORGERIES if forgery != 'lower rates'),
  ],
)
def test_forgeries_are_found(folder, forgery, is_sealed, capsys):
  _changed_mechanism(folder, *_FORGERIES[forgery])
  if is_sealed:
    made.reseal(folder)
  assert verify.main([str(folder)]) == 1
  assert capsys.readouterr().out.startswith('INVALID')


@pytest.mark.parametrize('forgery', ['higher weights', 'less noise', 'more rounds', 'smaller epsilon'])
def test_constants_that_spend_more_are_found_in_a_folder_that_is_made_anew(folder, forgery, capsys):
  _changed_mechanism(folder, *_FORGERIES[forgery])
  content = folders.read(str(folder))
  (folder / folders.CLIENTS).write_text(folders.clients_text(content.plan, content.ledger), encoding='utf-8')
  made.reseal(folder)
  assert verify.main([str(folder)]) == 1
  assert 'clients would spend more than their bound' in capsys.readouterr().out


@pytest.fixture(scope='module', name='counted')
def _counted(context, tmp_path_factory):
  """The folder of a run whose clipping norm follows noised counts."""
  del context
  clip = clip_rules.PrivateQuantile(0.5, initial_clip=0.5, count_stddev=10.0)
  plan = quap_tff.certified(num_clients=6, epsilon=3.0, delta=1e-5, rates=_RATES, num_rounds=_ROUNDS, clip=clip)
  return _run(plan.build_process(_MODEL_FN), tmp_path_factory.mktemp('counted') / 'run')


def test_a_run_with_noised_counts_is_certified(counted):
  verdict, found = certificates.verify(str(counted)), made.read(counted, folders.CERTIFICATE)
  assert not verdict.problems and 'the noised sums and counts of this run' in verdict.statement
  shares = [one['share_of_worst_client'] for one in found['releases']]
  assert found['releases'][1]['what'].startswith('number of update norms within') and 0 < shares[1] < 1
  assert shares[0] + shares[1] == pytest.approx(1)


def _with_noise_of_counts(folder, stddev):
  _changed_mechanism(folder, 'clip', lambda clip: clip.replace('count_stddev=10.0', f'count_stddev={stddev}'))
  assert f'count_stddev={stddev}' in (folder / folders.MECHANISM).read_text(encoding='utf-8')
  made.reseal(folder)


def test_more_noise_of_counts_than_the_account_has_is_found(counted, tmp_path, capsys):
  folder = pathlib.Path(shutil.copytree(counted, tmp_path / 'certificate'))
  _with_noise_of_counts(folder, 50.0)
  assert verify.main([str(folder)]) == 1
  assert 'clients.csv: it says' in capsys.readouterr().out


def test_counts_that_spend_more_are_found_in_a_folder_that_is_made_anew(counted, tmp_path, capsys):
  folder = pathlib.Path(shutil.copytree(counted, tmp_path / 'certificate'))
  _with_noise_of_counts(folder, 5.0)
  content = folders.read(str(folder))
  (folder / folders.CLIENTS).write_text(folders.clients_text(content.plan, content.ledger), encoding='utf-8')
  made.reseal(folder)
  assert verify.main([str(folder)]) == 1
  assert 'clients would spend more than their bound' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['ledger.npz', 'schedule.npz'])
def test_a_file_that_says_who_came_does_not_belong_there(folder, name, capsys):
  (folder / name).write_bytes(b'x')
  made.reseal(folder)
  assert verify.main([str(folder)]) == 1
  assert f'{name} does not belong there' in capsys.readouterr().out


def test_no_bundle_carries_the_cohorts_out(engine, tmp_path):
  with pytest.raises(ValueError, match='the cohorts, which must stay secret'):
    quap_tff.export(engine, tmp_path / 'bundle')
