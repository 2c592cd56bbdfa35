"""What a run prints last: it fits a terminal, ends with accuracy and guarantee, and its last line is short JSON."""

import json
import math

import numpy as np
import pytest

from experiments.running import final_summary
from quap_tff import accounting
from tests.experiments import harness

_ROWS, _COLUMNS = 24, 80

# Runs of the library, and what they say of their guarantee.
RUNS = {
  'layerwise': 'Guarantee: none. The released model has no finite ε.',
  'fixed_dp': 'Guarantee, if the noise were ideal: the released model is differentially private',
  'certified': 'Guarantee: the released model is differentially private',
  'held': 'It also holds against the server',
}
METHODS = [
  (['--algorithm=fixed_dp'], 'Guarantee, if the noise were ideal: the weights are differentially private'),
  (
    ['--algorithm=tff_dp_fedavg', '--participation=bernoulli:q=0.4', '--cohort_seed=secret'],
    'with ε ≤ 1 (add or remove; cohorts secret) at δ = 1e-05',
  ),
]


def _rows(text):
  """Rows on the terminal: long lines are wrapped."""
  return sum(max(1, math.ceil(len(line) / _COLUMNS)) for line in text.splitlines())


def _figure(accountant, amplification='none', epsilon=1.0, neighbours=accounting.ADD_OR_REMOVE):
  return dict(
    accountant=accountant,
    amplification=amplification,
    neighbours=neighbours,
    epsilon_max=epsilon,
    epsilon_mean=epsilon,
    epsilon_median=epsilon,
  )


def _summary(**changes):
  formal = {
    'covers': 'released model',
    'statement': 'Every number.',
    'delta': 1e-5,
    'unit': 'one client',
    'notes': [],
    'noise_note': '',
    'reading': None,
    'figures': [_figure('gaussian_exact', epsilon=3.00001), _figure('basic', epsilon=9.0)],
  }
  return {
    'rounds': 8,
    'planned_rounds': 8,
    'interrupted': False,
    'test_accuracy': 0.5,
    'test_loss': 1.0,
    'nominal_epsilon_max': None,
    'nominal_epsilon_mean': None,
    'nominal_delta_max': None,
    'protection': 'Every released number is noised.',
    'formal': {**formal, **changes.pop('formal', {})},
    'output_dir': '/a/folder',
    **changes,
  }


class TestDivergence:
  @pytest.mark.parametrize(
    'weights, loss, diverged',
    [
      ([np.ones(3), np.full((2, 2), -99.0)], 2.3, False),
      ([np.ones(3)], 1e6, False),
      ([], 0.0, False),
      ([np.ones(3)], 1.1e6, True),
      ([np.ones(3)], math.nan, True),
      ([np.ones(3)], math.inf, True),
      ([np.ones(3), np.array([0.0, -9e19])], 2.3, True),
      ([np.array([np.nan])], 2.3, True),
      ([np.array([-np.inf], np.float32)], 2.3, True),
    ],
  )
  def test_is_what_leaves_any_sensible_range(self, weights, loss, diverged):
    assert final_summary.has_diverged(weights, loss) is diverged

  @pytest.mark.thorough
  @pytest.mark.slow
  def test_is_said(self, library, capsys):
    flags = ('--rounds=2', '--algorithm=fedavg', '--client_optimizer=sgd:learning_rate=1e9')
    assert harness.main(*harness.TINY, *flags) == 0
    for out, diverged in ((capsys.readouterr().out, True), (library.run('fedavg').out, False)):
      assert harness.last_line(out)['diverged'] is diverged
      assert ('The model has diverged: a weight or the test loss' in out) == diverged


