"""Tests of `quap_tff.plans.Plan.fingerprint`: literal texts, by which ledgers that were written before still load.

A ledger holds the digest of the text. So no class or field that the text names can be renamed, added or reordered.
"""

import pytest

from quap_tff import plans
from quap_tff.mechanisms import line_search
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.certified.config import CertifiedConfig
from quap_tff.mechanisms.noise import banded
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import budgets
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.parts import participation
from quap_tff.mechanisms.parts import robust
from quap_tff.mechanisms.parts import schedules
from quap_tff.mechanisms.parts import weighting
from quap_tff.mechanisms.parts.budgets import BudgetConfig
from quap_tff.mechanisms.quap import pt_adp
from quap_tff.mechanisms.quap import staleness
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.mechanisms.quap.config import QuapConfig

_BUDGET = (
  "BudgetConfig(epsilon_total=6.0, num_rounds=200, alpha=0.5, beta=2.0, round_rule='cohort_mean_rate', "
  'client_rule=None, schedule=Even())'
)
_STOCK_BUDGET = (
  "BudgetConfig(epsilon_total=3.0, num_rounds=6, alpha=0.5, beta=2.0, round_rule='uniform', client_rule=None, "
  'schedule=Even())'
)
_RATES = "ParticipationConfig(rate='cumulative', ema_weight=0.1, warmup_rounds=5, count_during_warmup=True)"
_NOISE = "NoiseConfig(placement='server', delta=1e-05, calibration='classic', scale=1.0, seed=None)"
_QUANTILE = (
  'QuantileEma(quantile=0.9, momentum=0.95, min_clip=0.1, max_clip=None, initial_clip=None, ' "timing='current')"
)
_STOCK = (
  f'QuapConfig(num_clients=8, budget={_STOCK_BUDGET}, participation={_RATES}, clip=Fixed(norm=1.0), '
  f"clip_scope='critical', noise={_NOISE}, critical_layers='all', max_agg_norm=None, update_scale='delta', "
  'weighting=Equal(), aggregator=Mean())'
)
_EVERY_LAYER = dict(clip_scope='all_layers', critical_layers='all')


def _stock_plan(stock, **noise):
  return plans.StockPlan(
    stock,
    QuapConfig(8, BudgetConfig(3.0, 6), noise=NoiseConfig(**noise)),
    [[0, 1, 2, 3]] * 6,
    4.0,
    calibration='documents',
  )


