"""Constants that nobody gives: which flags a public rule chooses, and for whom."""

import math

import numpy as np
import pytest

from experiments.command import public_rule
import quap_tff
from tests.experiments import harness

_TABLE = '--dataset=npz:path=absent.npz'
_CONSTANTS = dict(client_optimizer='sgd:learning_rate=1', local_epochs=5, batch_size=100_000)
_OF_DOCUMENTS = dict(client_optimizer='sgd:learning_rate=0.05', local_epochs=1, batch_size=32)


def _flags(*arguments):
  return harness.run(*arguments).flags


class TestChosenFlags:
  @pytest.mark.parametrize('method', ['certified', 'fedavg', 'certified:trust=secure_sum'])
  @pytest.mark.parametrize(
    'data, features, model',
    [
      ([_TABLE], 'none', 'scaled_linear'),
      (['--dataset=digits'], 'scattering:scales=1', 'linear_features'),
      (['--dataset=mnist'], 'scattering', 'linear_features'),
      (['--dataset=mnist', '--model=auto'], 'scattering', 'linear_features'),
      (['--dataset=mnist', '--features=none'], 'none', 'scaled_linear'),
      (['--dataset=mnist', '--features=scattering:centred=true'], 'scattering:centred=true', 'linear_features'),
      (['--dataset=synthetic'], 'none', 'linear_features'),
    ],
  )
  def test_a_linear_model_that_suits_the_data(self, data, features, model, method):
    found = _flags(*data, f'--algorithm={method}')
    assert found.items() >= dict(_CONSTANTS, features=features, model=model).items()

  @pytest.mark.parametrize(
    'given', ['client_optimizer=sgd:learning_rate=0.2', 'local_epochs=2', 'batch_size=8', 'features=scattering']
  )
  def test_a_flag_that_is_given_wins(self, given):
    name, _, value = given.partition('=')
    run = harness.run('--dataset=digits', '--algorithm=fedavg', f'--{given}')
    assert str(run.flags[name]) == value and name not in run.by_rule
    others = {other: chosen for other, chosen in _CONSTANTS.items() if other != name}
    assert run.by_rule.items() >= others.items()

  def test_a_given_model_on_scaled_rows_has_the_constants_and_no_features(self):
    run = harness.run('--dataset=digits', '--model=scaled_linear', '--algorithm=fedavg')
    assert run.by_rule == _CONSTANTS and run.flags['features'] == 'none'

  @pytest.mark.parametrize(
    'arguments',
    [
      [_TABLE],
      [_TABLE, '--algorithm=fixed_dp'],
      [_TABLE, '--algorithm=scaffold'],
      [_TABLE, '--algorithm=certified', '--model=mlp'],
      [_TABLE, '--algorithm=fedavg', '--model=logistic_regression'],
      ['--dataset=shakespeare', '--algorithm=fedavg'],
    ],
  )
  def test_others_have_those_of_the_documents(self, arguments):
    run = harness.run(*arguments)
    assert not run.by_rule and run.flags.items() >= dict(_OF_DOCUMENTS, features='none').items()

  @pytest.mark.parametrize(
    'arguments, epsilon',
    [
      (['--algorithm=certified'], 3),
      (['--algorithm=scaffold:base=certified'], 3),
      (['--algorithm=certified', '--epsilon=6'], 6),
      ([], 6),
      (['--algorithm=fixed_dp'], 6),
    ],
  )
  def test_a_certified_run_has_the_epsilon_of_the_readme(self, arguments, epsilon):
    assert _flags(*arguments)['epsilon'] == epsilon

  def test_a_wrong_dataset_or_number_of_rounds_is_said_by_its_flag(self):
    assert '--dataset' in harness.refusal('--dataset=digitz', '--algorithm=fedavg')
    assert 'rounds must be' in harness.refusal('--rounds=0', '--algorithm=fedavg')


class TestSentence:
  @pytest.mark.parametrize(
    'arguments, words',
    [
      (['--algorithm=certified'], 'features, model, learning rate, local epochs, batch size, clipping norm.'),
      (['--algorithm=certified:clip=0.2', '--local_epochs=3'], 'features, model, learning rate, batch size.'),
      (['--algorithm=certified', '--model=mlp'], 'Not stated.'),
      (['--algorithm=certified', '--tuning=As last year.'], 'As last year.'),
    ],
  )
  def test_the_certificate_is_told_what_the_rule_chose(self, arguments, words):
    tuning = _flags(_TABLE, *arguments)['tuning']
    assert words in tuning and tuning.startswith('Chosen by a public rule') == (',' in words)

  def test_a_method_without_a_certificate_has_none(self):
    assert 'tuning' not in harness.run('--algorithm=fedavg').by_rule


class TestFeatures:
  @pytest.mark.parametrize(
    'shape, features',
    [
      (None, 'none'),
      ((12,), 'none'),
      ((8, 8, 1), 'scattering:scales=1'),
      ((32, 32, 3), 'scattering'),
      ((64, 64, 3), 'none'),
    ],
  )
  def test_only_small_images_have_some(self, shape, features):
    assert public_rule.features_of(shape) == features


class TestConstants:
  @pytest.mark.parametrize(
    'rounds, size, clip',
    [(1, None, 1), (20, None, 0.5), (200, None, 0.05), (20, 30, 0.5), (20, 99, 0.5), (20, 9, 0.15), (2, 9, 1)],
  )
  def test_the_norm_falls_with_the_rounds_and_for_small_cohorts(self, rounds, size, clip):
    assert quap_tff.public_constants(rounds, cohort_size=size) == pytest.approx((1, 5, 100_000, clip))

  def test_a_run_has_the_norm_of_its_cohorts(self):
    run = harness.run('--dataset=digits', '--algorithm=certified', '--rounds=20')
    config = run.method.configure(run.setting(30, run.participation(30))).configuration
    assert config.clip.initial_norm == pytest.approx(0.15)

  def test_longer_rows_have_shorter_steps(self):
    found = quap_tff.public_constants(20, row_norm=math.sqrt(12))
    assert found == pytest.approx((100 / 12, 5, 100_000, 5 / math.sqrt(12)))

  @pytest.mark.parametrize('wrong', [dict(num_rounds=0), dict(num_rounds=3, row_norm=0)])
  def test_numbers_must_be_above_zero(self, wrong):
    with pytest.raises(ValueError, match='num_rounds|row_norm'):
      quap_tff.public_constants(**wrong)


@pytest.mark.slow
def test_a_first_certified_run_on_a_table_learns(tmp_path, capsys):
  pytest.importorskip('tensorflow')
  rng = np.random.default_rng(5)
  x = rng.standard_normal([3000, 12]).astype(np.float32)
  y = (x @ rng.standard_normal([12, 3])).argmax(axis=1)
  np.savez(tmp_path / 'a.npz', x=x[:2560], y=y[:2560], client=np.arange(2560) % 64, x_test=x[2560:], y_test=y[2560:])
  arguments = [f'--dataset=npz:path={tmp_path / "a.npz"}', '--algorithm=certified', '--rounds=20', '--eval_every=20']
  assert harness.main(*arguments, '--progress=none') == 0
  out, err = capsys.readouterr()
  assert harness.last_line(out)['test_accuracy'] > 0.7
  assert '--model=scaled_linear, --client_optimizer=sgd:learning_rate=1' in err and 'a clipping norm of 0.3167' in err
