"""Runs the program of docs/runtimes.md, for a certified plan and for a QuAP plan."""

import pathlib
import re

import numpy as np
import pytest

from quap_tff import runtime
from quap_tff.mechanisms.parts import clip_rules

pytest.importorskip('tensorflow_federated', reason='The code of the pages trains.')

PAGE = pathlib.Path(__file__).absolute().parents[2] / 'docs' / 'runtimes.md'
PROGRAM = re.search(r'^```python\n(import asyncio.*?)^```', PAGE.read_text(encoding='utf-8'), re.M | re.S).group(1)
CERTIFIED = 'quap_tff.certified(num_clients=4, epsilon=3.0, delta=1e-5, expected=past)'
ASK = 'plan.ask(plan.planned_ledger(self.came), there)'
QUAP = 'quap_tff.quap(num_clients=4, rounds=200, epsilon=6.0, clip=clip_rules.QuantileEma(initial_clip=2.0))'


@pytest.mark.slow
@pytest.mark.parametrize('plan', [CERTIFIED, pytest.param(QUAP, marks=pytest.mark.thorough)])
def test_the_ledger_is_that_of_a_loop(plan):
  assert CERTIFIED in PROGRAM and ASK in PROGRAM and len(PROGRAM.splitlines()) <= 48
  names, program = {'clip_rules': clip_rules}, PROGRAM.replace(CERTIFIED, plan)
  exec(program if plan == CERTIFIED else program.replace(ASK, 'np.ones(len(there))'), names)
  made, process, found = names['plan'], names['process'], names['ledger'].state_dict()
  ledger = made.new_ledger()
  np.random.seed(0)
  with runtime.activate():
    state = process.initialize()
    for cohort in names['source'].came:
      output = process.next(state, [names['client_data'](client) for client in cohort])
      state = output.state
      ledger.append(made.record(output, cohort))
  # Clients' data are random, and the clipping norms that follow them are those that were released.
  norms = [metrics['aggregator']['clipping_norm'] for metrics in names['released'].values().values()]
  np.testing.assert_allclose(found.pop('clipping_norms'), norms)
  expected = ledger.state_dict()
  expected.pop('clipping_norms')
  for name, values in expected.items():
    np.testing.assert_allclose(np.float64(found[name]), np.float64(values), rtol=1e-6, err_msg=name)
