"""A gate as a callback and the last postprocessor of pfl-research (docs/gate.md)."""

import numpy as np
from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from quap_tff.accounting.log_writer import LogWriter


class Finite(GaussianMechanism):
  def constrain_sensitivity(self, statistics, *args, **kwargs):
    return super().constrain_sensitivity(statistics.apply_elementwise(self.finite), *args, **kwargs)

  def finite(self, array):  # NumPy's or PyTorch's. pfl would not clip an update with a NaN.
    array = array * 1
    array[array - array != 0] = 0
    return array


def mechanism(gate, clipping_bound):
  return CentrallyAppliedPrivacyMechanism(Finite(clipping_bound, gate.config.noise_multiplier))


class Gated(Postprocessor, TrainingProcessCallback):
  def __init__(self, gate, cohort_size, seed):  # The same seed in all processes. It may be public.
    self.gate, self.cohort_size, self.rng = gate, cohort_size, np.random.default_rng(seed)
    self.log = LogWriter(gate)
    self.draw()

  def draw(self):
    weights = self.gate.ask(range(self.gate.num_clients), whole=True)
    self.cohort = np.flatnonzero(weights)
    self.stops = len(self.cohort) < self.cohort_size
    if not self.stops:
      self.cohort = self.rng.choice(self.cohort, self.cohort_size, replace=False)
    self.waiting = self.cohort.tolist()

  def sample(self):  # The `user_sampler` of the FederatedDataset for training.
    return self.waiting.pop()

  def postprocess_server(self, *, stats, central_context, aggregate_metrics):
    self.log.commit(self.cohort)
    return stats, Metrics()

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    self.draw()
    return self.stops, Metrics()
