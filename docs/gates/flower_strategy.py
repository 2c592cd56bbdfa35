"""A gate around Flower's server-side fixed clipping of any strategy (docs/gate.md)."""

from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy
import numpy as np

from quap_tff.accounting.log_writer import LogWriter

FAILED = (1, 2)  # Flower's codes for an app that could not be loaded, or raised.


class Only:
  """A grid that knows some of its nodes alone."""

  def __init__(self, grid, nodes):
    self.grid, self.get_node_ids = grid, lambda: nodes

  def __getattr__(self, name):
    return getattr(self.grid, name)


class Gated(Strategy):
  def __init__(self, dp, gate, client_of, enough=2):  # client_of: the id in the gate of each node's owner
    if dp.noise_multiplier != gate.config.noise_multiplier:
      raise ValueError(f'The gate is for noise {gate.config.noise_multiplier}, found {dp.noise_multiplier}.')
    self.dp, self.gate, self.client_of, self.enough = dp, gate, client_of, enough
    self.log, self.replaced = LogWriter(gate), 0
    dp.clipping_norm = np.float64(dp.clipping_norm)  # Flower divides it by the norm of an update, which may be 0.

  def configure_train(self, server_round, arrays, config, grid):
    nodes = [node for node in grid.get_node_ids() if node in self.client_of]
    weights = self.gate.ask([self.client_of[node] for node in nodes], whole=True)
    nodes = [node for node, weight in zip(nodes, weights) if weight]
    return self.dp.configure_train(server_round, arrays, config, Only(grid, nodes)) if len(nodes) >= self.enough else []

  def aggregate_train(self, server_round, replies):
    came = [reply for reply in replies if not reply.has_error() or reply.error.code in FAILED]
    if not came:
      return None, None
    self.log.commit([self.client_of[reply.metadata.src_node_id] for reply in came])
    counted, now = [], self.dp.current_arrays
    for reply in came:  # All count the same. One that cannot be used adds zero: Flower would not clip it, or stop.
      usable = self.fits(reply, now)
      self.replaced += not usable
      arrays = next(iter(reply.content.array_records.values())) if usable else now
      content = RecordDict({'arrays': arrays, 'metrics': MetricRecord({'num-examples': 1})})
      counted.append(Message(content, reply.metadata.src_node_id, 'train'))
    self.dp.num_sampled_clients = len(came)  # Flower's noise is divided by this number.
    return self.dp.aggregate_train(server_round, counted)[0], None

  def fits(self, reply, now):
    try:
      (arrays,) = reply.content.array_records.values()
      pairs = list(zip(arrays.to_numpy_ndarrays(), now.to_numpy_ndarrays()))
      same = all(new.dtype == old.dtype and new.shape == old.shape for new, old in pairs)
      return list(arrays) == list(now) and same and all(np.isfinite(new - old).all() for new, old in pairs)
    except Exception:  # Whatever it is.
      return False

  summary = lambda self: self.dp.summary()
  configure_evaluate = lambda self, *args: []
  aggregate_evaluate = lambda self, *args: None
