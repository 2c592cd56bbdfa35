"""The checks of a folder's files against each other: everything that can be computed again is.

The folder may come from anybody. Each problem is a sentence. What the program that made it puts there in addition is
checked by its `programs.Program`.
"""

from collections.abc import Sequence
import math
from typing import Any, Callable, NamedTuple, TypeVar
import zipfile

import numpy as np

from quap_tff import accounting
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import lazy
from quap_tff.plans.accounts import run_account

h5py = lazy.module('h5py')

# Relative, between float32 weights in TensorFlow's arithmetic and in NumPy's: some units in the last place.
_SAME_WEIGHT = 1e-6
_SAME_BOUND = 1e-9
_KERAS_MEMBERS = {'metadata.json', 'config.json', 'model.weights.h5'}

_Read = TypeVar('_Read')


def run_problems(content: folders.Content) -> list[str]:
  """Where the files of a folder contradict each other, or where something is in it that no certificate covers."""
  problems = entry_problems(content)
  of_ledger = ledger_problems(content.plan, content.ledger)
  if not of_ledger:
    problems += clients_problems(content)
  problems += of_ledger + model_problems(content)
  if not problems:
    content.program.check(content.path, content.plan, content.ledger)
  return problems


def entry_problems(content: folders.Content) -> list[str]:
  """The files in the folder that do not belong there."""
  entries, program = content.entries, content.program
  known = {folders.MECHANISM, folders.LEDGER, folders.CLIENTS, folders.KERAS_MODEL, *folders.OWN, *program.empty_files}
  known |= {folders.SCHEDULE} if content.plan.schedule else set()
  known |= {folders.ARRAYS_MODEL} if program.takes_arrays else set()
  strangers = [name for name in entries.files if name not in known and not program.owns(name, content.about)]
  strangers += [name for name in entries.empty if name not in program.empty_folders]
  result = [f'{name} is a {kind}. A certificate covers regular files only.' for name, kind in entries.special.items()]
  result += [f'{name} does not belong there: a certificate does not name it.' for name in sorted(strangers)]
  for name in sorted(program.empty_files & set(entries.files)):
    if folder_files.read_text(content.path, name):
      result.append(f'{name} must be empty.')
  return result


def unchecked(content: folders.Content) -> list[str]:
  """The parts of a folder's files that nothing here can make again. They may hold anything."""
  kept, program = content.entries.files, content.program
  names = [f'all of {name}' for name in kept if program.may_hold_anything(name)]
  if folders.KERAS_MODEL in kept:
    names.append(f'{folders.KERAS_MODEL}, except that its tensors have the stated shapes and finite numbers')
  return [*names, *program.unchecked]


class _Round(NamedTuple):
  """A round of a ledger: the entries of its clients, and what the plan gives for them."""

  clients: np.ndarray
  weights: np.ndarray
  planned: np.ndarray
  spent_max: float


def rounds(plan: run_account.RunAccount, ledger: accounting.RunLedger) -> list[_Round]:
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
  return [
    _Round(ids, own, one.weights[place], one.spent_max)
    for ids, own, one, place in zip(clients, weights, planned, places)
  ]


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
      'they came, build the same process for a plan without a schedule, certified_plan(plan.config), and give it '
      'this ledger.'
    ]
  # Another machine's linear algebra has other last bits.
  if not np.allclose(ledger.against, plan.new_ledger().against, rtol=_SAME_BOUND, atol=0):
    problems.append(f'{folders.LEDGER} has other figures against colluders than the plan.')
  clip = float(np.float32(plan.guarantee.clip.initial_norm))
  for number, one in enumerate(rounds(plan, ledger), 1):
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
  """Where clients.csv differs, in any character, from what the ledger gives."""
  lines = folder_files.read_text(content.path, folders.CLIENTS).split('\n')
  expected = folders.clients_text(content.plan, content.ledger).split('\n')
  if len(lines) != len(expected):
    return [f'{folders.CLIENTS} has {len(lines) - 1} lines, and the ledger gives {len(expected) - 1}.']
  differing = [pair for pair in zip(lines, expected) if pair[0] != pair[1]]
  return [f'{folders.CLIENTS}: it says {one!r}, but the ledger gives {other!r}.' for one, other in differing[:10]]


def model_problems(content: folders.Content) -> list[str]:
  """Where the tensors of the model are not finite floats of the stated shapes."""
  models = [name for name in (folders.KERAS_MODEL, folders.ARRAYS_MODEL) if name in content.entries.files]
  if len(models) != 1:
    return [f'The folder must hold one model, {folders.KERAS_MODEL} or {folders.ARRAYS_MODEL}, found {len(models)}.']
  assert content.plan.model is not None
  (name,), shapes = models, sorted(content.plan.model.shapes)

  def read(tensors: Sequence[Any]) -> list[str]:
    saved_shapes = sorted(tuple(tensor.shape) for tensor in tensors)
    if saved_shapes != shapes:
      return [f'{name} holds tensors of the shapes {saved_shapes}, and {folders.MECHANISM} says {shapes}.']
    if not all(tensor.dtype.kind == 'f' and np.isfinite(tensor[()]).all() for tensor in tensors):
      return [f'{name} must hold only finite floating-point numbers.']
    return []

  return in_model(content.path, name, read)


def in_model(path: str, name: str, read: Callable[[list[Any]], _Read]) -> _Read:
  """The result of `read` for the tensors of a model's file, .keras or .npz, which can't be used after it."""
  whole = folder_files.check_archive(path, name)
  with folder_files.damage(name, 'cannot be read'), zipfile.ZipFile(whole) as archive:
    members = archive.namelist()
    if name.endswith('.npz'):
      return read(list(folder_files.read_arrays(path, name, [[f'arr_{i}' for i in range(len(members))]]).values()))
    if len(members) != len(_KERAS_MEMBERS) or set(members) != _KERAS_MEMBERS:
      raise ValueError(f'its members must be {sorted(_KERAS_MEMBERS)}, found {members}')
    with archive.open('model.weights.h5') as f, h5py.File(f, 'r') as weights:
      return read(_tensors(weights))


def _tensors(weights: Any) -> list[Any]:
  tensors: list[Any] = []
  weights.visititems(lambda _, item: tensors.append(item) if hasattr(item, 'shape') else None)
  # The numbers of such a tensor are in other files, or are not stored at all.
  if not all(tensor.external is None and not tensor.is_virtual for tensor in tensors):
    raise ValueError('its tensors must be stored in it')
  folder_files.check_unpacked(sum(tensor.nbytes for tensor in tensors))
  return tensors
