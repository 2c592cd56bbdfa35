"""Federated averaging in apple/pfl-research on our benchmark's model, data and steps; prints one JSON line.

    python -m torch.distributed.run --standalone --nproc_per_node=2 docs/benchmarks/peers/run_pfl.py

Each process has one thread of PyTorch and takes every other client. Without torch.distributed.run there is one process.
"""

import argparse
import importlib.metadata
import itertools
import logging
import time

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
import torch
import workload


class _Stopwatch(TrainingProcessCallback):
  """Seconds of each round."""

  def __init__(self):
    self.seconds = []
    self._begin = time.perf_counter()

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    now = time.perf_counter()
    self.seconds.append(now - self._begin)
    self._begin = now
    return False, Metrics()


def main() -> None:
  args = workload.arguments(argparse.ArgumentParser(description=__doc__))
  logging.disable(logging.WARNING)
  torch.manual_seed(0)  # All processes begin with the same model, and take the same cohorts apart.
  np.random.seed(0)
  network = workload.build(args.channels_last)
  model = PyTorchModel(
    model=network,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    amp_dtype=torch.bfloat16 if args.dtype == 'bfloat16' else None,
  )
  distributed = get_framework_module().distributed
  if distributed.world_size > 1:
    torch.set_num_threads(1)
  data = workload.tensors(args.clients, args.examples, args.channels_last)

  turns = itertools.cycle(range(args.clients))
  dataset = FederatedDataset(lambda i: Dataset(list(data[i]), user_id=str(i)), lambda: next(turns))
  stopwatch = _Stopwatch()
  FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
      central_num_iterations=args.rounds + 1,
      evaluation_frequency=10**6,
      train_cohort_size=args.clients,
      val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[]),
    model=model,
    model_train_params=NNTrainHyperParams(
      local_num_epochs=1, local_learning_rate=workload.LEARNING_RATE, local_batch_size=args.batch_size
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=1000),
    callbacks=[stopwatch],
  )
  if distributed.global_rank == 0:
    workload.report('pfl', importlib.metadata.version('pfl'), args, stopwatch.seconds)


if __name__ == '__main__':
  main()