_PLANS = {
  'defaults': (
    lambda: plans.QuapPlan(QuapConfig(8)),
    f'QuapConfig(num_clients=8, budget={_BUDGET}, participation={_RATES}, clip={_QUANTILE}, '
    f"clip_scope='critical', noise={_NOISE}, critical_layers='final_dense', max_agg_norm=None, update_scale='delta', "
    'weighting=Equal(), aggregator=Mean())',
  ),
  'weighting': (
    lambda: plans.QuapPlan(
      QuapConfig(
        8,
        BudgetConfig(2.0, 4, round_rule='each_own', schedule=schedules.Geometric()),
        clip=clip_rules.Fixed(0.5),
        noise=NoiseConfig(calibration='analytic', seed=3),
        max_agg_norm=2.0,
        update_scale='pseudo_gradient',
        weighting=weighting.Clusters(),
        **_EVERY_LAYER,
      )
    ),
    'QuapConfig(num_clients=8, budget=BudgetConfig(epsilon_total=2.0, num_rounds=4, alpha=0.5, beta=2.0, '
    f"round_rule='each_own', client_rule=None, schedule=Geometric(growth=4.0)), participation={_RATES}, "
    "clip=Fixed(norm=0.5), clip_scope='all_layers', noise=NoiseConfig(placement='server', delta=1e-05, "
    "calibration='analytic', scale=1.0, seed=None), critical_layers='all', max_agg_norm=2.0, "
    "update_scale='pseudo_gradient', weighting=Clusters(clusters=3), aggregator=Mean())",
  ),
  'aggregator': (
    lambda: plans.QuapPlan(
      QuapConfig(
        8,
        clip=clip_rules.PrivateQuantile(),
        aggregator=robust.TrimmedMean(),
        noise=NoiseConfig('server', 1e-4, 'analytic', 0.5, 3),
      )
    ),
    f'QuapConfig(num_clients=8, budget={_BUDGET}, participation={_RATES}, '
    'clip=PrivateQuantile(quantile=0.5, initial_clip=0.1, learning_rate=0.2, count_stddev=1.0), '
    "clip_scope='critical', noise=NoiseConfig(placement='server', delta=0.0001, calibration='analytic', scale=0.5, "
    "seed=None), critical_layers='final_dense', max_agg_norm=None, update_scale='delta', weighting=Equal(), "
    'aggregator=TrimmedMean(share=0.2))',
  ),
  'client_rule': (
    lambda: plans.QuapPlan(
      QuapConfig(
        8,
        BudgetConfig(client_rule=pt_adp.PtAdp(seed=11), round_rule='each_own'),
        noise=NoiseConfig(calibration='analytic'),
      )
    ),
    'QuapConfig(num_clients=8, budget=BudgetConfig(epsilon_total=6.0, num_rounds=200, alpha=0.5, beta=2.0, '
    "round_rule='each_own', client_rule=PtAdp(participation_credit=0.1, agreement_credit=0.5, seed=11), "
    f"schedule=Even()), participation={_RATES}, clip={_QUANTILE}, clip_scope='critical', "
    "noise=NoiseConfig(placement='server', delta=1e-05, calibration='analytic', scale=1.0, seed=None), "
    "critical_layers='final_dense', max_agg_norm=None, update_scale='delta', weighting=Equal(), aggregator=Mean())",
  ),
  'sparsity': (
    lambda: plans.QuapPlan(
      QuapConfig(8, clip=clip_rules.Fixed(0.5), **_EVERY_LAYER), sparsity=sparsity.RandomMask(0.5), sparsity_seed=7
    ),
    f'QuapConfig(num_clients=8, budget={_BUDGET}, participation={_RATES}, clip=Fixed(norm=0.5), '
    f"clip_scope='all_layers', noise={_NOISE}, critical_layers='all', max_agg_norm=None, update_scale='delta', "
    'weighting=Equal(), aggregator=Mean()), RandomMask(share=0.5), sparsity_seed=7',
  ),
  'local': (
    lambda: plans.LocalPlan(
      QuapConfig(
        8, clip=clip_rules.Fixed(), noise=NoiseConfig('client', calibration='analytic', seed=3), **_EVERY_LAYER
      )
    ),
    f'QuapConfig(num_clients=8, budget={_BUDGET}, participation={_RATES}, clip=Fixed(norm=1.0), '
    "clip_scope='all_layers', noise=NoiseConfig(placement='client', delta=1e-05, calibration='analytic', scale=1.0, "
    "seed=None), critical_layers='all', max_agg_norm=None, update_scale='delta', weighting=Equal(), "
    'aggregator=Mean())',
  ),
  'fedbuff': (
    lambda: plans.FedBuffPlan(QuapConfig(8, clip=clip_rules.Fixed()), 5, staleness.Staleness(seed=2)),
    f'QuapConfig(num_clients=8, budget={_BUDGET}, participation={_RATES}, clip=Fixed(norm=1.0), '
    f"clip_scope='critical', noise={_NOISE}, critical_layers='final_dense', max_agg_norm=None, update_scale='delta', "
    'weighting=Equal(), aggregator=Mean()), buffer=5, Staleness(scale=2.0, spread=0.5, max_staleness=10, seed=2)',
  ),
  'certified': (
    lambda: plans.CertifiedPlan(CertifiedConfig(3, 3.0, 1e-5, noise_seed=3), [[0, 1], [1]]),
    'CertifiedConfig(num_clients=3, epsilon=3.0, delta=1e-05, noise_multiplier=1.3116604460700083, '
    'correlation=Independent(), divisor=1.0000000298023224, num_rounds=2, weights=Participation(alpha=0.5, beta=2.0), '
    f"participation={_RATES}, clip=Fixed(norm=1.0), clip_split='joint', planned_rounds=None, planned_costs=None, "
    "own_epsilon=None, noise_seed=None, trust='server', planned_weights=None, most_clients=None, dropout=0.0, "
    'threshold=None)',
  ),
  'ar1': (
    lambda: plans.CertifiedPlan(
      CertifiedConfig(*(3, 3.0, 1e-5, 4.0, correlation.Ar1(0.5), 2.0, 2), weights=weight_rules.Uniform()), [[0, 1], [1]]
    ),
    'CertifiedConfig(num_clients=3, epsilon=3.0, delta=1e-05, noise_multiplier=4.0, correlation=Ar1(decay=0.5), '
    f'divisor=2.0, num_rounds=2, weights=Uniform(), participation={_RATES}, clip=Fixed(norm=1.0), '
    "clip_split='joint', planned_rounds=None, planned_costs=None, own_epsilon=None, noise_seed=None, "
    "trust='server', planned_weights=None, most_clients=None, dropout=0.0, "
    'threshold=None)',
  ),
  'lee_kifer': (
    lambda: plans.LeeKiferPlan(line_search.LineSearchConfig(8, 2.0, 1e-5, 4, noise_seed=3)),
    'LineSearchConfig(num_clients=8, epsilon=2.0, delta=1e-05, planned_rounds=4, clip=1.0, loss_clip=0.5, '
    'steps=(0.5, 1.0, 2.0), growth=0.1, test_share=0.1, lasts=1.2, noise_seed=None)',
  ),
  'tff_dp_fedavg': (
    lambda: _stock_plan(plans.DpFedAvg()),
    f'(DpFedAvg(clip=1.0), {_STOCK}, 9.689610525210778, 4.0, 6)',
  ),
  'tff_dp_ftrl': (
    lambda: _stock_plan(plans.DpFtrl(), seed=3),
    f'(DpFtrl(clip=1.0), {_STOCK}, 16.78289773521922, 4.0, 6)',
  ),
}


