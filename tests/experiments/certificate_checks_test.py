"""What ends in "no certificate" is found before the first round."""

import json

import numpy as np
import pytest

from experiments import command_line
from experiments import evidence
from experiments import setup
from experiments import training
from quap_tff import accounting
from quap_tff import runtime
from quap_tff.accounting import certificate_folder
from tests.experiments import harness

_CERTIFIED = (*harness.TINY, '--algorithm=certified:weights=online')


def _experiment(*arguments):
  with harness.parsed(*_CERTIFIED, *arguments) as values:
    experiment = setup.from_flags(values)
    evidence.check_before(experiment, values)
  return experiment


def test_the_planned_ledger_is_the_run_s():
  experiment = _experiment('--rounds=3')
  with runtime.activate(experiment.runtime):
    result = training.train(
      experiment,
      experiment.build_process(),
      None,
      checkpoint_every=99,
      eval_every=99,
      stop_at_accuracy=None,
      progress='none',
    )
  planned, spent = evidence.planned_ledger(experiment.plan), result.ledger
  np.testing.assert_allclose(accounting.total_mu(planned).whole, accounting.total_mu(spent).whole, rtol=1e-5)
  np.testing.assert_array_equal(planned.rounds, spent.rounds)


def test_a_flag_that_no_certificate_can_hold_is_found_before_training(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(training, 'train', lambda *args, **kwargs: pytest.fail('It was trained.'))
  status = harness.main(*_CERTIFIED, '--tuning=\udcff', f'--output_dir={tmp_path / "run"}')
  assert status == command_line.FAILED and not list(tmp_path.iterdir())
  assert 'No certificate could be issued for this run, so it was not begun.' in capsys.readouterr().err


def test_every_reason_is_given(monkeypatch):
  monkeypatch.setattr(evidence.certificates, 'refusals', lambda *_: ['One.', 'Another.'])
  with pytest.raises(ValueError, match='not begun. One. Another. Change'):
    _experiment()


def test_other_methods_are_not_asked():
  with harness.parsed(*harness.TINY) as values:
    evidence.check_before(None, values)


def test_a_certificate_says_whose_examples_safari_trains_on(tmp_path):
  folder = str(tmp_path / 'run')
  arguments = (*harness.TINY, '--rounds=4')
  assert harness.main(*arguments, '--algorithm=safari:base=certified:weights=online', f'--output_dir={folder}') == 0
  with open(f'{folder}/{certificate_folder.CERTIFICATE}') as f:
    certificate = json.load(f)
  said = certificate['facts']['post_processing']
  assert 'examples of people who are no clients' in said and 'before the others were dealt out to the clients' in said
  with open(f'{folder}/run.json') as f:
    assert json.load(f)['resolved']['num_clients'] == 8
  found = evidence.read(folder)
  assert not found.problems and found.facts.post_processing == said
