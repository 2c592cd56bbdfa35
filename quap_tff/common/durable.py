"""Files that must not be used twice or put back: the state of a gate, of a guard, of a run.

    with durable.StateFile('run/gate.state') as state:  # nobody else opens it until it is closed, or the process ends
      old = state.content                               # None at the first time
      state.write(new)                                  # when it returns, `new` is on disk, and `old` is refused

Write before you release anything that depends on the new content. A state begins with a line that names it by a random
id, and numbers its versions. Each version has the digest of the one before. The digest of the latest version is also
kept in a counter, a file in another folder that only grows. So a state that was removed, replaced or put back is
refused, even if a whole folder was. It goes by the id and not by the path: a copy is the same state, and a folder may
be renamed.

A version counts when it is in the counter, which happens last. After a crash between the two, the version on disk is
the successor of the one that counts, and is taken; nothing was released by then. So is the one before, if somebody puts
it back at that moment.

Counters lie in `quap_tff` in the user's state folder: $XDG_STATE_HOME, or ~/.local/state. Whoever puts that folder back
together with the state is not noticed. What a machine does not know it refuses:

    python -m quap_tff.states adopt PATH    # a state, or a folder of them, that was moved to this machine
    python -m quap_tff.states forget PATH   # a state that was removed, to begin a new one there
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import stat
from typing import NamedTuple, Optional
import weakref

from quap_tff.common import files
from quap_tff.common import lazy

fcntl = lazy.module('fcntl')  # Windows has none. Gates are read there, too.

_MAGIC = b'quap_tff-state '
# The digest before the first version.
_NOTHING = '-'
_STATES, _PLACES, _HEIRS = 'states', 'places', 'heirs'
_COMMAND = 'python -m quap_tff.states'


class StateError(ValueError):
  """A state is in use, or is not the latest one. Nothing was written."""


@dataclasses.dataclass(frozen=True)
class _Version:
  """A version of a state.

  Attributes:
    state_id: The name of the state, random.
    number: The number of the version, from 1.
    before: The digest of the version before; `-` for the first one.
    content: The content.
  """

  state_id: str
  number: int
  before: str
  content: bytes

  @functools.cached_property
  def digest(self) -> str:
    """The digest of all of it; `-` before the first version."""
    if not self.number:
      return _NOTHING
    return hashlib.sha256(f'{self.state_id} {self.number} {self.before}\n'.encode() + self.content).hexdigest()

  @property
  def text(self) -> bytes:
    """The file."""
    head = f'{self.state_id} {self.number} {self.before} {self.digest}\n'
    return _MAGIC + head.encode() + self.content


def is_state(path: str) -> bool:
  """Whether a file begins as a state does. Raises `OSError` if it cannot be read."""
  with open(path, 'rb') as f:
    return f.read(len(_MAGIC)) == _MAGIC


def content_of(path: str) -> bytes:
  """The content of a state, for a reader that does not go on from it: it may be in use, or not be the latest one.

  Raises:
    OSError: If the file cannot be read.
    ValueError: If it is damaged, or not a state.
  """
  return _read(path).content


def id_of(path: str) -> str:
  """The id of a state. Errors are those of `content_of`."""
  return _read(path).state_id


def counters_folder() -> str:
  """The folder of counters, if no other is given."""
  state = os.environ.get('XDG_STATE_HOME') or os.path.join(os.path.expanduser('~'), '.local', 'state')
  return os.path.join(state, 'quap_tff')


class StateFile:
  """A state that is open, and locked for everyone else until `close`, or until this object or the process ends.

  Attributes:
    path: The file, by its real path.
    content: The content of the latest version; None if there is none.
  """

  def __init__(self, path: str, counters: Optional[str] = None, waits: bool = False, anew: bool = False):
    """Opens a state; its file is made by the first `write`.

    Args:
      path: The file, in a folder that is there.
      counters: The folder of the counters. None: that of the user, see the module.
      waits: Whether to wait for another one that has it open, in place of a refusal.
      anew: Whether a new state may begin where one was removed. The caller knows that all that it had released is gone.

    Raises:
      StateError: If it is in use, damaged, or not the latest version, or was removed, or is not known on this machine.
        The message says what to do.
      OSError: If a file cannot be read or written.
    """
    self.path, self._waits, self._anew, self._process = os.path.realpath(path), waits, anew, os.getpid()
    self._store = _Store(counters)
    self._place = self._opened(self._store.place_of(self.path))
    self._counter: Optional[_Log] = None
    try:
      self._version = self._latest()
    except BaseException:
      self.close()
      raise

  def __enter__(self) -> StateFile:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  @property
  def content(self) -> Optional[bytes]:
    return self._version.content if self._version.number else None

  @property
  def state_id(self) -> str:
    """The name that it has on every path."""
    return self._version.state_id

  def write(self, content: bytes) -> None:
    """Writes the next version, whole. Only when this returns may anything be released that depends on it.

    Raises:
      OSError: If a file cannot be written. Then the state is closed. The version that is found next time may be this
        one, or the one before.
      StateError: If the state is closed, or was opened by another process.
    """
    self.check_open()
    version = _Version(self.state_id, self._version.number + 1, self._version.digest, content)
    try:
      if self._counter is None:
        self._counter = self._opened(self._store.counter_of(self.state_id))
        self._counter.append(_at(self.path))
        self._place.append(self.state_id)
      _write_whole(self.path, version.text)
      self._counter.append(_counted(version))
    except BaseException:
      # Whether the version counts is not known here. It is found out when the state is opened.
      self.close()
      raise
    self._version = version

  @property
  def is_open(self) -> bool:
    """False if the state is closed, or was opened by another process."""
    return not self._place.is_closed and os.getpid() == self._process

  def check_open(self) -> None:
    """Raises `StateError` if the state is closed, or was opened by another process."""
    if not self.is_open:
      raise StateError(f'{self.path} is not open in this process. Open it again: it may have gone on since.')

  def close(self) -> None:
    """Lets others open the state."""
    for log in (self._counter, self._place):
      if log is not None:
        log.close()

  def _opened(self, path: str) -> _Log:
    try:
      return _Log(path, self._waits)
    except BlockingIOError:
      raise StateError(
        f'{self.path} is in use: another process, or another object of this one, has it open, here or as a copy. Two '
        'of them would not know of each other. Stop the other one, or close it, first.'
      ) from None

  def _latest(self) -> _Version:
    expected = self._store.state_at(self.path, self._place)
    if not os.path.lexists(self.path):
      if expected is None or self._anew:
        os.stat(os.path.dirname(self.path))  # It must be there.
        return _Version(secrets.token_hex(16), 0, _NOTHING, b'')
      raise StateError(
        f'{self.path} was there and is gone. Put it back. If it is lost, what it had answered or charged is not known '
        f'any more; to begin anew all the same, with new keys and with that spending in no account: '
        f'{self._store.command("forget", self.path)}'
      )
    try:
      version = _read(self.path)
    except ValueError as error:
      raise StateError(f'{self.path} is damaged: {error}. Put the latest one back.') from None
    if expected is not None and expected != version.state_id:
      raise StateError(
        f'{self.path} is another one than was there before. Put that one back. If it is lost, and this one is to take '
        f'its place: {self._store.command("forget", self.path)}'
      )
    counter_path = self._store.counter_of(version.state_id)
    counted = _Counted.read(counter_path)
    if counted is None or counted.number < version.number - 1:
      folder = os.path.dirname(self.path)
      raise StateError(
        f'{self.path} was not written with the counters in {self._store.folder}: it comes from another machine or '
        'another user, or the counters are older than it or lost. Nothing shows whether it is the latest copy. If it '
        'went on elsewhere since, budgets are spent twice and noise repeats. If you know that it did not, and never '
        f'will: {self._store.command("adopt", folder)}'
      )
    self._counter = self._opened(counter_path)
    counted = _Counted.of(self._counter.lines)
    if version.before == counted.digest:
      self._counter.append(_counted(version))  # The last write ended before it counted.
    elif version.digest != counted.digest:
      raise StateError(
        f'{self.path} is not the latest copy: it is version {version.number}, and version {counted.number} was written.'
        ' Put the latest one back. This one does not know what was answered or charged since.'
      )
    if counted.path != self.path:
      self._counter.append(_at(self.path))
    if expected is None:
      self._place.append(version.state_id)
    return version


class _Counted(NamedTuple):
  """The content of a counter: the number and the digest of the latest version, and where it lies."""

  number: int = 0
  digest: str = _NOTHING
  path: str = ''

  @classmethod
  def of(cls, lines: Iterable[str]) -> _Counted:
    counted = cls()
    for line in lines:
      kind, _, rest = line.partition(' ')
      if kind == 'at':
        counted = counted._replace(path=json.loads(rest))
      else:
        counted = counted._replace(number=int(kind), digest=rest)
    return counted

  @classmethod
  def read(cls, path: str) -> Optional[_Counted]:
    """The content of a counter that may be in use; None without a counter."""
    try:
      with open(path, 'rb') as f:
        return cls.of(_whole_lines(f.read()))
    except FileNotFoundError:
      return None


def _at(path: str) -> str:
  return f'at {json.dumps(path)}'


def _counted(version: _Version) -> str:
  return f'{version.number} {version.digest}'


class _Store:
  """The folder of the counters. Only its owner can read it.

  states/ID      a counter: for each version of a state its number and digest, and where the state lies
  places/DIGEST  of a path: the ids of the states that lay there. It is locked while one is opened there
  heirs/DIGEST   of what was spent: the run that counts from it
  """

  def __init__(self, folder: Optional[str]):
    self._is_users = folder is None
    chosen = counters_folder() if folder is None else folder
    self.folder = os.path.realpath(chosen)
    for path in (self.folder, *(os.path.join(self.folder, name) for name in (_STATES, _PLACES, _HEIRS))):
      if not os.path.isdir(path):
        self._make(path)

  def _make(self, path: str) -> None:
    try:
      os.makedirs(path, 0o700, exist_ok=True)
      _sync_folder(path)
    except OSError as error:
      raise StateError(
        f'The counters of states cannot be kept in {self.folder}: {error.strerror}. Without them, an older copy of a '
        'state would not be noticed. Set XDG_STATE_HOME to a folder that stays and can be written.'
      ) from error

  def counter_of(self, state_id: str) -> str:
    return os.path.join(self.folder, _STATES, state_id)

  def place_of(self, path: str) -> str:
    return os.path.join(self.folder, _PLACES, _name(path))

  def heirs_of(self, key: str) -> str:
    return os.path.join(self.folder, _HEIRS, _name(key))

  def state_at(self, path: str, place: _Log) -> Optional[str]:
    """The id of the state that must lie at a path; None if none was written there, or it was moved or forgotten."""
    if not place.lines or place.lines[-1] == _NOTHING:
      return None
    counted = _Counted.read(self.counter_of(place.lines[-1]))
    is_there = counted is not None and counted.number > 0 and counted.path == path
    return place.lines[-1] if is_there else None

  def command(self, verb: str, path: str) -> str:
    """The line that a person may run."""
    counters = '' if self._is_users else f' --counters={self.folder}'
    return f'{_COMMAND} {verb} {path}{counters}'


class _Log:
  """Lines in a file that only grows, locked while it is open. Half a line, which a crash has left, is not read."""

  def __init__(self, path: str, waits: bool = False):
    """Opens or makes the file; raises `BlockingIOError` if it is locked, unless it `waits`."""
    is_new = not os.path.lexists(path)
    self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    self._close = weakref.finalize(self, os.close, self._file)
    patience = 0 if waits else fcntl.LOCK_NB
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | patience)
      if is_new:
        _sync_folder(path)
      content = b''.join(iter(lambda: os.read(self._file, 1 << 16), b''))
    except BaseException:
      self.close()
      raise
    self.lines = _whole_lines(content)
    self._end = content.rfind(b'\n') + 1

  @property
  def is_closed(self) -> bool:
    return not self._close.alive

  def append(self, line: str) -> None:
    """Writes a line. It is on disk when this returns."""
    text = f'{line}\n'.encode()
    os.ftruncate(self._file, self._end)
    os.pwrite(self._file, text, self._end)
    os.fsync(self._file)
    self._end += len(text)
    self.lines.append(line)

  def __enter__(self) -> _Log:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    self._close()


def _whole_lines(content: bytes) -> list[str]:
  return content.decode().split('\n')[:-1]


def _name(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: str) -> _Version:
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError('it is not a regular file')
  with open(path, 'rb') as f:
    text = f.read()
  head, _, content = text.partition(b'\n')
  fields = head[len(_MAGIC) :].decode('ascii', 'replace').split(' ')
  if not text.startswith(_MAGIC) or len(fields) != 4 or not fields[1].isdecimal():
    raise ValueError('it does not begin as a state does')
  version = _Version(fields[0], int(fields[1]), fields[2], content)
  if version.text != text:
    raise ValueError('its digest is not that of its content')
  return version


def _write_whole(path: str, content: bytes) -> None:
  with files.replacing(path) as unfinished, files.new_private(unfinished) as f:
    f.write(content)
    f.flush()
    os.fsync(f.fileno())
  # Without this, a machine that loses power may come back with the file from before.
  _sync_folder(path)


def _sync_folder(path: str) -> None:
  folder = os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)


def adopt(path: str, counters: Optional[str] = None) -> list[str]:
  """Takes states from another machine as the latest ones. Nothing shows whether they are.

  Args:
    path: A state, or a folder of states.
    counters: As for `StateFile`.

  Returns:
    The paths of those that were not known here. The others stay as they are.

  Raises:
    StateError: If one is in use, or there is none.
    OSError, ValueError: If one cannot be read.
  """
  store, adopted = _Store(counters), []
  for one in _states_in(path):
    version = _read(one)
    counter_path = store.counter_of(version.state_id)
    counted = _Counted.read(counter_path)
    if counted is None or counted.number < version.number - 1:
      with _locked(counter_path, one) as counter, _locked(store.place_of(one), one) as place:
        counter.append(_at(one))
        counter.append(_counted(version))
        place.append(version.state_id)
      adopted.append(one)
  return adopted


def forget(path: str, counters: Optional[str] = None) -> list[str]:
  """Lets new states begin where others were removed or replaced.

  Args:
    path: Where a state was, or a folder of them.
    counters: As for `StateFile`.

  Returns:
    The paths.

  Raises:
    StateError: If one is in use, or none was there.
    OSError: If a file cannot be read or written.
  """
  store, path = _Store(counters), os.path.realpath(path)
  found = {_Counted.read(store.counter_of(name)) for name in os.listdir(os.path.join(store.folder, _STATES))}
  paths = sorted({one.path for one in found if one is not None})
  forgotten = [one for one in paths if path in (one, os.path.dirname(one))]
  for one in forgotten:
    with _locked(store.place_of(one), one) as place:
      place.append(_NOTHING)
  if not forgotten:
    raise StateError(f'No state was written at {path} or in it.')
  return forgotten


class Heir(NamedTuple):
  """A run that counts from what another one has spent.

  Attributes:
    name: Which run it is, also when it goes on after a restart.
    place: Where it is, for people.
  """

  name: str
  place: str


def claim(source: str, keys: Iterable[str], heir: Heir, counters: Optional[str] = None) -> None:
  """Notes that a run counts from what another one has spent. Another heir is refused from then on.

  Args:
    source: The file, for the message.
    keys: What it says, by digests or ids. Two files of one run have a key in common.
    heir: The run.
    counters: As for `StateFile`.

  Raises:
    StateError: If another run counts from it already. Then nothing is noted.
    OSError: If a file cannot be read or written.
  """
  store = _Store(counters)
  with contextlib.ExitStack() as stack:
    logs = [stack.enter_context(_Log(store.heirs_of(key), waits=True)) for key in sorted(set(keys))]
    for log in logs:
      other = _heir(log.lines)
      if other is not None and other.name != heir.name:
        raise StateError(
          f'{source}: {other.place} counts from it already. What two runs spend from one file is in no account of '
          f'both. Give the file of that run, which carries both. Only if that run released nothing: '
          f'{store.command("unclaim", os.path.realpath(source))}'
        )
    for log in logs:
      if _heir(log.lines) is None:
        log.append(json.dumps(heir))


def unclaim(keys: Iterable[str], counters: Optional[str] = None) -> None:
  """Lets another run count from what was spent. Errors are those of `claim`."""
  store = _Store(counters)
  for key in keys:
    with _Log(store.heirs_of(key), waits=True) as log:
      log.append(_NOTHING)


def heir_of(key: str, counters: Optional[str] = None) -> Optional[Heir]:
  """The run that counts from what has this key; None if none does."""
  try:
    with open(_Store(counters).heirs_of(key), 'rb') as f:
      return _heir(_whole_lines(f.read()))
  except FileNotFoundError:
    return None


def _heir(lines: Sequence[str]) -> Optional[Heir]:
  return Heir(*json.loads(lines[-1])) if lines and lines[-1] != _NOTHING else None


def _states_in(path: str) -> Sequence[str]:
  path = os.path.realpath(path)
  names = [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
  found = [name for name in names if os.path.isfile(name) and is_state(name)]
  if not found:
    raise StateError(f'{path} is not a state of quap_tff, and has none in it.')
  return found


def _locked(log: str, path: str) -> _Log:
  try:
    return _Log(log)
  except BlockingIOError:
    raise StateError(f'{path} is in use. Stop what works with it first.') from None
