"""What a folder holds comes back as it was, for every choice of a mechanism; and who may write one."""

import dataclasses
import shutil

import numpy as np
import pytest

from quap_tff import certificates
from quap_tff import plans
from quap_tff.certificates import page
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import registry
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import participation
from tests.quap_tff.certificates import made

_OWN = (2.0, 2.0, 3.0, 3.0, 3.0, 3.0)
_ARCHIVES = (folders.SCHEDULE, folders.LEDGER, folders.MODEL)


@dataclasses.dataclass(frozen=True)
class _Half(weight_rules.WeightRule):
  """A rule of a user's own."""

  share: float = 0.5

  def weights(self, view):
    return 0 * view.rates + self.share


_CHOICES = {
  **{f'weights {name}': (dict(weights=rule()), {}) for name, rule in weight_rules.RULES.items() if name[0] != 's'},
  'weights spend_evenly': (dict(weights=weight_rules.SpendEvenly(), correlation=correlation.Ar1()), {}),
  'weights scale': (dict(weights=weight_rules.ScaledWeights(), own_epsilon=_OWN), {}),
  'weights sample': (dict(weights=weight_rules.Sample(), own_epsilon=_OWN), {}),
  'parameters of weights': (dict(weights=weight_rules.Online(prior_a=0.1, prior_b=1 / 3)), {}),
  'ar1': (dict(correlation=correlation.Ar1(0.7)), {}),
  'independent ar1': (dict(correlation=correlation.Ar1(0.0)), {}),
  'blt': (dict(weights=weight_rules.UniformWeights(), correlation=correlation.Blt()), {}),
  'banded': (dict(weights=weight_rules.WorstCase(), correlation=correlation.Banded(2)), {}),
  'own coefficients': (dict(correlation=correlation.Banded(3, (0.5, 0.1))), {}),
  'one band': (dict(correlation=correlation.Banded(1)), {}),
  'private quantile': (dict(clip=clip_rules.PrivateQuantile(count_stddev=5.0)), {}),
  'clip': (dict(clip=clip_rules.Fixed(0.1)), {}),
  **{f'split {name}': (dict(clip_split=name), {}) for name in ('sqrt_size', 'equal')},
  'ema': (dict(participation=participation.ParticipationConfig('ema', 0.3, 1, False)), {}),
  'own bounds': (dict(weights=weight_rules.Online(), own_epsilon=_OWN), {}),
  'random mask': ({}, dict(sparsity=sparsity.RandomMask(0.4), sparsity_seed=3)),
  'top released': (dict(clip=clip_rules.PrivateQuantile(count_stddev=5.0)), dict(sparsity=sparsity.TopReleased(0.5))),
  'given noise': (dict(noise_multiplier=9.0, divisor=2.5), {}),
  'held': (made.HELD, {}),
  'held, decay chosen': (dict(made.HELD, correlation=correlation.HeldNoise()), {}),
  'held, independent': (dict(made.HELD, correlation=correlation.HeldNoise(0.0)), {}),
  'held, dropout': (dict(made.HELD, dropout=0.25), {}),
  'held, own bounds': (dict(made.HELD, own_epsilon=_OWN), {}),
  'held, attendance': (made.HELD, dict(attendance=made.ATTENDANCE)),
  'held, colluders': (made.HELD, dict(attendance=made.ATTENDANCE, colluders=[1, 5])),
  # Numbers as users write them.
  'an integer for a float': (dict(clip=clip_rules.Fixed(1), weights=weight_rules.Online(1, 2), epsilon=3), {}),
  "NumPy's numbers": (
    dict(noise_multiplier=np.float32(5), divisor=np.float64(3), num_rounds=np.int64(4), epsilon=np.float64(3)),
    {},
  ),
  "NumPy's numbers in parts": (dict(clip=clip_rules.Fixed(np.float32(0.1)), correlation=correlation.Ar1(0)), {}),
}


def _check_round_trip(plan, path):
  ledger = made.ledger(plan)
  certificate = certificates.write_run(str(path), plan, made.leaving(plan), ledger, made.WEIGHTS, made.ABOUT)
  kept = folders.read(str(path))
  assert kept.plan.config == plan.config and kept.plan.fingerprint == plan.fingerprint
  assert kept.plan.model == made.MODEL and kept.about == made.ABOUT
  for name in ('schedule', 'attendance'):
    rounds = [getattr(one, name) for one in (kept.plan, plan)]
    assert (rounds[0] is None) == (rounds[1] is None)
    assert all(map(np.array_equal, *rounds)) and len(rounds[0]) == len(rounds[1]) if rounds[1] is not None else True
  assert (kept.plan.sparsity, kept.plan.sparsity_seed) == (plan.sparsity, plan.sparsity_seed)
  assert kept.plan.colluders == plan.colluders and tuple(kept.leaving) == made.leaving(plan)
  for name, array in ledger.state_dict().items():
    np.testing.assert_array_equal(kept.ledger.state_dict()[name], array)
  verdict = certificates.verify(str(path))
  assert verdict[:5] == ([], [], [], certificate['statement'], '')


