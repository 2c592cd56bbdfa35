"""No figure that a person reads is smaller than the bound that it stands for."""

import contextlib
import io
import json
import re

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from experiments import attack
from experiments.reporting import sections
from experiments.running import final_summary
from quap_tff import accounting
from quap_tff import plans
from quap_tff.account import __main__ as account
from quap_tff.accounting import accountants
from quap_tff.accounting import protection
from tests.experiments.reporting import factory

# To the nearest, they would be 2 and 1e-05 in four digits.
EPSILON, DELTA = 2.00004, 1.0000004e-5


def _account(*arguments):
  with contextlib.redirect_stdout(io.StringIO()) as said:
    assert account.main(['solve', *arguments]) == 0
  return said.getvalue()


def _formal():
  figure = accounting.FormalFigure('gaussian_exact', accounting.ZERO_OUT, 'none', EPSILON, EPSILON, EPSILON)
  return accounting.FormalReport(
    protection.RELEASED_MODEL, 'Every number.', DELTA, 'one client', (figure,), (), np.full(2, EPSILON)
  )


_PROTECTION = protection.Protection(protection.RELEASED_MODEL, 'Every number.')


def _report():
  return str(plans.Report(_PROTECTION, _formal(), np.full(2, EPSILON), np.full(2, DELTA)))


def _summary():
  return final_summary.text(
    {
      'rounds': 8,
      'planned_rounds': 8,
      'interrupted': False,
      'test_accuracy': 0.5,
      'test_loss': 1.0,
      'nominal_epsilon_max': EPSILON,
      'nominal_epsilon_mean': EPSILON,
      'nominal_delta_max': DELTA,
      'formal': _formal().as_dict(),
      'output_dir': None,
    },
    rounds_run=8,
    seconds=1.0,
  )


def _attack_row():
  row = attack._rounded_row({'real_epsilon': EPSILON, 'auc_bound': EPSILON, 'delta_bound': DELTA})
  return ' '.join(row.values())


class TestText:
  @pytest.mark.parametrize(
    'text',
    [
      lambda: _formal().text,
      _report,
      _summary,
      lambda: str(accountants.Figure('pld', EPSILON, DELTA, 'a theorem', 'no amplification', 'zero-out')),
      _attack_row,
    ],
    ids=['formal report', 'report', 'summary', 'figure', 'attack'],
  )
  def test_is_rounded_up(self, text):
    numbers = re.findall(r'(?<![\w.-])\d[\d.]*(?:e-\d+)?', text())
    assert '2.001' in numbers and '1.001e-05' in numbers
    assert not {'2', '2.0', '2.00', '2.000', '1e-05'} & set(numbers)

  def test_of_account(self):
    out = _account('--noise_multiplier=10.80000004', '--rounds=200', f'--delta={DELTA}')
    assert 'z = 10.80001,' in out and 'total δ = 1.00001e-05' in out

  def test_of_a_table(self, tmp_path):
    groups = factory.groups_of(
      tmp_path, *factory.seeds(1, 2, 3, algorithm='certified', certified_epsilon=EPSILON, delta=DELTA)
    )
    (row,) = (dict(zip(table.frame, line)) for table, line in _lines(sections.certified(groups)))
    assert row['ε, largest of any client'] == '2.001' and row['total δ'] == '1.001e-05'


def _lines(blocks):
  table = blocks[0]
  return [(table, [str(row[name]) for name in table.frame]) for row in table.rows]


@pytest.mark.slow
@pytest.mark.thorough
class TestAccount:
  """Every printed figure, given back, proves at most what was asked."""

  @hypothesis.settings(max_examples=15)
  @hypothesis.given(
    epsilon=strategies.floats(0.1, 12),
    log_delta=strategies.floats(-9, -3),
    rounds=strategies.integers(1, 500),
    correlation=strategies.sampled_from(['independent', 'ar1:decay=0.9']),
  )
  def test_round_trip(self, epsilon, log_delta, rounds, correlation):
    delta, setting = 10**log_delta, (f'--rounds={rounds}', f'--correlation={correlation}')
    noise = re.search(r'z = ([\d.e+-]+),', _account(f'--epsilon={epsilon}', f'--delta={delta}', *setting))[1]
    assert self._exact(f'--noise_multiplier={noise}', f'--delta={delta}', *setting)['epsilon'] <= epsilon
    out = _account(f'--noise_multiplier={noise}', f'--epsilon={epsilon}', *setting)
    printed = re.search(r'total δ = ([\d.e-]+)', out)[1]
    assert self._exact(f'--noise_multiplier={noise}', f'--delta={printed}', *setting)['epsilon'] <= epsilon
    out = _account(f'--noise_multiplier={noise}', f'--delta={delta}', *setting)
    printed = re.search(r'gaussian_exact +([\d.e-]+)', out)[1]
    assert self._exact(f'--noise_multiplier={noise}', f'--epsilon={printed}', *setting)['delta'] <= delta

  def _exact(self, *arguments):
    found = json.loads(_account(*arguments).splitlines()[-1])
    return {'epsilon': found['epsilon']['gaussian_exact'], 'delta': found['delta']}