@pytest.mark.parametrize('name', _PLANS)
def test_a_plans_fingerprint(name):
  make, text = _PLANS[name]
  assert make().fingerprint == text


@pytest.mark.parametrize(
  'part, text',
  [
    (clip_rules.Decaying(), 'Decaying(initial_clip=1.0, decay=0.99)'),
    (clip_rules.NoisedMean(), 'NoisedMean(factor=1.5, initial_clip=1.0, noise_multiplier=15.0)'),
    (clip_rules.Unclipped(), 'Unclipped()'),
    (robust.Median(), 'Median()'),
    (robust.GeometricMedian(), 'GeometricMedian(iterations=8, smoothing=1e-06)'),
    (budgets.Participation(), 'Participation()'),
    (budgets.Uniform(), 'Uniform()'),
    (
      participation.ParticipationConfig('ema', 0.3, 0, False),
      "ParticipationConfig(rate='ema', ema_weight=0.3, warmup_rounds=0, count_during_warmup=False)",
    ),
    (weight_rules.Online(), 'Online(prior_a=1.0, prior_b=2.0)'),
    (weight_rules.SpendEvenly(), 'SpendEvenly()'),
    (weight_rules.Scale(), 'Scale()'),
    (weight_rules.Sample(), 'Sample()'),
    (weight_rules.WorstCase(), 'WorstCase()'),
    (correlation.Blt((0.5, 0.2), (0.9, 0.5)), 'Blt(gain=(0.5, 0.2), decay=(0.9, 0.5))'),
    (banded.Banded(3, (0.5, 0.2)), 'Banded(bands=3, gain=(0.5, 0.2))'),
    (sparsity.TopReleased(), 'TopReleased(share=0.1, explore=0.5)'),
    (
      plans.DpFedAvgAdaptive(),
      'DpFedAvgAdaptive(quantile=0.5, initial_clip=1.0, learning_rate=0.2, clipped_count_stddev=None)',
    ),
    (
      plans.LayerwiseAdaptive(),
      'LayerwiseAdaptive(quantile=0.5, initial_clip=1.0, learning_rate=0.2, clipped_count_stddev=None)',
    ),
  ],
)
def test_a_part_of_a_fingerprint(part, text):
  assert repr(part) == text
