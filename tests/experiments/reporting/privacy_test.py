"""What a privacy figure may be called."""

import json

import pytest

from experiments.reporting import privacy
from tests.experiments.reporting import factory


def _cell(tmp_path, **run):
  return privacy.formal_text(factory.study_of(tmp_path, run).groups[0])


@pytest.mark.parametrize('covers', ['nothing', None, 'noised weights', 'weights without the logs', 'something new'])
def test_only_a_run_that_says_so_itself_has_an_epsilon_of_the_model(tmp_path, covers):
  study = factory.study_of(tmp_path, {'covers': covers})
  figure_of_the_weights = covers == 'weights without the logs'
  assert (privacy.formal_text(study.groups[0]) == privacy.NO_FINITE) != figure_of_the_weights
  assert privacy.whole_model_epsilon(study.runs[0]) is None


def test_a_summary_at_odds_with_itself_claims_nothing(tmp_path):
  folder = factory.write_run(tmp_path / 'run', covers='released model')
  summary = json.loads((folder / 'summary.json').read_text())
  factory.write_json(folder / 'summary.json', {**summary, 'model_protected': False})
  group = factory.study_of(tmp_path).groups[0]
  assert privacy.formal_text(group) == privacy.NO_FINITE


def test_noise_everywhere_beside_logged_metrics(tmp_path):
  assert _cell(tmp_path, covers='weights without the logs', epsilon_max=0.5) == (
      'weights only, if the logs stay secret: ε = 0.5 at total δ = 1e-05 (gaussian_exact, no amplification)'
  )


def test_the_figure_without_amplification_and_the_worst_seed(tmp_path):
  study = factory.study_of(tmp_path, *factory.seeds(1, 2, covers='released model', epsilon_max=[2.0, 2.5]))
  text = privacy.formal_text(study.groups[0])
  assert text == 'released model: ε = 2.5 at total δ = 1e-05 (gaussian_exact, no amplification)'
  assert [privacy.whole_model_epsilon(run) for run in study.runs] == [2.0, 2.5]


def test_one_seed_without_a_claim_spoils_it(tmp_path):
  study = factory.study_of(tmp_path, *factory.seeds(1, 2, covers=['released model', 'nothing']))
  assert privacy.formal_text(study.groups[0]) == privacy.NO_FINITE


def test_a_certificate(tmp_path):
  study = factory.study_of(tmp_path, {'algorithm': 'certified', 'certified_epsilon': 2.97, 'covers': None})
  assert privacy.formal_text(study.groups[0]) == (
      'released model: ε = 2.97 at total δ = 1e-05 (certificate.json)'
  )
  assert privacy.whole_model_epsilon(study.runs[0]) == 2.97


def test_nominal_figures(tmp_path):
  group = factory.study_of(tmp_path, {'algorithm': 'fixed_dp'}).groups[0]
  assert privacy.nominal(group, 'mean').mean == pytest.approx(4 * 0.6)
  assert privacy.nominal(group, 'max').mean == pytest.approx(0.6 * group.runs[0].participation_counts.max())
  without = factory.study_of(tmp_path / 'b', {'algorithm': 'fedavg', 'noise_norm': 0}).groups[0]
  assert privacy.nominal(without, 'max') is None