# The contracts of registered choices write and read these, too, with their default values.
_HAVE_CONTRACTS = {*(name for name in _CHOICES if name.startswith('weights ')), 'ar1', 'banded', 'blt'}
# These differ from others by a value.
_LIKE_OTHERS = {
  *('independent ar1', 'one band', 'clip', 'split equal', "NumPy's numbers in parts"),
  *('held', 'held, decay chosen', 'held, independent', 'held, attendance'),
}
_THOROUGH = _HAVE_CONTRACTS | _LIKE_OTHERS


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.thorough if name in _THOROUGH else ()) for name in _CHOICES]
)
def test_what_was_written_is_read_again_and_valid(name, tmp_path):
  config, options = _CHOICES[name]
  _check_round_trip(made.plan(options, **config), tmp_path / 'run')


def test_every_choice_is_among_them():
  told = [config for config, _ in _CHOICES.values()]
  assert {type(config.get('weights', weight_rules.ParticipationWeights())) for config in told} == {
    *weight_rules.RULES.values()
  }
  assert {type(config.get('correlation', correlation.Independent())) for config in told} == {
    *correlation.FAMILIES.values()
  }
  assert {type(options.get('sparsity', sparsity.NotSparse())) for _, options in _CHOICES.values()} == {
    *sparsity.SPARSITIES.values()
  }


@pytest.mark.slow
def test_a_rule_of_a_users_own(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match='could get no certificate. .*_Half has no name. Register it: these are online'):
    made.plan(weights=_Half(0.25))
  plan = made.plan(dict(certificate=False), weights=_Half(0.25))
  with pytest.raises(ValueError, match='_Half has no name. Register it: these are online'):
    certificates.write_run(str(tmp_path / 'run'), plan, made.leaving(plan), made.ledger(plan), made.WEIGHTS, made.ABOUT)
  monkeypatch.setitem(weight_rules.RULES, 'half', _Half)
  _check_round_trip(plan, tmp_path / 'run')
  monkeypatch.delitem(weight_rules.RULES, 'half')
  with pytest.raises(folder_files.CannotTellError, match="Unknown weight rule 'half'"):
    certificates.verify(str(tmp_path / 'run'))


@pytest.mark.slow
def test_a_model_of_one_number_and_a_population_of_one(tmp_path):
  model = layers.ModelShape((layers.Layer('w', (0,), False),), ((),))
  plan = made.plan(dict(model=model), schedule=[[0]], num_clients=1)
  path = made.folder(tmp_path / 'run', plan, weights=[np.float32(2)], about=dataclasses.replace(made.ABOUT, tests=0))
  assert not certificates.verify(str(path)).problems


@pytest.mark.slow
def test_a_run_that_ended_early(tmp_path):
  about = dataclasses.replace(made.ABOUT, tests=2)
  path = made.folder(tmp_path / 'run', rounds=2, about=about)
  verdict = certificates.verify(str(path))
  assert not verdict.problems and 'The run ended after 2 of 4 planned rounds' in verdict.statement
  assert set((path / folders.CLIENTS).read_text().splitlines()[0].split(',')) == {
    *('client', 'rounds', 'formal_epsilon', 'formal_epsilon_reading')
  }


def test_the_seed_of_a_rehearsal_is_not_written(tmp_path):
  with pytest.raises(ValueError, match='could get no certificate. Its noise has a seed .* certificate=False'):
    made.plan(noise_seed=3)
  plan = made.plan(dict(certificate=False), noise_seed=3)
  assert 'seed' not in registry.value_of(plan.config)
  with pytest.raises(ValueError, match='Its noise has a seed that was given'):
    made.folder(tmp_path / 'run', plan)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'options, words',
  [(dict(client_metrics=True), 'training metrics of'), (dict(test_is_of_clients=True), 'figures on test examples')],
)
def test_exact_functions_of_clients_data_are_refused(options, words, tmp_path):
  with pytest.raises(ValueError, match=f'This run could get no certificate. It releases {words}'):
    made.plan(options)
  rehearsal = made.plan(dict(options, certificate=False))
  with pytest.raises(ValueError, match=f'This run cannot be certified. It releases {words}'):
    made.folder(tmp_path / 'run', rehearsal)
  assert not list(tmp_path.iterdir())


