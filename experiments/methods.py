"""Methods and parts of a run by parsed flags, for programs that do not start from a `run.Run` yet."""

from __future__ import annotations

from typing import Any

from experiments import run as run_lib
from quap_tff import methods
from quap_tff import plans
from quap_tff.mechanisms import layers as layers_lib

METHODS = methods.METHODS
BASES = methods.BASES
parse = methods.parse


def plan_of(
  values: Any, num_clients: int, model: layers_lib.ModelShape, test_is_of_clients: bool = False
) -> plans.Plan:
  """See `Run.plan`."""
  return run_lib.Run.from_flags(values).plan(num_clients, model, test_is_of_clients)


def participation_of(values: Any, num_clients: int) -> Any:
  """See `Run.participation`."""
  return run_lib.Run.from_flags(values).participation(num_clients)


def post_processing(values: Any, plan: plans.Plan) -> str:
  """See `Run.post_processing`."""
  return run_lib.Run.from_flags(values).post_processing(plan)
