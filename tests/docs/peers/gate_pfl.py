"""Runs docs/gates/pfl_callback.py, as recipe.py alongside; prints a JSON line.

The model is a vector, without PyTorch. All updates are clipped. One client's update begins with NaN and large numbers.
"""

import json
import logging

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import numpy_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics
from recipe import Gated
from recipe import mechanism

import quap_tff

NUM_CLIENTS, NUM_ROUNDS, NUM_WEIGHTS, COHORT_SIZE = 12, 40, 20_000, 4


class Vector(StatefulModel):
  """A model of one vector that keeps the standard deviation of each update."""

  def __init__(self):
    self.weights, self.stddevs = np.zeros(NUM_WEIGHTS), []

  def get_parameters(self, placeholders=None):
    return MappedVectorStatistics({'weights': self.weights.copy()})

  def set_parameters(self, w):
    self.weights = w['weights'].copy()

  def get_model_difference(self, other_parameters, clone=False):
    return MappedVectorStatistics({'weights': self.weights - other_parameters['weights']})

  def apply_model_update(self, statistics):
    self.weights = self.weights + statistics['weights']
    self.stddevs.append(float(np.std(statistics['weights'])))
    return self, Metrics()

  def evaluate(self, *args, **kwargs):
    return Metrics()

  def save(self, dir_path):
    pass

  def load(self, dir_path):
    pass


class Shifts(FederatedAveraging):
  """Federated averaging in which a client moves the model far along its data."""

  def train_one_user(self, initial_model_state, model, user_dataset, central_context):
    model.weights = model.weights + 100.0 * user_dataset.raw_data[0]
    if user_dataset.user_id == '3':
      model.weights[:4] = np.nan, 7e5, -1e5, np.inf
    return model.get_model_difference(initial_model_state), Metrics()


def main() -> None:
  logging.disable(logging.WARNING)
  set_framework_module(numpy_ops)
  np.random.seed(0)
  gate = quap_tff.Gate(NUM_CLIENTS, 4.0, 3.0, 1e-5, num_rounds=NUM_ROUNDS)
  gated = Gated(gate, COHORT_SIZE, seed=7)
  data = lambda client: Dataset([np.ones(NUM_WEIGHTS)], user_id=str(client))
  model = Shifts().run(
    algorithm_params=NNAlgorithmParams(
      central_num_iterations=NUM_ROUNDS, evaluation_frequency=10**6, train_cohort_size=COHORT_SIZE, val_cohort_size=0
    ),
    backend=SimulatedBackend(
      training_data=FederatedDataset(data, gated.sample),
      val_data=FederatedDataset(data, lambda: 0),
      postprocessors=[mechanism(gate, 1.0), gated],
    ),
    model=Vector(),
    model_train_params=NNTrainHyperParams(1, 1.0, None),
    model_eval_params=NNEvalHyperParams(None),
    callbacks=[gated],
  )
  stddevs = [stddev * COHORT_SIZE for stddev in model.stddevs]
  print(json.dumps({'rounds': gate.rounds, 'epsilon': gate.epsilon().tolist(), 'stddevs': stddevs}), flush=True)


if __name__ == '__main__':
  main()
