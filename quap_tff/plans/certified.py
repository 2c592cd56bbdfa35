"""The certified mechanism as a plan: a guarantee for everything that is released, given a public schedule."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import functools
import re
from typing import Any, Optional

import numpy as np

from quap_tff import accounting
from quap_tff.accounting import protection as protections
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common.numbers import slack as slacks
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.certified import planning
from quap_tff.mechanisms.parts import postprocessing
from quap_tff.plans import plan

leaving_clients = lazy.module('quap_tff.federated.leaving_clients')

# The names and types of what clients may tell a server that is not trusted: who takes part when is known, and weights
# follow from it. In a plain sum, each client has a place, and that of `client_id` holds a 1.
_PUBLIC = {'client_id': ('int64', 'int32'), 'round': ('int64',), 'last_round': ('int64',), 'weight': ('float32',)}
# The intrinsic, name and type of a value.
_LEAVING = (r'federated_[a-z_]+', r'[A-Za-z0-9_.]*', r'(bool|str|[a-z]*(int|float|complex)\d+)(\[[0-9,?]+\])?')
# The server sees nothing but the sum of what these take.
_SECURE_SUMS = frozenset({'federated_secure_sum', 'federated_secure_sum_bitwidth', 'federated_secure_modular_sum'})


class CertifiedPlan(plan.Plan):
  """A certified run: its noise and divisor are chosen here, before training, from the planned cohorts.

  With a `quap_tff.HeldConfig`, each client draws its noise from a key of its own. One client's data are then
  `<client_id=int64*, answer=A*, examples=D*>`, with one answer of its `quap_tff.ClientGuard`.

  Attributes:
    schedule: int64[M_t] for each planned round.
    averaging: The average of the iterates that is published.
    colluders: The argument.
    leaving: What leaves clients in a round, as (intrinsic, name, type) for each tensor, read off the process that
      `build_process` made; None before.

  The account assumes that who comes is known. Noise that is calibrated on the cohorts depends on them, so sampling
  amplifies nothing. A run that ends early is bounded by what the filter lets each client spend.
  """

  is_certified = True

  def __init__(
    self,
    config: guarantee.Guarantee,
    schedule: Sequence[Any],
    *,
    averaging: postprocessing.Averaging = postprocessing.LastIterate(),
    client_metrics: bool = False,
    attendance: Optional[Sequence[Any]] = None,
    colluders: Sequence[int] = (),
    min_separation: Optional[int] = None,
    **options,
  ):
    """Initializes the plan.

    Args:
      config: The mechanism. What it leaves open is chosen from the schedule.
      schedule: int[M_t], distinct ids in [0, N), for each of the T planned rounds: the public schedule, or one drawn
        from a model of participation.
      averaging: The average of the iterates that is published. The noise is chosen for it; `postprocessing.Planned` is
        chosen together with the noise.
      client_metrics: Whether exact functions of clients' data (training loss) are released with the model.
      attendance: int[M_t] for each planned round: who really comes of those who were drawn, if this is known. Only with
        a secure sum, in which a client that does not come takes its noise away. By default any of them may stay away.
      colluders: Numbers of clients that may tell the server their noise, with `attendance` only. A certificate gives ε
        for each.
      min_separation: How many rounds the sampler promises from one round of a client to its next; None if it promises
        nothing. The published choices of noise are made for it.
      **options: The options of every plan, see `quap_tff.plans.Plan`.

    Raises:
      ValueError: If a planned cohort is none, nobody takes part, nobody's budget pays for a round, or an extension uses
        more of clients than the noised sums.
    """
    self.schedule: list[np.ndarray] = checks.schedule(schedule, config.num_clients)
    planned = config.settled(self.schedule, averaging, min_separation)
    super().__init__(planned.config, client_metrics=client_metrics, **options)
    if self.extension is not None and self.extension.exact_releases:
      raise ValueError(
        f'A certified run releases noised sums alone, but with {type(self.extension).__name__} as configured '
        f'{" and ".join(self.extension.exact_releases)}: no certificate would hold.'
      )
    largest = max(map(len, self.schedule), default=0)
    if config.holds_noise and largest > self.config.most_clients:
      raise ValueError(
        f'A round of the schedule has {largest:,} clients, but most_clients={self.config.most_clients:,}, for which '
        'the secure sum and the account of rounding are made. Leave most_clients out: it is taken from the schedule.'
      )
    self.averaging = planned.averaging
    self.leaving: Optional[tuple[tuple[str, str, str], ...]] = None
    self.attendance = self.schedule if attendance is None and not config.holds_noise else attendance
    self.colluders = tuple(checks.integer('colluders', k, at_least=1) for k in colluders)
    if self.colluders and not config.holds_noise:
      raise ValueError('Colluders are clients that hold noise: give them with trust=secure_sum only.')
    if self.colluders and max(self.colluders) >= config.num_clients:
      raise ValueError(
        f'There are {config.num_clients:,} clients, so at most {config.num_clients - 1:,} can collude against one of '
        f'them, found {max(self.colluders):,}.'
      )
    if self.colluders and self.config.threshold is not None:
      raise ValueError(
        'An ε against colluders is not known for a plan with a threshold: the server also chooses who drops out. Leave '
        'one of them out.'
      )
    if self.colluders and attendance is None:
      raise ValueError(
        'An ε against colluders needs rounds whose clients are known before the run. Give attendance, or leave '
        'colluders out.'
      )

  def _check_process(self, process):
    """Keeps what leaves clients, read off the process, in `leaving`."""
    self.leaving = tuple(
      (uri, name, tensor.compact_representation())
      for uri, value in leaving_clients.leaving_clients(process.next)
      for name, tensor in leaving_clients.tensors(value)
    )
    check_leaving(self.leaving, self)

  @property
  def expected(self) -> list[np.ndarray]:
    """int64[M_t], the clients of each planned round, as far as this is known: those who come, or those drawn."""
    return list(self.schedule if self.attendance is None else self.attendance)

  @functools.cached_property
  def planned(self) -> list[guarantee.PlannedRound]:
    """The weights of each planned round, if those who are `expected` come."""
    return self.config.simulated(self.expected)

  @functools.cached_property
  def share_of_ceiling(self) -> float:
    """See `planning.share_of_ceiling`."""
    assert self.averaging is not None
    return planning.share_of_ceiling(guarantee.Planned(self.config, self.averaging), self.schedule)

  def comes(self, round_num: int, clients: np.ndarray) -> bool:
    """Whether these, int64[M], may be the clients of a round, from 1."""
    if self.attendance is None:
      return bool(np.isin(clients, self.schedule[round_num - 1]).all())
    return np.array_equal(np.sort(clients), np.sort(self.attendance[round_num - 1]))

  @property
  def slack(self) -> slacks.Slack:
    """What rounding costs. Before the model's shape is known, all that is kept for it."""
    if self.model is None:
      return self.config.kept_slack
    return self.config.slack(sum(self.model.sizes))

  def _of_mechanism(self):
    covered = protections.EVERY_LAYER
    if self.model is not None:
      covered = f'Noise covers every layer: all {sum(self.model.sizes):,} trained weights.'
    return protections.of_noise(covered, (), self.config.noise_seed is not None, self.exact_logs)

  def _bound(self, ledger, cohorts):
    limits = np.broadcast_to(np.sqrt(self.config.prices.limit), [self.num_clients])
    return self._formal(accounting.of_limits(limits, self.delta))


