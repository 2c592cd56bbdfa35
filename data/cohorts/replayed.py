"""Cohorts that a log names: who really came, round by round."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import os
from typing import NamedTuple

import numpy as np

from data import reading
from quap_tff.accounting import logs
from quap_tff.cohorts import base
from quap_tff.common.numbers import samplers

_MOST_NAMES_IN_AN_ERROR = 3
_SAMPLER = samplers.CohortSampler(
  reason='the cohorts were read from a log, and nothing is known of how they came about'
)


class _Content(NamedTuple):
  """A log: the names of its clients, int64[M_t] places among them for each round, and the file's SHA-256."""

  names: Sequence[str]
  rounds: Sequence[np.ndarray]
  sha256: str


@dataclasses.dataclass(frozen=True)
class ReplayedLog(base.ParticipationChoice):
  """Replays a log of who came in which round: a CSV file with the columns round and client, gzipped if it ends in .gz.

  Names that are ids of the data's clients stand for these clients. If none of the names is such an id, they stand for
  the data's clients in the order in which they come first, which the run says before its first round. Clients of the
  data that the log does not name never come. Weights in the log are not used: the method gives its own.

  Attributes:
    path: The file.
    sha256: Its SHA-256, in hexadecimal digits. It is checked if it is given, and run.json has it.
  """

  ignores_cohort_size = True

  path: str = ''
  sha256: str = ''

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.path:
      raise ValueError('A log of participation needs its file: log:path=FILE.')

  @functools.cached_property
  def _content(self) -> _Content:
    reading.check_is_file(self.path, 'a log of participation is a CSV file with the columns round and client')
    try:
      with open(self.path, 'rb') as f:
        sha256 = hashlib.sha256(f.read()).hexdigest()
      log = logs.Log(self.path)
      rounds = [one.ids.copy() for one in log.rounds()]
    except OSError as error:
      raise reading.DataFileError(f'{self.path} cannot be read: {error.strerror or error}.') from error
    if self.sha256 not in ('', sha256):
      raise reading.wrong(self.path, f'the log with the SHA-256 {self.sha256}', f'one with {sha256}')
    return _Content(log.names, rounds, sha256)

  @property
  def provenance(self) -> str:
    return f'The cohorts are those of a log of participation with the SHA-256 {self.sha256 or self._content.sha256}.'

  def portable(self) -> ReplayedLog:
    return ReplayedLog(os.path.basename(os.path.normpath(self.path)), self.sha256 or self._content.sha256)

  def check_rounds(self, num_rounds: int) -> None:
    logged = len(self._content.rounds)
    if num_rounds > logged:
      raise ValueError(
        f'{num_rounds} rounds are planned, and {self.path} has {logged}. Plan at most {logged} (--rounds={logged}), '
        'or give a longer log.'
      )

  def for_clients(self, client_ids: Sequence[str]) -> Replayed:
    self._check_count(len(client_ids))
    names, total = self._content.names, len(client_ids)
    places = {name: place for place, name in enumerate(client_ids)}
    unknown = [name for name in names if name not in places]
    if unknown and len(unknown) < len(names):
      some = ', '.join(map(repr, unknown[:_MOST_NAMES_IN_AN_ERROR]))
      raise ValueError(
        f'{self.path}: {len(names) - len(unknown)} of its {len(names)} clients are clients of the data, and '
        f'{len(unknown)} are not, such as {some}. Use the ids of the data, such as {client_ids[0]!r}, for all clients '
        'of the log or for none of them.'
      )
    by_order = 'in the order in which they come first' if unknown else 'by their ids'
    stays = total - len(names)
    never = f' {stays} of the {total} clients of the data are not in the log, and never come.' if stays else ''
    rounds = self._content.rounds
    if not unknown:
      place_of = np.array([places[name] for name in names])
      rounds = [place_of[ids] for ids in rounds]
    return Replayed(
      rounds, self.provenance, f'{self.path}: its {len(names)} clients stand for clients of the data {by_order}.{never}'
    )

  def over(self, population: base.Population) -> base.ParticipationModel:
    self._check_count(population.num_clients)
    return Replayed(self._content.rounds, self.provenance).over(population)

  def _check_count(self, num_clients: int) -> None:
    logged = len(self._content.names)
    if logged > num_clients:
      raise ValueError(
        f'{self.path} names {logged} clients, and the data have {num_clients}. Use data of at least {logged} clients '
        f'(--num_clients={logged}), or a log of fewer.'
      )


@dataclasses.dataclass(frozen=True, eq=False)
class Replayed(base.ParticipationChoice):
  """Cohorts that are known, int64[M_t] for each round.

  Attributes:
    rounds: The clients of each round.
    source: Where they come from, a sentence.
    note: What is said about them before the first round, in sentences.
  """

  ignores_cohort_size = True

  rounds: Sequence[np.ndarray] = ()
  source: str = ''
  note: str = ''

  @property
  def provenance(self) -> str:
    return self.source

  @property
  def statement(self) -> str:
    return self.note

  def over(self, population: base.Population) -> base.ParticipationModel:
    if population.cohort_seed is not None:
      raise ValueError(
        'Cohorts of a log are known to everyone who has the log, and come from no seed. Leave --cohort_seed out, or '
        '`expected` of the method.'
      )

    def draw(round_num: int) -> np.ndarray:
      if round_num > len(self.rounds):
        raise ValueError(f'The log has {len(self.rounds)} rounds, and round {round_num} is asked for.')
      return self.rounds[round_num - 1]

    mean = float(np.mean([len(one) for one in self.rounds])) if len(self.rounds) else 0.0
    return base.ParticipationModel(population, draw, sampler=_SAMPLER, mean_cohort_size=mean or None)