class TestNonFinite:
  def test_says_how_many_and_where(self):
    assert final_summary.non_finite(0, 0, 0) == ''
    said = "1 of the clients' updates had NaN or infinity and counted as zero, in round 7. A smaller"
    assert final_summary.non_finite(1, 1, 7).startswith(said)
    assert 'in 3 rounds, the first of them round 2. ' in final_summary.non_finite(9, 3, 2)

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_are_counted_over_an_interruption_where_client_metrics_are_released(self, tmp_path, capsys):
    arguments = [*harness.TINY, '--rounds=3', '--epsilon=1', '--client_optimizer=sgd:learning_rate=1e38']
    for stop in (1, 3):
      assert harness.main(*arguments, f'--output_dir={tmp_path / "run"}', f'--stop_after={stop}') == 0
      out = ' '.join(capsys.readouterr().out.split())
      counts = [int(row['non_finite_updates']) for row in harness.rows(tmp_path / 'run')]
      assert len(counts) == stop and counts[0] == 3
      where = 'round 1.' if stop == 1 else f'{np.count_nonzero(counts)} rounds, the first of them round 1.'
      assert f"{sum(counts)} of the clients' updates had NaN or infinity and counted as zero, in {where}" in out

  @pytest.mark.slow
  @pytest.mark.thorough
  def test_are_not_said_where_no_client_metrics_are_released(self, capsys):
    arguments = ['--rounds=1', '--epsilon=0.5', '--client_optimizer=sgd:learning_rate=1e38', '--noclient_metrics']
    assert harness.main(*harness.TINY, *arguments) == 0
    assert 'NaN' not in capsys.readouterr().out


class TestGuessing:
  # 60 of 100 are 1: by chance a guess that is right with probability 0.6 has up to 0.6 + 2·√(0.6·0.4/100) = 0.698.
  @pytest.mark.parametrize('accuracy, said', [(0.1, True), (0.6, True), (0.69, True), (0.7, False), (1.0, False)])
  def test_is_what_is_not_above_the_most_frequent_label_by_more_than_chance(self, accuracy, said):
    guess = final_summary.guessed(accuracy, np.repeat([0, 1, 2], [20, 60, 20]))
    assert guess == (0.6 if said else None)
    line = f'Test accuracy 50.00%, loss 1.0000{": not clearly above one fixed label (60.00%)" if said else ""}.'
    assert line in final_summary.text(_summary(), guess=guess).splitlines()

  def test_without_labels_there_is_nothing_to_guess(self):
    assert final_summary.guessed(0.0, np.zeros(0, np.int32)) is None

  # The clipping norm is so small that the model keeps its initial weights, whose accuracy the seed fixes.
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'method', [['--algorithm=fedavg'], ['--algorithm=certified:clip=1e-9']], ids=lambda method: method[0]
  )
  @pytest.mark.thorough
  def test_is_said_for_every_method(self, method, capsys):
    arguments = [*harness.TINY, *method, '--rounds=2', '--seed=1']
    assert harness.main(*arguments, '--client_optimizer=sgd:learning_rate=1e-9') == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith('Test accuracy'))
    assert line.endswith(': not clearly above one fixed label (11.94%).')

  @pytest.mark.slow
  def test_is_not_said_of_a_model_that_has_learned(self, library):
    assert 'fixed label' not in library.run('fedavg').out


@pytest.mark.slow
class TestRun:
  @pytest.mark.parametrize(
    'share, said',
    [
      ('1', 'Malicious: 8 of the clients attack in every round that they are in (sign_flip:share=1.0,factor=1.0).'),
      ('0', None),
    ],
  )
  @pytest.mark.thorough
  def test_attackers_are_named_at_the_start_and_the_end_and_in_the_summary(self, share, said, tmp_path, capsys, drawn):
    folder = tmp_path / 'run'
    attack = f'--malicious=sign_flip:share={share}'
    assert harness.main(*harness.TINY, '--rounds=1', '--epsilon=0.5', attack, f'--output_dir={folder}') == 0
    captured = capsys.readouterr()
    kept = json.loads((folder / 'summary.json').read_text())
    # A run of one round has no plot.
    assert 'Model and all figures (summary.json): ' in captured.out and not (folder / 'plot.png').exists()
    if said is None:
      assert kept['malicious'] is None and 'Malicious' not in captured.out + captured.err
      return
    assert kept['malicious'] == {'clients': 8, 'attack': 'sign_flip:share=1.0,factor=1.0'}
    assert said in ' '.join(captured.err.split()) and said in ' '.join(captured.out.split())
    assert json.loads(captured.out.splitlines()[-1])['malicious'] == kept['malicious']

  @pytest.mark.parametrize('name', RUNS)
  def test_fits_the_terminal_and_ends_with_accuracy_and_guarantee(self, name, library):
    folder, out, _ = library.run(name)
    self._fits(folder, out, RUNS[name])

  @pytest.mark.thorough
  @pytest.mark.parametrize('arguments, said', METHODS, ids=lambda value: value[0] if isinstance(value, list) else '')
  def test_so_does_every_method(self, arguments, said, tmp_path, capsys):
    folder = tmp_path / 'run'
    assert harness.main(*harness.TINY, '--rounds=3', '--epsilon=1', f'--output_dir={folder}', *arguments) == 0
    self._fits(folder, capsys.readouterr().out, said)

  def _fits(self, folder, out, said):
    # As from a folder with a short name, which pytest's is not.
    assert _rows(out.replace(str(folder), 'runs/demo')) <= _ROWS
    *lines, json_line = out.splitlines()
    assert all(len(line) <= _COLUMNS or str(folder) in line for line in lines)
    end = ' '.join(lines[next(i for i, line in enumerate(lines) if line.startswith('Test accuracy')) :])
    assert said in end and 'ormal ε' not in end
    kept = harness.strict_json((folder / 'summary.json').read_text())
    assert set(harness.strict_json(json_line)) == set(kept)
    assert ('Nominal (no guarantee)' in out) == (kept['nominal_epsilon_max'] is not None)

  def test_the_plot_is_offered(self, library):
    path, out, _ = library.run('fedavg')
    assert 'plot.png' in out and (path / 'plot.png').stat().st_size > 1000


