"""The whole report: its order, what is said where there are no runs, and what it must never say."""

import json
import re
import shlex

import pytest

from experiments.reporting import finding
from experiments.reporting import pages
from experiments.reporting import runs as runs_lib
from experiments.reporting import sections
from experiments.reporting import study
from experiments.running import plots
from experiments.sweeps import sweep_runs
from quap_tff import methods
from tests.experiments.reporting import factory

_TFF = {'algorithm': 'tff_dp_fedavg', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0}
_OURS = {'algorithm': 'certified', 'epsilon': 3, 'certified_epsilon': 3.0}


def _built(groups, left_out=()):
  return finding.build(groups, left_out, 'the command')


def _titles(report):
  return [section.title for section in report]


def _legends(place):
  return getattr(place, 'legends', None) or [one for one in [getattr(place, 'legend_', None)] if one]


@pytest.fixture(scope='module')
def everything(tmp_path_factory):
  """The groups of runs that fill nearly every section, with long flags."""
  base = factory.FULL
  runs = [
    *({'algorithm': a, 'noise_norm': 0 if a == 'fedavg' else 1e7, **base} for a in methods.METHODS if a != 'certified'),
    *factory.seeds(1, 2, 3, **base),
    *factory.seeds(1, 2, 3, algorithm='fixed_dp', noise_norm=1e5, **base),
    *factory.seeds(1, 2, 3, algorithm='adaptive_budget_clip', noise_norm=[6e15, 7e15, 9e15], **base),
    *({'alpha': a, 'beta': b, **base} for a in (0.3, 0.7) for b in (1, 3)),
    *({'epsilon': e, **base} for e in (3, 10)),
    *(
      {'participation': p, 'algorithm': a, **base}
      for p in ('uniform', 'extreme_imbalance', 'beta:a=1,b=1')
      for a in ('quap', 'fixed_dp')
    ),
    *(
      {
        'algorithm': f'certified:clip=0.5,weights={w}',
        'epsilon': 3,
        'certified_epsilon': 3.0,
        'features': f,
        'client_optimizer': 'sgd:learning_rate=0.25,momentum=0.9',
        **base,
      }
      for w in ('participation', 'spend_evenly')
      for f in ('pretrained:path=runs/glyphs', 'scattering:centred=true')
    ),
    {'algorithm': 'tff_dp_fedavg:clip=0.5', 'epsilon': 3, 'covers': 'released model', 'epsilon_max': 3.0, **base},
  ]
  return factory.groups_of(tmp_path_factory.mktemp('runs'), *runs)


@pytest.fixture(scope='module')
def folder(everything, tmp_path_factory):
  """The report on `everything`."""
  path = tmp_path_factory.mktemp('report')
  pages.write_page(str(path), _built(everything), study.runs_table(everything))
  return path


@pytest.mark.slow
def test_results_come_before_settings(everything):
  titles = _titles(_built(everything, [runs_lib.LeftOut('here', 'damaged')]))
  assert titles[-3:] == ['Why measured and printed figures differ', 'Settings', 'What was left out']
  assert titles[1:3] == ['Accuracy and privacy', 'Certified: equal formal ε']


def test_a_report_on_the_documents_settings_says_why_measured_and_printed_figures_differ(groups_of):
  text = '\n'.join(factory.text(section.blocks) for section in _built(groups_of(factory.FULL)))
  for words in (
    'as soon as the test accuracy reaches 93.2% (MNIST)',
    'ε_total is not what a client spends',
    'd/d_c, the ratio of squared norms',
    'printed budgets do not follow from its formula',
  ):
    assert words in text


def test_a_report_on_other_settings_says_nothing_about_the_documents_figures(groups_of):
  report = _built(groups_of({'dataset': 'digits'}, {'algorithm': 'fixed_dp', 'dataset': 'digits'}))
  assert report[0].title == 'QuAP-FL: measured figures'
  assert 'Why measured and printed figures differ' not in _titles(report)
  tables = [block for section in report for block in section.blocks if isinstance(block, pages.Table)]
  assert not [name for table in tables for name in table.frame if 'document' in name]


def test_a_report_begins_with_the_finding_one_figure_and_one_table(groups_of):
  report = _built(groups_of({}, {'algorithm': 'fixed_dp', 'accuracy': 0.8}))
  found, figure, table, *_ = report[0].blocks
  assert found.startswith('**On MNIST with participation Beta(2,5), QuAP-FL is ahead of Fixed-DP, with 90.0% against')
  assert isinstance(figure, pages.Plot) and isinstance(table, pages.Table) and table.name == 'finding'
  # It is not shown twice, and no section is left without anything.
  assert not [section.title for section in report[1:] if any(block is figure for block in section.blocks)]
  assert all(section.blocks for section in report) and 'Accuracy by round' not in _titles(report)