def check_leaving(leaving: Sequence[Sequence[str]], plan: CertifiedPlan) -> None:
  """Raises `ValueError` unless clients send updates, and nothing that the plan's trust does not allow.

  A trusted server may get anything. Any other one gets secure sums of noised updates, their count, and public values.

  Args:
    leaving: (intrinsic, name, type) of each tensor that leaves clients, see `CertifiedPlan.leaving`.
    plan: The plan, whose model's shape is known.
  """
  if not all(len(one) == 3 and all(map(re.fullmatch, _LEAVING, one)) for one in leaving):
    raise ValueError(f'Each value that leaves clients must have an intrinsic, a name and a type, found {leaving!r}.')
  assert plan.model is not None
  sparsity, sizes = plan.sparsity, plan.model.sizes
  shapes: list[tuple[int, ...]] = list(plan.model.shapes)
  if sparsity.is_sparse:
    shapes = [(sparsity.kept(size),) for size in sizes]
  secure = [one for one in leaving if one[0] in _SECURE_SUMS]
  if plan.holds_noise:
    shapes.append(())  # How many clients are in the sum.
  # Noised updates are integers.
  expected = collections.Counter(f'[{",".join(map(str, shape))}]' if shape else '' for shape in shapes)
  sums = collections.Counter(kind[5:] for _, _, kind in (secure if plan.holds_noise else leaving) if kind[:3] == 'int')
  if expected - sums:
    raise ValueError(f'Of what clients send, {list(map(list, shapes))}, not all is among {leaving!r}.')
  if not plan.holds_noise:
    return
  places = f'[{plan.num_clients + 1}]'
  others = [one for one in leaving if one not in secure and one[2].removesuffix(places) not in _PUBLIC.get(one[1], ())]
  others += [one for one in secure if one[2][:5] != 'int64' or sums[one[2][5:]] > expected[one[2][5:]]]
  if others:
    whom = [type(plan.extension).__name__] * (plan.extension is not None) + ['client_metrics'] * plan.client_metrics
    values = ' and '.join(f'{name or "values without a name"} ({kind}, by {by})' for by, name, kind in others)
    raise ValueError(
      'Without trust in the server, nothing leaves a client but secure sums of noised updates and public values. Asked '
      f'for by {" and ".join(whom) or "the process"}: {values}. Use trust=server, leave client_metrics out, or use a '
      'method that asks for nothing more, such as fedvarp or safari.'
    )
