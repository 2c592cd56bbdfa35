"""TFF's DP-FTRL for comparison: tree aggregation (Kairouz et al. 2021), efficient estimates, one tree over all rounds.

The aggregate of a round is the difference of noised cumulative sums, so plain SGD at the server is FTRL; any other
server optimizer is post-processing of the same releases.
"""

import dataclasses
import secrets

import tensorflow as tf
import tensorflow_federated as tff

from experiments.algorithms import tff_aggregation
from experiments.algorithms import tff_method
from experiments.algorithms import tree_exposure
from quap_tff import clip_rules


@dataclasses.dataclass(frozen=True)
class TffDpFtrl(tff_method.StockAlgorithm):
  """`DifferentiallyPrivateFactory.tree_aggregation`; z is that of each node. No amplification by sampling holds."""

  takes_noise_seed = True
  noises_empty_rounds = False

  clip: float = 1.0

  def __post_init__(self):
    self.clip_rule()

  def clip_rule(self):
    return clip_rules.Fixed(self.clip)

  def exposure(self, setting):
    cohorts = [setting.cohorts.cohort(round_num) for round_num in range(1, setting.rounds + 1)]
    return tree_exposure.TreeExposure(cohorts, setting.mechanism.num_clients)

  def aggregator(self, setting, noise_multiplier, clients_per_round):
    seed = setting.mechanism.noise.seed
    if seed is None:
      # TFF would take the time of day, which can be guessed.
      seed = secrets.randbits(63)
    return Tree(noise_multiplier, clients_per_round, float(self.clip), setting.rounds, seed)


@dataclasses.dataclass(frozen=True)
class Tree(tff_aggregation.StockAggregator):
  """See `TffDpFtrl`; for up to `rounds` rounds. The seed is in the state, and so in checkpoints."""

  has_one_sigma = False

  value_noise_multiplier: float
  clients_per_round: float
  clip: float
  rounds: int
  seed: int

  def factory(self, record_type):
    return tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
        noise_multiplier=self.value_noise_multiplier,
        clients_per_round=self.clients_per_round,
        l2_norm_clip=self.clip,
        record_specs=tff.types.type_to_tf_tensor_specs(record_type),
        noise_seed=self.seed,
    )

  def clipping_norms(self, query_state):
    return [query_state.numerator_state.clip_value]

  # The tree's buffers hold a row for each open node, more and fewer of them from round to round.
  def kept(self, query_state):
    tree = query_state.numerator_state.tree_state
    levels = (self.rounds + 1).bit_length()
    missing = levels - tf.size(tree.level_buffer_idx)

    def padded(rows, value):
      whole = tf.pad(rows, [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1), constant_values=value)
      return tf.ensure_shape(whole, [levels] + rows.shape[1:])

    return _with_tree(query_state, tree._replace(
        level_buffer=tf.nest.map_structure(lambda rows: padded(rows, 0.0), tree.level_buffer),
        level_buffer_idx=padded(tree.level_buffer_idx, -1),
    ))

  def taken_up(self, kept):
    tree = kept.numerator_state.tree_state
    used = tf.reduce_sum(tf.cast(tree.level_buffer_idx >= 0, tf.int32))
    return _with_tree(kept, tree._replace(
        level_buffer=tf.nest.map_structure(lambda rows: rows[:used], tree.level_buffer),
        level_buffer_idx=tree.level_buffer_idx[:used],
    ))


def _with_tree(query_state, tree):
  return query_state._replace(numerator_state=query_state.numerator_state._replace(tree_state=tree))
