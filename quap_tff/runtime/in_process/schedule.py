"""The order in which a round's values are made, so that a cohort's large values need not be held all at once.

A *pass* takes the cohort's clients one after the other, makes some values of each client, and gives them to
aggregations. What no later pass needs is then released, so a round holds as many clients' values as there are threads
and not as there are clients. One pass is enough unless clients need a result of an aggregation of their own round
(`timing=current`: the norms come first, and then the clipped updates).
"""

from collections.abc import Collection, Iterable, Sequence
import dataclasses
from typing import Callable, Union

SERVER, CLIENT, AGGREGATE = 'server', 'client', 'aggregate'


@dataclasses.dataclass(frozen=True)
class NamedValue:
  """A value that a computation names.

  Attributes:
    name: Its name.
    kind: `SERVER`, also for what is the same at all clients; `CLIENT` for what differs by client; or `AGGREGATE`.
    uses: The names of the other locals that it needs.
    reads_argument: Whether it needs an argument of the computation.
  """

  name: str
  kind: str
  uses: frozenset[str]
  reads_argument: bool = False


@dataclasses.dataclass(frozen=True)
class Pass:
  """One walk through the cohort.

  Attributes:
    steps: The client values to make, in order.
    aggregates: The aggregations that take clients' values in this pass.
  """

  steps: tuple[str, ...]
  aggregates: tuple[str, ...]


def closure(names: Iterable[str], needs_of: Callable[[str], Iterable[str]]) -> set[str]:
  """`names` and everything that they need, directly or not. `needs_of` gives the direct needs of a name."""
  reached: set[str] = set()
  pending = list(names)
  while pending:
    name = pending.pop()
    if name not in reached:
      reached.add(name)
      pending.extend(needs_of(name))
  return reached


def plan(local_values: Sequence[NamedValue], result: Iterable[str]) -> list[Union[str, Pass]]:
  """The order in which to make values.

  Args:
    local_values: What a computation names, each after everything that it uses.
    result: The names that the result needs. What they don't need is left out.

  Returns:
    Names of server values, and passes.
  """
  by_name = {local.name: local for local in local_values}

  def uses(name: str) -> Collection[str]:
    return by_name[name].uses

  needed = closure(result, uses)
  left = [local for local in local_values if local.name in needed]
  waited_for = closure((local.name for local in left if local.kind == CLIENT), uses)
  made: set[str] = set()
  order: list[Union[str, Pass]] = []
  while left:
    for local in left:
      if local.kind == SERVER and local.uses <= made:
        order.append(local.name)
        made.add(local.name)
    possible = _possible(left, made)
    # A pass ends with the aggregations that clients wait for, and makes only what those need. Once no client waits for
    # one, it makes everything that is left.
    targets = [local for local in possible if local.kind == AGGREGATE and local.name in waited_for] or possible
    now = closure((local.name for local in targets), uses) - made
    # What can be made of a client's values alone is made in the same pass. So an update is taken apart and summed where
    # it need not wait, and only the parts that wait are held. Work on the caller's arguments (training) waits until it
    # is needed: the arguments are there in any case.
    for local in possible:
      if local.kind == CLIENT and not local.reads_argument:
        clients = {name for name in local.uses if by_name[name].kind == CLIENT}
        if clients and clients <= made | now:
          now.add(local.name)
    # Aggregations that nobody waits for cost nothing more, once their values are there.
    taken = made | now
    now.update(local.name for local in possible if local.kind == AGGREGATE and local.uses <= taken)
    if now:
      order.append(
        Pass(
          # In the order of `possible`, in which each follows what it uses.
          steps=tuple(local.name for local in possible if local.kind == CLIENT and local.name in now),
          aggregates=tuple(local.name for local in possible if local.kind == AGGREGATE and local.name in now),
        )
      )
    made |= now
    left = [local for local in left if local.name not in made]
  return order


def _possible(left: Sequence[NamedValue], made: set[str]) -> list[NamedValue]:
  """The values that one pass could make: all that needs no server value and no aggregation that is still to come."""
  possible: list[NamedValue] = []
  reachable = set(made)
  for local in left:
    if local.kind != SERVER and local.uses <= reachable:
      possible.append(local)
      if local.kind == CLIENT:
        reachable.add(local.name)
  return possible
