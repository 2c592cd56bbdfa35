"""Run folders made by hand: as small as a report can read them, and true to what a training run writes."""

from collections.abc import Mapping, Sequence
import csv
import json
import pathlib
from typing import Any, Optional

import numpy as np

from experiments.command import run as run_lib
from experiments.reporting import pages
from experiments.reporting import published
from experiments.reporting import runs as runs_lib
from experiments.reporting import study
from quap_tff import methods

# The documents' tables are of 100 clients.
FULL = {'num_clients': 100, 'cohort_size': 30}

IDEAL = 'The figures are for ideal Gaussian noise; the noise that TFF adds is weaker.'


def write_run(
  folder: pathlib.Path,
  *,
  accuracy: float = 0.9,
  curve: Optional[np.ndarray] = None,
  rounds_run: int = 10,
  noise_norm: float = 2.0,
  sigma: float = 0.1,
  spread: float = 1.0,
  scale: float = 1.0,
  covers: Optional[str] = None,
  epsilon_max: float = 0.5,
  notes: Sequence[str] = (),
  noise_note: Optional[str] = None,
  certified_epsilon: Optional[float] = None,
  share_of_ceiling: Optional[float] = None,
  reading: Optional[float] = None,
  machine: Optional[Mapping[str, Any]] = None,
  seconds: float = 1.5,
  up_bytes: int = 4000,
  clients: Optional[Mapping[str, Any]] = None,
  **given,
) -> pathlib.Path:
  """Writes a finished run.

  Args:
    folder: Where; it is made.
    accuracy: Final test accuracy, in [0, 1].
    curve: Test accuracy by round; a straight line from 0 to `accuracy` if None.
    rounds_run: Rounds run, of `rounds` planned.
    noise_norm, sigma: The same in every round; 0: the run has no noise.
    spread, scale: Client i's budget of a round is scale·ε_base·(1 + spread·i/N) for adaptive budgets, ε_base for
      others.
    covers: What the formal figures cover; None: the released model has no finite ε, and `formal` is null.
    epsilon_max: The formal figure.
    notes: Of the formal figures.
    noise_note: That of the formal figures. By default, TFF's own methods say that their noise is weaker.
    certified_epsilon: Makes a certificate with this largest ε.
    share_of_ceiling: Of a certified run.
    reading: The largest ε of the rounds that ran, if they are fewer than planned.
    machine: For run.json.
    seconds: Of each round.
    up_bytes: Upload of a client in a round.
    clients: More columns of clients.csv.
    **given: Flags other than the defaults below. As in a real run, those that the method does not read are in `flags`
      and not in `identity`.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  flags = {
    'dataset': 'mnist',
    'model': 'auto',
    'algorithm': 'quap',
    'num_clients': 10,
    'cohort_size': 4,
    'rounds': 10,
    'partition': 'dirichlet:alpha=0.5',
    'participation': 'beta:a=2,b=5',
    'epsilon': 6.0,
    'delta': 1e-5,
    'alpha': 0.5,
    'beta': 2.0,
    'calibration': 'documents',
    'critical_layers': 'final_dense',
    'seed': 42,
    'noise_seed': None,
    'client_optimizer': 'sgd:learning_rate=0.005',
    'stop_at_accuracy': None,
    **given,
  }
  unread = run_lib.unused_flags(methods.parse(flags['algorithm']))
  write_json(
    folder / 'run.json',
    {
      'identity': {k: v for k, v in flags.items() if k not in unread and k != 'stop_at_accuracy'},
      'resolved': {'num_clients': flags['num_clients']},
      'flags': {**flags, 'output_dir': str(folder)},
      'versions': {'quap_tff': '0.1.0', 'python': '3.11.0'},
      'machine': machine or {'platform': 'Linux', 'cores': 2, 'gpus': 0, 'onednn': True},
    },
  )
  rounds, num_clients = rounds_run, flags['num_clients']
  ledger = make_ledger(flags, rounds, spread if noise_norm else np.inf, scale)
  place = folder if certified_epsilon is None else folder / 'certificate'
  place.mkdir(exist_ok=True)
  np.savez(place / 'ledger.npz', **ledger)
  nominal = np.bincount(ledger['clients'], ledger['budgets'], num_clients)
  curve = np.linspace(0, accuracy, rounds + 1)[1:] if curve is None else np.asarray(curve)
  write_csv(
    folder / 'metrics.csv',
    {
      'round': np.arange(1, rounds + 1),
      'epsilon': np.full(rounds, 0.6),
      'sigma': np.full(rounds, sigma),
      'signal_norm': np.ones(rounds),
      'noise_norm': np.full(rounds, noise_norm),
      'noise_to_signal': np.full(rounds, noise_norm),
      'test_accuracy': curve,
      'nominal_epsilon_max': np.full(rounds, nominal.max()),
      'seconds': np.full(rounds, seconds),
      'down_bytes_per_client': np.full(rounds, 4800),
      'up_bytes_per_client': np.full(rounds, up_bytes),
    },
  )
  columns = {
    'client': np.arange(num_clients),
    'rounds': np.bincount(ledger['clients'], minlength=num_clients),
    'nominal_epsilon': ['' if not np.isfinite(value) else value for value in nominal],
    'test_accuracy': np.linspace(0.5, 1, num_clients),
  }
  if covers is not None:
    columns['formal_epsilon'] = np.linspace(0, epsilon_max, num_clients)
  write_csv(place / 'clients.csv', {**columns, **(clients or {})})
  formal = {
    'covers': covers,
    'statement': f'Figures hold for: {covers}.',
    'delta': flags['delta'],
    'unit': 'one client',
    'notes': list(notes),
    'noise_note': IDEAL * flags['algorithm'].startswith('tff_') if noise_note is None else noise_note,
    'figures': [
      formal_figure('gaussian_exact', 'none', epsilon_max),
      formal_figure('zcdp', 'none', epsilon_max + 1),
      formal_figure('rdp', 'by Poisson sampling', epsilon_max / 10),
    ],
    'reading': None if reading is None else {'rounds': rounds, 'epsilon_max': reading, 'epsilon_mean': reading},
  }
  noised = bool(np.isfinite(nominal.max()))
  write_json(
    folder / 'summary.json',
    {
      'dataset': flags['dataset'],
      'algorithm': flags['algorithm'],
      'rounds': rounds,
      'planned_rounds': flags['rounds'],
      'test_accuracy': accuracy,
      'test_loss': 0.3,
      'share_of_ceiling': share_of_ceiling,
      'nominal_epsilon_max': float(nominal.max()) if noised else None,
      'nominal_epsilon_mean': float(nominal.mean()) if noised else None,
      'nominal_delta_max': 1e-4 if noised else None,
      'model_protected': covers in ('released model', 'weights without the logs'),
      'formal': formal if covers is not None else None,
      'interrupted': False,
      'seconds': 1.0,
      'output_dir': str(folder),
    },
  )
  if certified_epsilon is not None:
    write_json(
      place / 'certificate.json',
      {'guarantee': {'epsilon': flags['epsilon']}, 'achieved': {'epsilon_max': certified_epsilon}},
    )
  return folder


def make_ledger(flags: Mapping[str, Any], rounds: int, spread: float, scale: float) -> dict[str, np.ndarray]:
  """Client i takes part with a rate that grows with i; every method of a seed has the same cohorts."""
  clients, size = flags['num_clients'], flags['cohort_size']
  rng = np.random.default_rng(flags['seed'])
  weights = np.arange(1, clients + 1) / np.arange(1, clients + 1).sum()
  cohorts = [np.sort(rng.choice(clients, size, replace=False, p=weights)) for _ in range(rounds)]
  members = np.concatenate(cohorts)
  is_adaptive = published.PARTS.get(flags['algorithm'], (False,))[0]
  factor = scale * (1 + spread * members / clients) if is_adaptive else np.ones(len(members))
  base = flags['epsilon'] / flags['rounds']
  budgets = base * factor if np.isfinite(spread) else np.full(len(members), np.inf)
  return {
    'offsets': np.arange(rounds + 1, dtype=np.int64) * size,
    'clients': members.astype(np.int32),
    'budgets': budgets,
    'weights': np.ones(len(members)),
    'noise_multipliers': np.full(rounds, 1.0),
    'count_noise_multipliers': np.full(rounds, np.inf),
    'clipping_norms': np.full(rounds, 1.0),
    'released': np.ones(rounds, bool),
    'num_clients': np.int64(clients),
    'delta': np.float64(flags['delta']),
    'fingerprint': np.zeros(32, np.uint8),
    'correlation': np.frombuffer(b'independent', np.uint8),
  }


def formal_figure(accountant: str, amplification: str, epsilon: float) -> dict[str, Any]:
  """A formal figure as summary.json has it."""
  return {
    'accountant': accountant,
    'neighbours': 'zero out one client',
    'amplification': amplification,
    'epsilon_max': epsilon,
    'epsilon_mean': epsilon / 2,
    'epsilon_median': epsilon / 2,
  }


def write_json(path: pathlib.Path, value: Any):
  path.write_text(json.dumps(value))


def change_json(path: pathlib.Path, **changes: Any):
  """Gives the object in a JSON file other values."""
  write_json(path, {**json.loads(path.read_text()), **changes})


def write_csv(path: pathlib.Path, columns: Mapping[str, Any]):
  with open(path, 'w', newline='') as f:
    writer = csv.writer(f)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))


def collected(folder: pathlib.Path, *runs: Mapping[str, Any]) -> tuple[list[study.StudyGroup], list[runs_lib.LeftOut]]:
  """The groups of the runs in a folder and what they leave out; first, each of `runs` is written, see `write_run`."""
  for number, arguments in enumerate(runs):
    write_run(folder / f'run_{number:03d}', **arguments)
  loaded = [runs_lib.load_run(path) for path in runs_lib.find([str(folder)])]
  return study.collect([run for run, _ in loaded if run is not None])


def groups_of(folder: pathlib.Path, *runs: Mapping[str, Any]) -> list[study.StudyGroup]:
  """The groups alone, see `collected`."""
  return collected(folder, *runs)[0]


def seeds(*seeds_: int, **arguments) -> list[dict[str, Any]]:
  """The arguments of one run for each seed; a list gives each its own value."""
  return [
    {'seed': seed, **{k: v[i] if isinstance(v, list) else v for k, v in arguments.items()}}
    for i, seed in enumerate(seeds_)
  ]


def table(blocks: Sequence[pages.Block], name: str) -> list[dict[str, str]]:
  """The rows of the table of this name, cells as text by column."""
  (found,) = (block for block in blocks if isinstance(block, pages.Table) and block.name == name)
  return [{column: pages.cell_text(row.get(column)) for column in found.frame} for row in found.rows]


def row(rows: Sequence[Mapping[str, Any]], **cells: str) -> Mapping[str, Any]:
  """The one row that has these cells."""
  (found,) = (one for one in rows if all(one[name] == value for name, value in cells.items()))
  return found


def drawings(blocks: Sequence[pages.Block]) -> list[pages.Plot]:
  """The figures among the blocks."""
  return [block for block in blocks if isinstance(block, pages.Plot)]


def text(blocks: Sequence[pages.Block]) -> str:
  """The paragraphs among the blocks."""
  return '\n'.join(block for block in blocks if isinstance(block, str))
