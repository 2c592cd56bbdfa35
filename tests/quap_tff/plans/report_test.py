"""Reports of runs: they are of their own ledger alone, and a large δ is warned of."""

import pytest

from quap_tff import plans
from tests.quap_tff import examples
from tests.quap_tff.certificates import made


@pytest.mark.slow
@pytest.mark.parametrize('changes', [dict(epsilon=2.0), dict(delta=1e-4), dict(num_clients=made.NUM_CLIENTS + 1)])
def test_the_ledger_of_another_plan_is_refused(changes):
  plan = made.plan()
  for ledger in (made.ledger(made.plan(**changes)), made.plan(**changes).new_ledger()):
    with pytest.raises(ValueError, match='This ledger is of another plan, .* ask the plan of the run for the report'):
      plan.report(ledger)


class TestLargeDelta:
  _SAID = 'Warning: δ = 0.999 is above 1/4, one over the number of clients.'

  @pytest.mark.slow
  @pytest.mark.parametrize('delta, said', [(0.999, True), (0.25, False), (1e-5, False)])
  def test_is_warned_of_once(self, delta, said):
    plan = plans.Plan.certified(examples.guarantee(delta=delta), examples.SCHEDULE)
    assert plan.protection.text.count(self._SAID) == str(plan.report(plan.new_ledger())).count(self._SAID) == said

  def test_not_without_noise(self):
    assert 'Warning' not in plans.Plan(examples.whole()).protection.text
