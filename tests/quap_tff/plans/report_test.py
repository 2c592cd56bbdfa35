"""The formal figures of a run are computed once, however often its files ask for them."""

import numpy as np

from quap_tff import accounting
from quap_tff.plans import report as reports
from tests.quap_tff.certificates import made


def test_figures_are_kept_for_the_same_run_alone(monkeypatch):
  calls, plan = [], made.plan()
  compute = accounting.formal_report
  monkeypatch.setattr(reports.accounting, 'formal_report', lambda *args: calls.append(args) or compute(*args))
  reports._LAST.clear()
  ledger = made.ledger(plan)
  first = plan.report(ledger).formal
  assert plan.report(made.ledger(made.plan())).formal is first and len(calls) == 1
  others = plan.report(made.ledger(plan, 2)).formal, made.plan(delta=1e-4).report(ledger).formal
  assert len(calls) == 3
  for found, arguments in zip(others, calls[1:]):
    np.testing.assert_array_equal(found.epsilon, compute(*arguments).epsilon)
    assert found.epsilon.max() != first.epsilon.max()
