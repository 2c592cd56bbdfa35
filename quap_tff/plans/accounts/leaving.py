"""The values that leave clients in a round, compared with what a certified plan's trust allows.

Without a trusted server, that is what the mechanism itself sends, each value once: its report, and the secure sums of
its contribution. A second value under the name and type of one of these comes from somewhere else, so it is refused.
Only ids may leave twice: the composer asks for them once more, for an extension, and no report can have their name.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import re

from quap_tff.plans.accounts import run_account

# The mechanism's report to a server that is not trusted, by name: the types, and how often each may leave. Who takes
# part when is known, and weights follow from it. In a plain sum, each client has a place, and that of `client_id` holds
# a 1.
_REPORT = {
  'client_id': (('int64', 'int32'), 2),
  'round': (('int64',), 1),
  'last_round': (('int64',), 1),
  'weight': (('float32',), 1),
}
# The intrinsic, name and type of a value.
_LEAVING = (r'federated_[a-z_]+', r'[A-Za-z0-9_.]*', r'(bool|str|[a-z]*(int|float|complex)\d+)(\[[0-9,?]+\])?')
# The server sees nothing but the sum of what these take.
_SECURE_SUMS = frozenset({'federated_secure_sum', 'federated_secure_sum_bitwidth', 'federated_secure_modular_sum'})


def check_leaving(leaving: Sequence[Sequence[str]], plan: run_account.RunAccount) -> None:
  """Raises `ValueError` unless clients send updates, and nothing that the plan's trust does not allow.

  A trusted server may get anything. Any other one gets the mechanism's report and the secure sums of its contribution,
  each once.

  Args:
    leaving: (intrinsic, name, type) of each tensor that leaves clients.
    plan: The plan, whose model's shape is known.
  """
  if not all(len(one) == 3 and all(map(re.fullmatch, _LEAVING, one)) for one in leaving):
    raise ValueError(f'Each value that leaves clients must have an intrinsic, a name and a type, found {leaving!r}.')
  sparsity, sizes = plan.sparsity, plan.shape.sizes
  shapes: list[tuple[int, ...]] = list(plan.shape.shapes)
  if sparsity.is_sparse:
    shapes = [(sparsity.kept(size),) for size in sizes]
  secure = [one for one in leaving if one[0] in _SECURE_SUMS]
  if plan.holds_noise:
    shapes.append(())  # How many clients are in the sum.
  # Noised updates are integers.
  expected: collections.Counter[str] = collections.Counter()
  for shape in shapes:
    written = ','.join(map(str, shape))
    expected[f'[{written}]' if shape else ''] += 1
  summed = secure if plan.holds_noise else leaving
  sums = collections.Counter(kind[5:] for _, _, kind in summed if kind[:3] == 'int')
  if expected - sums:
    raise ValueError(f'Of what clients send, {list(map(list, shapes))}, not all is among {leaving!r}.')
  if not plan.holds_noise:
    return
  places = f'[{plan.num_clients + 1}]'
  left, others = {name: most for name, (_, most) in _REPORT.items()}, []
  for one in leaving:
    if one in secure:
      continue
    _, name, kind = one
    if kind.removesuffix(places) in _REPORT.get(name, ((), 0))[0] and left[name]:
      left[name] -= 1
    else:
      others.append(one)
  others += [one for one in secure if one[2][:5] != 'int64' or sums[one[2][5:]] > expected[one[2][5:]]]
  if others:
    whom = [plan.extension.name] if plan.extension is not None else []
    whom += ['client_metrics'] if plan.client_metrics else []
    values = ' and '.join(f'{name or "values without a name"} ({kind}, by {by})' for by, name, kind in others)
    raise ValueError(
      'Without trust in the server, nothing leaves a client but the secure sums and the report of the mechanism. Asked '
      f'for by {" and ".join(whom) or "the process"}: {values}. Use trust=server, leave client_metrics out, or use a '
      'method that asks for nothing more, such as fedvarp or safari.'
    )