class TestLine:
  def test_scalars_stay_and_what_is_long_is_cut(self):
    summary = _summary(protection='Long. ' * 50)
    short = harness.strict_json(final_summary.line(summary))
    assert set(short) == set(summary)
    scalars = {key for key, value in summary.items() if not isinstance(value, dict)} - {'protection'}
    assert all(short[key] == summary[key] for key in scalars)
    assert short['protection'] == 'Every released number is noised.'
    assert [figure['accountant'] for figure in short['formal']['figures']] == ['gaussian_exact']
    assert short['formal']['reading'] is None

  def test_no_formal_figures(self):
    short = harness.strict_json(final_summary.line({**_summary(), 'formal': None, 'protection': 'Long. ' * 50}))
    assert short['formal'] is None and short['protection'] == 'No finite ε for the released model.'


class TestGuarantee:
  def test_is_never_below_the_figure(self):
    assert 'ε ≤ 3.001 ' in final_summary.guarantee(_summary())

  def test_the_exact_figure_is_taken_not_a_looser_one(self):
    reversed_figures = {'figures': _summary()['formal']['figures'][::-1]}
    assert '3.001' in final_summary.guarantee(_summary(formal=reversed_figures))

  def test_a_round_without_noise_leaves_none(self):
    text = final_summary.guarantee(_summary(formal={'figures': [_figure('gaussian_exact', epsilon=None)]}))
    assert text == 'Guarantee: none. The released model has no finite ε.'

  def test_of_secret_cohorts_it_is_the_smallest_amplified_figure(self):
    figures = [_figure('rdp', 'Poisson sampling', 2.0), _figure('pld', 'Poisson sampling', 1.5)]
    summary = _summary(formal={'figures': figures})
    assert 'ε ≤ 1.5 (add or remove; cohorts secret)' in final_summary.guarantee(summary)
    assert harness.strict_json(final_summary.line(summary))['formal']['figures'][0]['accountant'] == 'pld'

  def test_against_the_server_it_has_a_condition(self):
    said = [final_summary.guarantee(_summary(trust=trust)) for trust in ('server', 'secure_sum')]
    condition = ' It also holds against the server, if secure sums open as the plan assumes (docs/trust.md).'
    assert said[1] == said[0] + condition

  def test_relations_have_short_names(self):
    figures = [_figure('gaussian_exact', neighbours=accounting.ZERO_OUT)]
    assert 'ε ≤ 1 (zero-out)' in final_summary.guarantee(_summary(formal={'figures': figures}))