def test_all_that_was_not_run_is_one_line(groups_of):
  report = _built(groups_of({'algorithm': 'fedavg', 'noise_norm': 0}))
  (section,) = (section for section in report if section.title == 'Not run')
  (line,) = section.blocks
  missing = line.partition('. `')[0].split('; ')
  assert {'Accuracy by one flag', 'Certified: equal formal ε', 'Hypotheses H1 to H3'} == set(missing)
  begins_with = {'Accuracy by round'}  # Its one figure.
  assert set(missing) | set(_titles(report)) | begins_with >= {section.title for section in sections.SECTIONS}
  assert not set(missing) & set(_titles(report))


def test_settings_name_what_all_share_and_what_differs(groups_of):
  groups = groups_of({}, {'algorithm': 'fixed_dp'}, {'epsilon': 3})
  (section,) = (section for section in _built(groups) if section.title == 'Settings')
  text = factory.text(section.blocks)
  assert 'Made by `the command` from 3 runs of 3 settings.' in text and 'quap_tff 0.1.0' in text and 'cores 2' in text
  assert '`alpha=0.5`' in text and '`epsilon' not in text
  rows = factory.table(section.blocks, 'settings')
  assert {row['flag']: row['values'] for row in rows} == {'algorithm': 'quap, fixed_dp', 'epsilon': '6, 3'}


@pytest.mark.slow
def test_a_report_calls_nothing_a_formal_epsilon_that_is_none(tmp_path, groups_of):
  runs = [{'algorithm': a, 'noise_norm': 0 if a == 'fedavg' else 1.0} for a in ('quap', 'layerwise', 'fedavg')]
  groups = groups_of(*runs)
  pages.write_page(str(tmp_path / 'report'), _built(groups), study.runs_table(groups))
  text = (tmp_path / 'report' / 'report.md').read_text()
  assert text.count('no finite ε for the released model') == 6  # In the finding and in the table of all settings.
  assert 'no released model here has a finite ε' in text
  assert 'released model: ε' not in text and 'weights only' not in text and 'No run has a formal figure.' in text


@pytest.mark.slow
@pytest.mark.thorough
def test_words_that_no_report_has(folder):
  text = (folder / 'report.md').read_text()
  assert not re.search(r'real ε|noised weights|00\d…|DESIGN', text)
  for name in ('the first document', 'the theory document', 'the November 2025 document'):
    assert name in text


@pytest.mark.slow
@pytest.mark.thorough
def test_every_figure_has_a_title_and_a_name_of_its_own(everything):
  shown = factory.drawings([block for section in pages.numbered(_built(everything)) for block in section.blocks])
  assert len(shown) > 5 and all(figure.title and figure.caption for figure in shown)
  assert len({figure.name for figure in shown}) == len(shown)
  for figure in shown:
    figure_ = plots.drawn(*figure.titled)
    legends = [legend for place in (figure_, *figure_.axes) for legend in _legends(place)]
    assert all(len(legend.get_texts()) <= 8 for legend in legends)
    assert all(len(axes.get_yticklabels()) <= 8 for axes in figure_.axes if axes.get_ylim()[0] > axes.get_ylim()[1])
  assert not [figure.title for figure in shown if re.search(r'\w=\w', figure.title)]
  assert all(figure.alternative != figure.title for figure in shown)


@pytest.mark.parametrize('section', sections.SECTIONS, ids=lambda section: section.title)
def test_the_command_of_a_section_is_a_grid_over_a_preset(section):
  words = shlex.split(section.command)
  assert words[:3] == ['python', '-m', 'experiments.sweep']
  axes = [word[len('--vary=') :] for word in words if word.startswith('--vary=')]
  assert axes and sweep_runs.combinations(axes)
  assert words[-2] == '--' and words[-1].startswith('--flagfile=experiments/presets/')


def _found(folder, *runs):
  words, blocks = finding.finding(factory.groups_of(folder, *runs))
  return words, factory.table(blocks, 'finding'), factory.text(blocks)


def test_methods_at_an_equal_guarantee_and_where_another_wins(tmp_path):
  words, rows, notes = _found(
    tmp_path,
    *factory.seeds(1, 2, 3, accuracy=[0.9, 0.91, 0.92], **_OURS),
    *factory.seeds(1, 2, 3, accuracy=[0.7, 0.71, 0.73], **_TFF),
    *factory.seeds(1, 2, 3, accuracy=[0.8, 0.8, 0.8], **{**_OURS, 'epsilon': 1}),
    *factory.seeds(1, 2, 3, accuracy=[0.85, 0.85, 0.85], **{**_TFF, 'epsilon': 1}),
    {'algorithm': 'quap', 'accuracy': 0.99},
  )
  assert words == (
    # The differences are 20, 20 and 19: their mean ± 4.303·0.577/√3.
    'On MNIST at ε = 3, with participation Beta(2,5), Certified QuAP-FL is 19.7 ± 1.4 points ahead of TFF DP-FedAvg '
    '(91.0% against 71.3%; 3 seeds, paired, 95% interval).'
  )
  # Student's intervals: 4.303·1/√3 and 4.303·1.528/√3.
  assert [(row['method'], row['ε = 1'], row['ε = 3'], row['minus best']) for row in rows] == [
    ('Certified QuAP-FL', '80.00 ± 0.00', '91.00 ± 2.48', 'the best'),
    ('TFF DP-FedAvg †', '85.00 ± 0.00', '71.33 ± 3.79', '-19.67 ± 1.43'),
  ]
  assert notes.startswith('† These figures hold for ideal Gaussian noise.')
  best = 'Certified QuAP-FL has the best mean in 1 and TFF DP-FedAvg has the best mean in 1'
  assert f'Of all 2 combinations of ε and participation, {best}.' in notes


