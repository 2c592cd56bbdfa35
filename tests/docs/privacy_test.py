"""Figures of docs/privacy.md that follow from a preset."""

import numpy as np
import pytest

from quap_tff.mechanisms import held_noise
from quap_tff.mechanisms import layers
from quap_tff.mechanisms import tradeoff
from tests.experiments import harness

_TEXT = (harness.REPOSITORY / 'docs' / 'privacy.md').read_text(encoding='utf-8')


def _covariance(cohorts, decay, without_links_of):
  """Σ, where some clients take back the W that they have just added: only V is left of their noise."""
  found, latest = np.zeros([len(cohorts)] * 2), {}
  for release, ids in enumerate(cohorts):
    for client in ids:
      found[release, release] += (1 - decay) ** 2
      if client in without_links_of:
        continue
      found[release, release] += decay
      if client in latest:
        found[release, release] += decay
        found[release, latest[client]] -= decay
        found[latest[client], release] -= decay
      latest[client] = release
  return found


@pytest.mark.slow
def test_a_server_that_lies_about_the_last_round():
  run = harness.run(f'--flagfile={harness.PRESETS / "digits_secure_sum.flags"}')
  plan = run.plan(100, layers.ModelShape((layers.Layer('w', (0,), False),), ((1440,),)))
  config, cohorts = plan.config, plan.schedule
  assert (len(cohorts), {len(ids) for ids in cohorts}, config.share_decay) == (30, {30}, 0.5)
  weights = np.asarray(config.planned_weights)
  taken = np.array([np.isin(np.arange(100), ids) for ids in cohorts]) * weights / config.share_scale

  def mu(liars):
    return np.sqrt(np.sum(taken * np.linalg.solve(_covariance(cohorts, 0.5, liars), taken), axis=0))

  account = held_noise.opened(100, config.noise_multiplier, 0.5)
  for ids in cohorts:
    account = account.after(ids, weights[ids])
  honest, lied = mu(()), mu(range(100))
  np.testing.assert_allclose(honest, np.sqrt(account.spent), rtol=1e-6)
  alone = max(mu([client])[client] / honest[client] for client in range(100) if honest[client])
  largest = [one.max() for one in (lied, honest)]
  epsilon = [float(tradeoff.epsilon_of(one, 1e-5)) for one in largest]
  text = ' '.join(_TEXT.split())
  assert (
    'the largest μ is {:.3f} in place of {:.3f}, which is {:.2f} times as large'.format(
      *largest, largest[0] / largest[1]
    )
    in text
  )
  assert 'ε at δ = 1e-5 is {:.2f} in place of {:.2f}'.format(*epsilon) in text
  assert 1 < alone <= 1.01 and 'its μ is at most 1.01 times as large' in text