@pytest.mark.slow
class TestOtherEpsilon:
  _EXACT = ' --calibration=exact makes them equal.'

  def _said(self, *arguments, epsilon=0.67):
    found = harness.experiment(*harness.TINY, *arguments)
    summary = _summary(formal={'figures': [_figure('gaussian_exact', epsilon=epsilon)]})
    return final_summary.other_epsilon(found.run, found.plan, summary)

  @pytest.mark.parametrize(
    'arguments, remedy',
    [
      (['--algorithm=fixed_dp'], _EXACT),
      (['--algorithm=fedvarp:base=fixed_dp'], _EXACT),
      (['--algorithm=local_dp'], _EXACT),
      (['--algorithm=tff_dp_fedavg_adaptive', '--calibration=documents'], _EXACT),
      # It is exact already, so the cohorts were not those planned.
      (['--algorithm=tff_dp_fedavg'], ''),
      # Its counts alone spend more, and the noise on them is not scaled.
      (['--algorithm=adaptive_clip:count_stddev=0.5'], ''),
      (['--algorithm=lee_kifer'], ''),
      (['--algorithm=certified'], ''),
      (
        ['--algorithm=scaffold:base=certified:noise_multiplier=9'],
        ' Leave noise_multiplier out of --algorithm, to make them equal.',
      ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else '',
  )
  def test_names_the_flag_that_makes_them_equal_and_no_other(self, arguments, remedy):
    assert self._said(*arguments) == f'The formal ε is 0.67, not --epsilon=4.{remedy}'

  @pytest.mark.parametrize(
    'epsilon, differs', [(3.79, True), (3.81, False), (4.19, False), (4.21, True), (None, False)]
  )
  def test_begins_at_a_twentieth(self, epsilon, differs):
    assert bool(self._said('--algorithm=fixed_dp', epsilon=epsilon)) == differs

  @pytest.mark.parametrize(
    'arguments, as_said',
    [
      (['--algorithm=fixed_dp'], ['--calibration=exact']),
      (['--algorithm=fedvarp:base=fixed_dp'], ['--calibration=exact']),
      (['--algorithm=certified:noise_multiplier=9'], ['--algorithm=certified']),
    ],
    ids=lambda value: value[0],
  )
  def test_the_flag_makes_them_equal(self, arguments, as_said):
    epsilons = []
    for extra in ([], as_said):
      experiment = harness.experiment(*harness.TINY, *arguments, *extra)
      report = experiment.plan.report(experiment.plan.planned_ledger(experiment.schedule))
      summary = _summary(formal=report.formal.as_dict())
      (figure,) = harness.strict_json(final_summary.line(summary))['formal']['figures']
      epsilons.append(figure['epsilon_max'])
      said = final_summary.other_epsilon(experiment.run, experiment.plan, summary)
      assert (said or '').startswith('The formal ε is ') == (not extra)
    assert epsilons[0] < 3.8 < 3.99 < epsilons[1] <= 4


class TestStoppedEarly:
  _READING = {
    'rounds': 2,
    'epsilon_max': 0.70001,
    'epsilon_mean': 0.5,
    'why': 'the run may have ended because of what it released',
  }

  def _stopped(self, **reading):
    return _summary(rounds=2, formal={'reading': {**self._READING, **reading}})

  def test_the_guarantee_is_of_all_planned_rounds_and_the_reading_is_named_so(self):
    lines = ' '.join(final_summary.text(self._stopped()).splitlines())
    guarantee, _, reading = lines.rpartition(' Reading after ')
    assert guarantee.endswith('for each client and all of its data, over all 8 planned rounds.')
    assert reading.startswith('2 of 8 rounds: ε ≤ 0.7001 (not a guarantee: ')
    assert harness.strict_json(final_summary.line(self._stopped()))['formal']['reading'] == self._READING

  def test_a_round_without_noise(self):
    assert 'Reading after 2 of 8 rounds: no finite ε (' in final_summary.text(self._stopped(epsilon_max=None))

  def test_a_run_without_a_bound_says_why(self):
    summary = _summary(
      formal={'figures': [], 'noise_note': '', 'notes': ['No formal figure: of this.'], 'reading': self._READING}
    )
    assert final_summary.guarantee(summary) == 'Guarantee: none. No formal figure: of this.'
    final_summary.line(summary)

  def test_a_run_that_reached_its_last_round_has_no_reading(self):
    assert 'eading' not in final_summary.text(_summary()) and 'over all' not in final_summary.text(_summary())
