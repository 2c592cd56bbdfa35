"""Tests of `experiments.survey`."""

import json

import pytest

from experiments import survey
from experiments.command import command_line


def _run(capsys, *arguments):
  status = command_line.status_of(survey.main, ['survey', *arguments])
  found = capsys.readouterr()
  return status, found.out, found.err


class TestSurvey:
  @pytest.mark.parametrize('mechanism, epsilon', [('randomized_response:epsilon=3', 3.0), ('rappor:p=0.1,q=0.9', None)])
  def test_labels_are_estimated(self, mechanism, epsilon, capsys):
    status, out, _ = _run(capsys, f'--mechanism={mechanism}', '--num_clients=400', '--answer_seed=1')
    summary = json.loads(out.splitlines()[-1])
    assert status == 0 and summary['clients'] == 400 and sum(summary['true']) == pytest.approx(1)
    assert epsilon is None or summary['epsilon'] == epsilon
    for found, stddev, true in zip(summary['estimated'], summary['stddev'], summary['true']):
      assert abs(found - true) < 4.5 * stddev

  def test_participation_by_fifths(self, capsys):
    arguments = ('--question=participation', '--participation=full', '--num_clients=50', '--rounds=7')
    status, out, _ = _run(capsys, *arguments, '--mechanism=randomized_response:epsilon=20', '--answer_seed=1')
    assert status == 0
    summary = json.loads(out.splitlines()[-1])
    assert summary['true'] == [0, 0, 0, 0, 1]
    assert summary['estimated'] == pytest.approx([0, 0, 0, 0, 1], abs=1e-3)

  def test_the_default_cohort_fits_few_clients(self, capsys):
    assert _run(capsys, '--question=participation', '--num_clients=5', '--rounds=2')[0] == 0

  def test_reports_cost_what_the_mechanism_says(self, capsys):
    _, out, _ = _run(capsys, '--mechanism=randomized_response:epsilon=0.5', '--reports=4', '--num_clients=20')
    assert json.loads(out.splitlines()[-1])['epsilon'] == 2.0

  @pytest.mark.parametrize(
    'arguments, message',
    [
      (['--question=income'], "Unknown question 'income'"),
      (['--mechanism=rappor:f=2'], 'rappor f'),
      (['--reports=0'], 'reports'),
      (['--mechanism=laplace'], 'randomized_response'),
      (['--rounds=0'], 'rounds'),
      (['--question=participation', '--cohort_size=500'], '--cohort_size=500 must be at most the number of clients'),
    ],
  )
  def test_wrong_input_is_one_line(self, arguments, message, capsys):
    status, out, err = _run(capsys, *arguments)
    assert status == 1 and not out and message in err and len(err.splitlines()) == 1
