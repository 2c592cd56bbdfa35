"""A round of any mechanism as a plain function of its clients' updates, for tests and audits."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple, Union

from quap_tff.common.lazy import tf
from quap_tff.mechanisms import mechanism


class Played(NamedTuple):
  """A round that `play_round` has played.

  Attributes:
    state: After the round.
    result: Float tensors as in an update.
    metrics: The measurements.
    admitted: The decisions before the sum.
    sent: For each client, all that it added to the sums.
  """

  state: mechanism.State
  result: list[tf.Tensor]
  metrics: mechanism.Struct
  admitted: mechanism.AdmittedRound
  sent: list[list[tf.Tensor]]


def play_round(
  rounds: mechanism.Rounds,
  state: mechanism.State,
  updates: Sequence[Sequence[tf.Tensor]],
  own: Sequence[Union[int, mechanism.Struct]],
) -> Played:
  """One round as a plain function.

  Args:
    rounds: The functions.
    state: Before the round.
    updates: For each client, the tensors of its update.
    own: For each client its id, or its `client_id` and the other fields that are its own, by name.
  """
  clients = []
  for update, fields in zip(updates, own):
    own_fields = fields if isinstance(fields, dict) else {'client_id': fields}
    clients.append((list(update), own_fields))
  count = len(clients)
  if not clients:
    # Somebody with an update of zeros shows which reports there would be. Nothing of it is counted.
    clients = [([tf.zeros(spec.shape, spec.dtype) for spec in rounds.specs], dict.fromkeys(rounds.own_fields, 0))]
  announced = rounds.announce(state)
  reports = []
  for update, fields in clients:
    update[:] = rounds.prepared(update, announced)
    fields = collections.OrderedDict(fields, client_id=tf.cast(fields.get('client_id', 0), tf.int64))
    reports.append(rounds.report(update, fields, announced))
  admitted = rounds.admit(state, announced, _stacked(reports, count))
  clip = admitted.clip if rounds.clips_by_this_round else None
  every = range(len(rounds.specs))
  waiting = every if rounds.waiting is None else rounds.waiting
  sent = []
  for (update, _), report in zip(clients, reports):
    added = rounds.contribution({i: update[i] for i in waiting}, report, announced, clip)
    rest = {i: update[i] for i in every if i not in waiting}
    totals = dict(zip(waiting, added))
    if rest:
      totals.update(rounds.early(rest, report))
    sent.append([totals[i] for i in every] + added[len(waiting) :])
  each = []
  for parts in zip(*sent):
    in_sum = [tf.cast(part, rounds.sum_dtype or part.dtype) for part in parts]
    each.append(tf.stack(in_sum)[:count])
  if rounds.needs_each_update:
    total = rounds.combined(each, admitted.weights)
  else:
    total = [tf.reduce_sum(one, axis=0) for one in each]
  return Played(*rounds.release(state, admitted, total), admitted, sent[:count])


def _stacked(reports: Sequence[mechanism.Struct], count: int) -> mechanism.Struct:
  stacked = collections.OrderedDict()
  for name in reports[0]:
    stacked[name] = tf.stack([report[name] for report in reports])[:count]
  return stacked