def test_a_plan_that_does_not_know_its_model_is_refused(tmp_path):
  plan = made.plan()
  unknown = plans.Plan.certified(plan.config, made.SCHEDULE)
  with pytest.raises(ValueError, match='Use the plan that plan.build_process'):
    certificates.write_run(
      str(tmp_path / 'run'), unknown, made.leaving(plan), made.ledger(plan), made.WEIGHTS, made.ABOUT
    )
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_ledger_or_a_model_of_another_run_is_refused(tmp_path):
  plan, other = made.plan(), made.plan(noise_multiplier=9.0)
  for ledger, weights, words in (
    (made.ledger(other), made.WEIGHTS, 'This ledger is of another plan'),
    (made.ledger(plan), made.WEIGHTS[:1], r"final_model.npz is damaged: it must hold the arrays \['arr_0', 'arr_1'\]"),
    (
      made.ledger(plan),
      made.WEIGHTS[::-1],
      r'holds tensors of the shapes \[\(2,\), \(3, 2\)\], and mechanism.json says',
    ),
  ):
    with pytest.raises(ValueError, match=words):
      certificates.write_run(str(tmp_path / 'run'), plan, made.leaving(plan), ledger, weights, made.ABOUT)
  with pytest.raises(ValueError, match='already exists: give a new folder'):
    made.folder(tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_failure_leaves_no_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(page, 'render', lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left on device')))
  with pytest.raises(OSError, match='No space left'):
    made.folder(tmp_path / 'run')
  assert not list(tmp_path.iterdir())


def test_a_certificate_is_removed_with_its_audit_also_after_a_kill(originals, tmp_path):
  shutil.copytree(originals / 'server', tmp_path / folders.SUBFOLDER)
  shutil.copytree(originals / 'server', tmp_path / f'{folders.SUBFOLDER}.part')
  for name in (folders.AUDIT, folders.AUDIT_SIGNATURE, 'run.json'):
    made.put(tmp_path, name)
  for _ in range(2):  # The second time nothing is left to remove.
    certificates.remove(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ['run.json']


class TestPlaces:
  """A certificate is found in its own folder, and in that of the run."""

  @pytest.mark.slow
  def test_the_folder_of_a_run(self, originals, tmp_path):
    shutil.copytree(originals / 'server', tmp_path / 'run' / folders.SUBFOLDER)
    alone = certificates.verify(str(originals / 'server'))
    assert certificates.verify(str(tmp_path / 'run')).statement == alone.statement
    # Whatever lies alongside it is not covered.
    made.put(tmp_path / 'run', 'run.json', b'not even JSON')
    made.put(tmp_path / 'run', 'checkpoints/secret')
    verdict = certificates.verify(str(tmp_path / 'run'))
    assert (verdict.problems, verdict.warnings, verdict.statement) == ([], [], alone.statement)
    assert verdict.scope.startswith('Only certificate/ was checked. ')

  def test_a_link_to_another_runs_certificate(self, certified, tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / folders.SUBFOLDER).symlink_to(certified)
    [problem] = certificates.verify(str(tmp_path / 'run')).problems
    assert problem.startswith('certificate in ') and 'is a link' in problem

  def test_a_second_certificate_alongside_the_folder(self, certified, tmp_path):
    """No reader is shown one certificate while the program reads the other."""
    shutil.copytree(certified, certified / folders.SUBFOLDER)
    assert 'certificate/ledger.npz does not belong there: a certificate does not name it.' in made.problems(certified)

  def test_a_folder_in_which_there_is_none(self, tmp_path, capsys):
    (tmp_path / folders.SUBFOLDER).mkdir()
    assert made.answer(tmp_path, capsys) == (
      2,
      ['CANNOT BE VERIFIED', f'  {tmp_path}/certificate holds no certificate.json. Only certified runs have one.'],
    )


def test_specs_are_those_of_the_command_line(certified):
  """So that a person can read them."""
  mechanism = made.read(certified, folders.MECHANISM)['mechanism']
  assert mechanism['weights'] == 'participation:alpha=0.5,beta=2.0' and mechanism['clip'] == 'fixed:norm=1.0'
  assert (
    registry.parse_spec('weight rule', mechanism['weights'], weight_rules.RULES) == weight_rules.ParticipationWeights()
  )


def test_an_archive_holds_the_arrays_and_nothing_else(certified):
  for name in _ARCHIVES:
    with np.load(certified / name) as arrays:
      assert not [key for key in arrays if arrays[key].dtype == object]
  with np.load(certified / folders.SCHEDULE) as arrays:
    assert arrays['offsets'].tolist() == [0, 3, 5, 5, 9] and arrays['clients'].tolist() == [0, 3, 4, 1, 2, 4, 3, 2, 0]
