"""The statements of a certificate's issuer about a run: no file of the run shows whether it is true."""

import dataclasses
import datetime
import math
import numbers
import re
from typing import Any, Optional
import unicodedata

from quap_tff.common import characters
from quap_tff.common import checks
from quap_tff.common import version

_LONGEST = 4_000
# A certificate puts “ and ” around what the issuer states. No character may look as if it ended that: so not those that
# do are refused, but those are listed that do not. Letters, numbers, dashes, and signs of mathematics and of currencies
# are, by category; of modifiers, which hold double primes, only those of Japanese.
_PLAIN = ('Lu', 'Ll', 'Lt', 'Lo', 'Mn', 'Mc', 'Nd', 'Nl', 'No', 'Pd', 'Sm', 'Sc')
_PUNCTUATION = frozenset(" !#$%&'()*+,-./:;<=>?@[\\]^_`{|}~°§…·•。、，．：；！？（）،؛؟।々ー")
_TEXTS = ('algorithm', 'model', 'dataset', 'features', 'cohorts', 'tuning', 'test_set')
_MAY_BE_EMPTY = ('public_data', 'post_processing')
# The secure sum of `quap_tff.flower`: SecAgg+, with checks at each node.
SECAGG = 'secagg+'
_VERSION, _DIGEST = re.compile(r'[0-9A-Za-z._+-]{1,64}'), re.compile(r'[0-9a-f]{64}')


@dataclasses.dataclass(frozen=True)
class About:
  """The statements of the issuer. A certificate repeats them, in quotation marks.

  Attributes:
    dataset: Name of the dataset.
    cohorts: Where the schedule comes from, a sentence. It must be public, and must not depend on clients' data.
    tuning: How the constants of the run were chosen, a sentence.
    test_set: Whose examples the test set holds, a sentence.
    tests: How often loss and accuracy on the test set were released: an integer from 0 to the number of rounds.
    test_accuracy: In [0, 1]; None if it is not published.
    public_data: Which other data the features of the examples were made from, in sentences; '' for none.
    post_processing: How the noised weights are changed before they are published, in sentences; '' if they are not.
    algorithm: Name of the method.
    model: Name of the model.
    features: Name of the features; 'none' for the examples as they are.
    data_commitment: A salted SHA-256 of the clients' data, in hex; '' for none.
    date: The day of the run, as 2026-11-24; by default today.
    secure_sum: The protocol of the secure sum where clients hold the noise, `SECAGG`; '' if one program simulated it.
    stretches: Which code ran which rounds: `first_round`, `last_round`, `code` and `versions` of each stretch; () if it
      was all the same.
  """

  dataset: str
  cohorts: str
  tuning: str
  test_set: str
  tests: int = 0
  test_accuracy: Optional[float] = None
  public_data: str = ''
  post_processing: str = ''
  algorithm: str = 'certified'
  model: str = 'a model of its own'
  features: str = 'none'
  data_commitment: str = ''
  date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())
  secure_sum: str = ''
  stretches: tuple[Any, ...] = ()

  def __post_init__(self) -> None:
    for name in (*_TEXTS, *_MAY_BE_EMPTY):
      value = getattr(self, name)
      if isinstance(value, str):
        _check_quoted(name, value)
      if not isinstance(value, str) or not (value == '' and name in _MAY_BE_EMPTY or any(map(str.isalnum, value))):
        raise ValueError(f'{name} must be a sentence or a name, found {value!r}.')
    if self.data_commitment != '' and not is_digest(self.data_commitment):
      raise ValueError(f'data_commitment must be a SHA-256 in hex, or empty, found {self.data_commitment!r}.')
    if self.secure_sum not in ('', SECAGG):
      raise ValueError(f'secure_sum must be {SECAGG!r}, or empty for a simulation, found {self.secure_sum!r}.')
    checks.integer('tests', self.tests, at_least=0)
    if self.test_accuracy is not None:
      checks.number('test_accuracy', self.test_accuracy, at_least=0, at_most=1)
    try:
      is_date = datetime.date.fromisoformat(self.date).isoformat() == self.date
    except (TypeError, ValueError):
      is_date = False
    if not is_date:
      raise ValueError(f'date must be a day, such as 2026-11-24, found {self.date!r}.')
    object.__setattr__(self, 'stretches', tuple(map(_checked_stretch, self.stretches)))

  def as_dict(self) -> dict[str, Any]:
    """For JSON."""
    return {**dataclasses.asdict(self), 'stretches': list(self.stretches)}


def _check_quoted(name: str, value: str) -> None:
  """Raises `ValueError` for a text that would not end where the quotation marks around it do."""
  check_text(name, value)
  if len(value) > _LONGEST:
    raise ValueError(f'{name} must be at most {_LONGEST:,} characters, found {len(value):,}.')
  bad = [c for c in value if c not in _PUNCTUATION and unicodedata.category(c) not in _PLAIN]
  bad += [pair for pair in ("''", '``') if pair in value]
  if bad:
    raise ValueError(
      f'{name} holds {bad[0]} (U+{ord(bad[0][0]):04X}), but a certificate puts “ and ” around it. Write it with '
      "letters, digits and plain punctuation, and use single ' as quotation marks."
    )


def check_text(name: str, value: Any) -> None:
  """Raises `ValueError` if a text, in a value of any depth, has characters that are not seen or that reorder others."""
  if isinstance(value, str):
    for character in value:
      if characters.is_unseen(character):
        raise ValueError(
          f'{name} holds the character U+{ord(character):04X}, which is not seen or changes the order of others. Leave '
          'it out: a text must be one line of plain characters.'
        )
  elif isinstance(value, dict):
    for key, part in value.items():
      check_text(name, key)
      check_text(name, part)
  elif isinstance(value, (list, tuple)):
    for part in value:
      check_text(name, part)
  elif isinstance(value, numbers.Real) and not math.isfinite(value):
    raise ValueError(f'{name} holds {value}, which is not a finite number.')


def is_digest(value: Any) -> bool:
  """True if it is a SHA-256 in hex."""
  return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def this_code() -> dict[str, str]:
  """The version of this program, and the digest of its source."""
  return {'quap_tff': version.VERSION, 'source_sha256': version.source_digest()}


def check_code(value: Any) -> None:
  """Raises `ValueError` unless it is {quap_tff: a version, source_sha256: a digest}."""
  check_versions('code', value)
  if set(value) != {'quap_tff', 'source_sha256'} or not is_digest(value['source_sha256']):
    raise ValueError(f'code must be quap_tff and source_sha256, found {value!r}.')


def check_versions(name: str, value: Any) -> None:
  """Raises `ValueError` unless it is a dict of versions by name."""
  if not isinstance(value, dict) or not all(
    isinstance(text, str) and _VERSION.fullmatch(text) for part in value.items() for text in part
  ):
    raise ValueError(f'{name} must be versions by name, found {value!r}.')


def _checked_stretch(value: Any) -> dict[str, Any]:
  if not isinstance(value, dict) or set(value) != {'first_round', 'last_round', 'code', 'versions'}:
    raise ValueError(f'A stretch must have first_round, last_round, code and versions, found {value!r}.')
  checks.integer('first_round', value['first_round'], at_least=1)
  checks.integer('last_round', value['last_round'], at_least=value['first_round'] - 1)
  check_code(value['code'])
  check_versions('versions', value['versions'])
  return value
