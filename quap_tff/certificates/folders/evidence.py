"""The checks of a folder's files against each other: everything that can be computed again is.

The folder may come from anybody. Each problem is a sentence.
"""

import math
from typing import NamedTuple

import numpy as np

from quap_tff import accounting
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.plans.accounts import run_account

# Relative, between float32 weights in TensorFlow's arithmetic and in NumPy's: some units in the last place.
_SAME_WEIGHT = 1e-6
_SAME_BOUND = 1e-9


def run_problems(content: folders.Content) -> list[str]:
  """Where the files of a folder contradict each other, or where something is in it that no certificate covers."""
  problems = entry_problems(content)
  if content.plan.secret is not None:  # Its constants say it all, and no file says who came.
    return problems + clients_problems(content) + model_problems(content)
  of_ledger = ledger_problems(content.plan, content.ledger)
  if not of_ledger:
    problems += clients_problems(content)
  return problems + of_ledger + model_problems(content)


def entry_problems(content: folders.Content) -> list[str]:
  """The files in the folder that do not belong there."""
  entries = content.entries
  known = {folders.MECHANISM, folders.CLIENTS, folders.MODEL, *folders.OWN}
  if content.plan.secret is None:
    known.add(folders.LEDGER)
  if content.plan.schedule:
    known.add(folders.SCHEDULE)
  strangers = [*sorted({*entries.files} - known), *entries.empty]
  result = [f'{name} is a {kind}. A certificate covers regular files only.' for name, kind in entries.special.items()]
  return result + [f'{name} does not belong there: a certificate does not name it.' for name in strangers]


class _Round(NamedTuple):
  """A round of a ledger: the entries of its clients, and what the plan gives for them."""

  clients: np.ndarray
  weights: np.ndarray
  planned: np.ndarray


def _rounds(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> list[_Round]:
  """The rounds of a ledger with the weights that they must have, after the weights of the rounds before.

  The ledger must have the cohorts of the plan, if it has planned any.
  """
  state = ledger.state_dict()
  cuts = state['offsets'][1:-1]
  clients, weights = np.split(state['clients'].astype(np.int64), cuts), np.split(state['weights'], cuts)
  cohorts = clients if plan.attendance is None else list(plan.attendance[: ledger.num_rounds])
  places = [_places(cohort, own) for cohort, own in zip(cohorts, clients)]
  kept = [own[np.argsort(place)] for own, place in zip(weights, places)]
  planned = plan.guarantee.simulated(cohorts, kept)
  return [_Round(ids, own, one.weights[place]) for ids, own, one, place in zip(clients, weights, planned, places)]


def _places(planned: np.ndarray, clients: np.ndarray) -> np.ndarray:
  """Where each of a round's clients is in the planned cohort, which has the same ids in another order."""
  return np.argsort(planned)[np.argsort(np.argsort(clients))]


def ledger_problems(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> list[str]:
  """Where a ledger differs from that of a run of the plan.

  A run may have stopped early. But each of its rounds must have the planned cohort, if cohorts were planned, the
  weights that follow from the cohorts, and the planned noise.
  """
  config, state, expected = plan.guarantee.config, ledger.state_dict(), plan.new_ledger().state_dict()
  problems = [
    f'{name} in {folders.LEDGER} is not that of the mechanism.'
    for name in ('num_clients', 'delta', 'fingerprint', 'correlation', 'spent_before', 'conditions')
    if not np.array_equal(state.get(name, ()), expected.get(name, ()))
  ]
  assert config.num_rounds is not None  # `plans.accounts.ahead` asks for it.
  if ledger.num_rounds > config.num_rounds:
    problems.append(f'{folders.LEDGER} has {ledger.num_rounds} rounds, and {config.num_rounds} are planned.')
  if problems:
    return problems
  offsets = state['offsets']
  strangers = [
    number
    for number in range(1, ledger.num_rounds + 1)
    if plan.schedule and not _comes(plan, number, state['clients'][offsets[number - 1] : offsets[number]])
  ]
  if strangers:
    others = f' So have {len(strangers) - 1} other rounds.' if len(strangers) > 1 else ''
    return [
      f'Round {strangers[0]} of {folders.LEDGER} has other clients than are planned.{others} To certify cohorts as '
      'they came, build the same process for a plan without a schedule, Plan.certified(plan.config), and give it '
      'this ledger.'
    ]
  # Another machine's linear algebra has other last bits.
  if not np.allclose(ledger.against, plan.new_ledger().against, rtol=_SAME_BOUND, atol=0):
    problems.append(f'{folders.LEDGER} has other figures against colluders than the plan.')
  clip = float(np.float32(plan.guarantee.clip.initial_norm))
  for number, one in enumerate(_rounds(plan, ledger), 1):
    if not np.allclose(one.weights, one.planned, rtol=_SAME_WEIGHT, atol=0):
      problems.append(f'Round {number} of {folders.LEDGER} has other weights than follow from the cohorts.')
    planned = plan.guarantee.cost(one.clients, one.weights, clip, number)
    constants = {
      'noise_multipliers': planned.noise_multiplier,
      'count_noise_multipliers': planned.count_noise_multiplier,
      **({} if config.counts_norms else {'clipping_norms': clip}),
    }
    for name, value in constants.items():
      if not _close(state[name][number - 1], value):
        problems.append(
          f'Round {number} of {folders.LEDGER}: {name} is {state[name][number - 1]:g}, planned is {value:g}.'
        )
    budgets = state['budgets'][offsets[number - 1] : offsets[number]]
    if planned.budgets is None or not np.allclose(budgets, planned.budgets, rtol=_SAME_WEIGHT, atol=0):
      problems.append(f'Round {number} of {folders.LEDGER} has other budgets than its weights give.')
  return problems


def _comes(plan: run_account.RunAccount, round_num: int, clients: np.ndarray) -> bool:
  """True if these, int64[M], may be the clients of a round, from 1."""
  if plan.attendance is None:
    return bool(np.isin(clients, plan.schedule[round_num - 1]).all())
  return np.array_equal(np.sort(clients), np.sort(plan.attendance[round_num - 1]))


def _close(value: float, expected: float) -> bool:
  return value == expected or math.isclose(value, expected, rel_tol=1e-9)


def clients_problems(content: folders.Content) -> list[str]:
  """Where clients.csv differs, in any character, from what the account gives."""
  lines = folder_files.read_text(content.path, folders.CLIENTS).split('\n')
  expected = folders.clients_text(content.plan, content.ledger).split('\n')
  if len(lines) != len(expected):
    return [f'{folders.CLIENTS} has {len(lines) - 1} lines, and the account gives {len(expected) - 1}.']
  differing = [pair for pair in zip(lines, expected) if pair[0] != pair[1]]
  return [f'{folders.CLIENTS}: it says {one!r}, but the account gives {other!r}.' for one, other in differing[:10]]


def model_problems(content: folders.Content) -> list[str]:
  """Where the tensors of the model are not finite floats of the stated shapes."""
  stated = list(content.plan.shape.shapes)
  tensors = list(folder_files.read_arrays(content.path, folders.MODEL, [_names(len(stated))]).values())
  shapes = [tensor.shape for tensor in tensors]
  if shapes != stated:
    return [f'{folders.MODEL} holds tensors of the shapes {shapes}, and {folders.MECHANISM} says {stated}.']
  if not all(tensor.dtype.kind == 'f' and np.isfinite(tensor).all() for tensor in tensors):
    return [f'{folders.MODEL} must hold only finite floating-point numbers.']
  return []


def _names(count: int) -> list[str]:
  return [f'arr_{index}' for index in range(count)]