def test_the_best_of_each_kind_is_said_to_be_chosen_by_the_seeds(tmp_path):
  others = factory.seeds(1, 2, 3, accuracy=[0.8, 0.81, 0.8], **{**_TFF, 'algorithm': 'tff_dp_ftrl'})
  words, _, _ = _found(
    tmp_path, *factory.seeds(1, 2, 3, accuracy=0.9, **_OURS), *factory.seeds(1, 2, 3, accuracy=0.7, **_TFF), *others
  )
  assert 'points ahead of TFF DP-FTRL (' in words and 'each the best of its kind by these seeds)' in words


def test_two_seeds_have_no_interval(tmp_path):
  words, rows, _ = _found(
    tmp_path, *factory.seeds(1, 2, accuracy=[0.9, 0.5], **_OURS), *factory.seeds(1, 2, accuracy=0.6, **_TFF)
  )
  assert 'with 70.0% against 60.0%; the seeds are too few to tell it from chance' in words
  assert rows[0]['ε = 3'] == '70.00'


@pytest.mark.parametrize('others, is_clear', [([0.5, 0.51, 0.9], False), ([0.5, 0.51, 0.52], True)])
def test_a_lead_within_the_interval_is_said_to_be_unclear(tmp_path, others, is_clear):
  words, _, _ = _found(
    tmp_path, *factory.seeds(1, 2, 3, accuracy=0.9, **_OURS), *factory.seeds(1, 2, 3, accuracy=others, **_TFF)
  )
  assert 'Certified QuAP-FL is ' in words and ' points ahead of TFF DP-FedAvg' in words
  assert ('which the seeds do not tell from chance' in words) is not is_clear


def test_without_equal_guarantees_it_is_about_accuracy(tmp_path):
  words, (row,), _ = _found(tmp_path, {'dataset': 'digits', 'accuracy': 0.876})
  assert (
    words
    == 'On 8×8 digits with participation Beta(2,5), QuAP-FL reaches 87.60%; no released model here has a finite ε.'
  )
  assert row['formal ε'] == 'no finite ε for the released model'


def test_secret_cohorts_are_always_named(tmp_path):
  secret = {**_TFF, 'cohort_seed': 'secret', 'participation': 'bernoulli:q=0.4', 'accuracy': 0.95}
  words, rows, _ = _found(
    tmp_path, {**_OURS, 'participation': 'uniform'}, {**secret, 'algorithm': 'tff_dp_fedavg:clip=0.2'}
  )
  assert (
    'TFF DP-FedAvg with secret cohorts is ahead of Certified QuAP-FL' in words
    and 'with participation uniform, ' in words
  )
  assert [row['method'] for row in rows] == ['TFF DP-FedAvg with secret cohorts †', 'Certified QuAP-FL']


@pytest.mark.slow
def test_of_many_methods_the_table_has_the_best(tmp_path):
  ours = [{**_OURS, 'algorithm': f'certified:clip={n}', 'accuracy': n / 20} for n in range(1, 12)]
  _, rows, _ = _found(tmp_path, *ours, _TFF)
  assert len(rows) == 8 and rows[0]['method'] == 'TFF DP-FedAvg †' and rows[1]['ε = 3'] == '55.00'


def test_runs_that_stop_at_an_accuracy_do_not_hide_those_that_do_not(tmp_path):
  _, rows, _ = _found(tmp_path, {**_OURS, 'accuracy': 0.9}, {**_OURS, 'accuracy': 0.8, 'stop_at_accuracy': 0.8}, _TFF)
  assert [row['method'] for row in rows] == ['Certified QuAP-FL', 'TFF DP-FedAvg †']


def test_a_report_on_damaged_old_and_foreign_runs(tmp_path):
  runs = tmp_path / 'runs'
  for number, run in enumerate(({}, {'dataset': 'digits'}, {'algorithm': 'fedavg', 'noise_norm': 0}, _OURS, _TFF)):
    factory.write_run(runs / str(number), **run)
  for name in ('summary.json', 'clients.csv', 'ledger.npz'):
    (runs / '0' / name).unlink()
  (runs / '1' / 'clients.csv').unlink()
  (runs / '2' / 'metrics.csv').unlink()
  identity = json.loads((runs / '1' / 'run.json').read_text())['identity']
  factory.change_json(runs / '1' / 'run.json', identity={**identity, 'algorithm': 'retired:a=1', 'retired_flag': 3})
  groups = factory.groups_of(runs)
  assert len(groups) == 5
  titles = _titles(_built(groups))
  assert 'Accuracy and privacy' in titles and 'Certified: equal formal ε' in titles
  assert len(study.runs_table(groups)) == 5
