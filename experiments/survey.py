r"""Asks simulated clients a question about themselves, privately, and estimates the shares of the answers.

    python -m experiments.survey --dataset=digits --num_clients=500 --mechanism=randomized_response:epsilon=2
    python -m experiments.survey --dataset=digits --question=participation --participation=energy --mechanism=rappor

Each client randomises its answer by itself before it sends it. The server never sees the true answers. They are in the
table because this is a simulation. A survey is a release of its own: its ε adds to that of a training run with the same
clients. The last line of standard output is one JSON object with `epsilon`, `estimated`, `stddev` and `true`. Exit
status: 0, or 1 for wrong input.
"""

from collections.abc import Sequence
import functools
import json

from absl import flags
import numpy as np

from data import cohorts
from data import datasets
from data import partition
from experiments.command import command_line
from experiments.systems import randomized_response
from quap_tff.common import checks
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.numbers import rounding

data = lazy.module('data')

_FLAGS = command_line.new_flags()
_QUESTIONS = ('label', 'participation')
# The answers to the question of participation: fifths of the rounds.
_FIFTHS = 5

_text = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_integer = functools.partial(flags.DEFINE_integer, flag_values=_FLAGS)
_DATASET = _text('dataset', 'digits', f'Dataset: {registry.describe(datasets.DATASETS)}.')
_DATA_DIR = _text('data_dir', None, "Folder with the dataset's file. Default: the download cache.")
_NUM_CLIENTS = _integer('num_clients', None, "Number of clients. Default: 100, or all of a dataset's own.")
_PARTITION = _text(
  'partition',
  'dirichlet:alpha=0.5',
  f'How examples are shared out among clients: {registry.describe(partition.PARTITIONS)}.',
)
_QUESTION = _text(
  'question',
  'label',
  "label: which label is the most frequent among the client's examples. participation: in which fifth of the rounds "
  'lies the number of rounds that the client takes part in.',
)
_MECHANISM = _text(
  'mechanism',
  'randomized_response',
  f'How answers are randomised: {registry.describe(randomized_response.MECHANISMS)}.',
)
_REPORTS = _integer('reports', 1, 'How often each client reports the same answer.')
_PARTICIPATION = _text('participation', 'beta', f'Who takes part: {registry.describe(cohorts.PARTICIPATION_MODELS)}.')
_COHORT_SIZE = _integer(
  'cohort_size',
  30,
  'Clients in a round, for --question=participation. The default is lowered to the number of clients.',
)
_ROUNDS = _integer('rounds', 50, 'Rounds, for --question=participation.')
_SEED = _integer('seed', 42, 'Seed of the partition and of the cohorts.')
_ANSWER_SEED = _integer(
  'answer_seed',
  None,
  "Seed of the clients' randomness, for reproducible experiments only: anyone who knows it knows the answers. Default: "
  "drawn from the operating system's entropy.",
)


def main(argv: list[str]) -> int:
  """Runs the survey that the flags in `argv[1:]` describe; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  mechanism = registry.parse_spec('mechanism', _MECHANISM.value, randomized_response.MECHANISMS)
  if _QUESTION.value not in _QUESTIONS:
    raise registry.unknown_name_error('question', _QUESTION.value, _QUESTIONS)
  checks.integer('reports', _REPORTS.value, at_least=1)
  checks.integer('rounds', _ROUNDS.value, at_least=1)
  if _ANSWER_SEED.value is not None:
    checks.integer('answer_seed', _ANSWER_SEED.value, at_least=0)
  answers, names = _answers_about_labels() if _QUESTION.value == 'label' else _answers_about_participation()
  _ask(mechanism, answers, names)
  return 0


def _answers_about_labels() -> tuple[np.ndarray, list[str]]:
  federation = data.load(
    _DATASET.value,
    data_dir=_DATA_DIR.value,
    num_clients=_NUM_CLIENTS.value,
    partition=_PARTITION.value,
    seed=_SEED.value,
  )
  classes = federation.num_classes
  answers = [randomized_response.majority_answer(client.y, classes) for client in federation.clients]
  return np.array(answers), [f'label {label}' for label in range(classes)]


def _answers_about_participation() -> tuple[np.ndarray, list[str]]:
  num_clients = 100 if _NUM_CLIENTS.value is None else _NUM_CLIENTS.value
  if _FLAGS['cohort_size'].present and _COHORT_SIZE.value > num_clients:
    raise ValueError(
      f'--cohort_size={_COHORT_SIZE.value} must be at most the number of clients, which is {num_clients}. Choose a '
      'smaller cohort, or more clients (--num_clients).'
    )
  model = cohorts.make(_PARTICIPATION.value, num_clients, min(_COHORT_SIZE.value, num_clients), _SEED.value)
  schedule = [model.cohort(round_num) for round_num in range(1, _ROUNDS.value + 1)]
  counts = np.bincount(np.concatenate(schedule), minlength=num_clients)
  answers = np.minimum(counts * _FIFTHS // _ROUNDS.value, _FIFTHS - 1)
  return answers, [f'{20 * fifth}-{20 * fifth + 20}% of rounds' for fifth in range(_FIFTHS)]


def _rounded(values: np.ndarray) -> list[float]:
  return [round(float(value), 6) for value in values]


def _ask(mechanism: randomized_response.ResponseMechanism, answers: np.ndarray, names: Sequence[str]) -> None:
  """Randomises the answers, estimates their shares, and prints both."""
  clients, reports = len(answers), _REPORTS.value
  received = mechanism.reports(np.random.default_rng(_ANSWER_SEED.value), answers, len(names), reports)
  estimate = mechanism.estimate(received, clients, reports)
  true = np.bincount(answers, minlength=len(names)) / clients
  epsilon = mechanism.epsilon_of(reports)
  print(f"{clients} clients, {reports} report(s) each; ε = {rounding.up(epsilon)} for a client's answer, δ = 0.")
  print("Neighbours: replace one client's answer by another; nobody is trusted, not even the server.")
  print(f'{"answer":<20}{"estimated":>12}{"± 1 s.d.":>12}{"true":>12}')
  for name, share, stddev, real in zip(names, estimate.shares, estimate.stddev, true):
    print(f'{name:<20}{share:>12.4f}{stddev:>12.4f}{real:>12.4f}')
  summary = {
    'question': _QUESTION.value,
    'mechanism': _MECHANISM.value,
    'clients': clients,
    'epsilon': epsilon,
    'estimated': _rounded(estimate.shares),
    'stddev': _rounded(estimate.stddev),
    'true': _rounded(true),
  }
  print(json.dumps(summary, allow_nan=False), flush=True)


if __name__ == '__main__':
  command_line.run(main)
