"""Parts that all programs share: flags, errors in one line, and an end without a traceback on a signal or closed pipe.

Each binary has flag values of its own: in one process with other binaries, flags of the same name must not meet.
"""

import atexit
from collections.abc import Iterable, Mapping, Sequence
import copy
import errno
import fcntl
import gc
import io
import os
import re
import shutil
import signal
import sys
import tempfile
from typing import Any, Callable, Optional

from absl import flags

import experiments
from quap_tff.common import checks
from quap_tff.common import lazy

# Prefixes of temporary folders, in the system's folder of these.
_TEMPORARY, _BEING_MADE = 'quap_tff_', '.quap_tff_'

# Where TFF sets its default context, once it is loaded.
_TFF_CONTEXTS = 'tensorflow_federated.python.core.impl.context_stack.set_default_context'

FAILED, INTERRUPTED = 1, 130

_COLUMNS = 80
# The width of the names in a table of a flag's help.
_NAME_COLUMNS = 20
# `name:key=value,…`, as opposed to a sentence with a comma in it.
_SPEC = re.compile(r'\w=[^,]*,\w')

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _FlagValues(flags.FlagValues):
  """Flag values whose numbers are written in plain digits, see `checks.parsed_number`."""

  def __setitem__(self, name: str, flag: flags.Flag) -> None:
    if isinstance(flag.parser, (flags.IntegerParser, flags.FloatParser)):
      absl_convert = flag.parser.convert

      def convert(written: checks.Unchecked) -> checks.Unchecked:
        return checks.parsed_number(written, absl_convert) if isinstance(written, str) else absl_convert(written)

      flag.parser = copy.copy(flag.parser)  # absl shares parsers among all flags of a process.
      flag.parser.convert = convert
    super().__setitem__(name, flag)


def new_flags() -> flags.FlagValues:
  """Flag values with nothing but --help, for a module's `flags.DEFINE_…(…, flag_values=…)`."""
  values = _FlagValues()
  flags.DEFINE_bool('help', False, 'Show this help.', short_name='h', flag_values=values)
  return values


class HelpShown(Exception):
  """--help was given, and there is nothing more to do. `status_of` takes it for success."""


def parse(
  values: flags.FlagValues, argv: Sequence[str], doc: Optional[str] = None, known_only: bool = False
) -> list[str]:
  """Sets the flags from `argv[1:]`, the others to their defaults (a second call starts anew).

  Args:
    values: The flags.
    argv: The program's name and its arguments.
    doc: The program's docstring, for --help; None if the caller answers --help itself.
    known_only: Whether flags that are not among these are returned with the other arguments.

  Returns:
    The arguments that are not flags.

  Raises:
    ValueError: For an unknown flag, a value that it does not take, or a flag file that cannot be read.
    HelpShown: If --help is given and `doc` is.
  """
  for name in values:
    values[name].unparse()
  try:
    rest = values(list(argv), known_only=known_only)[1:]
  except UnicodeDecodeError as error:
    raise ValueError(f'A flag file must be text ({error}): a flag file has one --name=value on a line.') from None
  except (flags.Error, OSError) as error:
    raise ValueError(_in_words(' '.join(str(error).split()))) from None
  if doc is not None and values.help:
    print(help_text(doc, values))
    raise HelpShown
  return rest


def _in_words(error: str) -> str:
  """An error of absl's, with what was expected where Python's own words do not say it."""
  number = re.fullmatch(r'flag (--\w+)=(.*): (invalid literal for int\(\)|could not convert string to float).*', error)
  if number:
    kind = 'an integer' if 'int()' in number[3] else 'a number'
    return f'{number[1]} must be {kind}, found {number[2]!r}.'
  truth = re.fullmatch(r"flag (--\w+)=(.*): \('Non-boolean argument to boolean flag', .*\)", error)
  if truth:
    return f'{truth[1]} must be true or false, found {truth[2]!r}.'
  unread = re.fullmatch(r'ERROR:: Unable to open flagfile: \[Errno \d+\] (.*): (.*)', error)
  if unread and unread[1] != 'No such file or directory':
    return f'--flagfile={unread[2]} cannot be read ({unread[1]}). Give a file with one --name=value on each line.'
  absent = re.fullmatch(r'ERROR:: Unable to open flagfile: .*No such file or directory: (.*)', error)
  return f'--flagfile: there is no file {absent[1]}. Presets are in experiments/presets.' if absent else error


def help_text(doc: str, values: flags.FlagValues, groups: Optional[Mapping[str, Sequence[str]]] = None) -> str:
  """The text that --help prints: a module's docstring and the flags, 80 columns wide, no line broken inside a word.

  Only a word that is longer than a line makes a longer line. A specification (`name:key=value,key=value`) may be broken
  after a comma.

  Args:
    doc: The docstring.
    values: The flags. In the help of a flag, each line after the first is a row of a table, `name  text`.
    groups: Names of flags that are shown together, by the title of the group. The other flags come first.
  """
  lines = _paragraphs(doc)
  groups = groups or {}
  grouped = {name for names in groups.values() for name in names}
  lines.append('Flags:')
  for flag in sorted({values[name] for name in values} - {values[name] for name in grouped}, key=lambda f: f.name):
    lines += _flag_help(flag)
  lines += filled(
    '--flagfile: A file with one --name=value on each line. They are set as if they were given here.', '  ', '    '
  )
  for title, names in groups.items():
    lines += ['', f'{title}:']
    for name in names:
      lines += _flag_help(values[name])
  return '\n'.join(lines)


def entry(title: str, doc: str, rows: Iterable[tuple[str, str]]) -> list[str]:
  """The lines of help on one thing: its title, a docstring, and a table of (name, text)."""
  lines = [*filled(title, '', '  '), '', *_paragraphs(doc)]
  for row in rows:
    lines += _row(*row)
  return lines


def _paragraphs(doc: str) -> list[str]:
  """The paragraphs of a docstring, with an empty line after each."""
  lines = []
  for paragraph in re.split(r'\n\s*\n', doc.strip('\n')):
    rows = paragraph.splitlines()
    if any(row.startswith(' ') for row in rows):
      lines += [line for row in rows for line in _indented(row)]
    else:
      lines += filled(' '.join(rows))
    lines.append('')
  return lines


def filled(text: str, first: str = '', later: str = '', end: str = '') -> list[str]:
  """The words of a text in lines of at most 80 columns.

  Args:
    text: Any white space in it divides words.
    first: The beginning of the first line.
    later: The beginning of the other lines.
    end: The end of all lines but the last.
  """
  lines, line = [], first
  for word in text.split():
    pieces = [word]
    if len(later) + len(word) + len(end) > _COLUMNS and _SPEC.search(word):
      pieces = re.findall(r'[^,]*,|[^,]+', word)
    for piece in pieces:
      glue = ' ' if piece is pieces[0] and line.strip() and line not in (first, later) else ''
      if len(line) + len(glue) + len(piece) + len(end) > _COLUMNS and line not in (first, later):
        ending = end if piece is pieces[0] else ''
        lines.append(line + ending)
        line, glue = later, ''
      line += glue + piece
  return [*lines, line]


def _indented(row: str) -> list[str]:
  """A row of a docstring that stands by itself: of a table, or a command."""
  if len(row) <= _COLUMNS:
    return [row]
  indent = ' ' * (len(row) - len(row.lstrip()))
  table = re.match(r'\s*\S+\s{2,}', row)
  if table:
    return filled(row[table.end() :], table.group(), ' ' * table.end())
  if row.lstrip().startswith(('python ', '--')):
    continued = ' \\' if row.endswith('\\') else ''
    lines = filled(row.rstrip(' \\'), indent, indent + '    ', ' \\')
    return lines[:-1] + [lines[-1] + continued]
  return filled(row, indent, indent)


def _flag_help(flag: flags.Flag) -> list[str]:
  name = f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}'
  name = f'-{flag.short_name}, {name}' if flag.short_name else name
  notes = []
  if flag.default is not None and flag.default is not False and flag.default not in ([], ''):
    notes.append('default: ' + flag.default_as_str.strip("'"))
  if flag.parser.syntactic_help:
    notes.append(flag.parser.syntactic_help)
  text, *rows = flag.help.split('\n')
  lines = filled(f'{name}: {text}', '  ', '    ')
  lines += filled(f'({"; ".join(notes)})', '    ', '    ') if notes else []
  for row in rows:
    lines += _row(*row.split('  ', 1))
  return lines


def _row(name: str, text: str) -> list[str]:
  """A row of a table in a flag's help: on one line if it has room, or else the text below the name."""
  if len(name) < _NAME_COLUMNS:
    return filled(text, f'      {name:<{_NAME_COLUMNS}}', ' ' * (6 + _NAME_COLUMNS))
  return filled(name, '      ', '        ') + filled(text, ' ' * (6 + _NAME_COLUMNS), ' ' * (6 + _NAME_COLUMNS))


def refuse_arguments(arguments: Sequence[str]) -> None:
  """Raises `ValueError` if there are any."""
  if arguments:
    raise ValueError(f'Unexpected argument {arguments[0]!r}; flags are written --name=value.')


def given_names(argv: Sequence[str]) -> list[str]:
  """The names of the flags that appear in `argv[1:]` itself, as opposed to those in flag files."""
  names = []
  for argument in argv[1:]:
    if argument == '--':
      break
    if argument.startswith('-'):
      names.append(argument.lstrip('-').partition('=')[0])
  return names


def error_text(error: BaseException) -> str:
  """An error in words, with what to do where a disk, a quota or a limit on the size of files is full."""
  cause: Optional[BaseException] = error
  while cause is not None:
    is_full = isinstance(cause, OSError) and cause.errno in _NO_ROOM
    # TensorFlow's file system has errors of its own.
    if is_full or type(cause).__name__ == 'ResourceExhaustedError' or 'No space left on device' in str(cause):
      return f'{error}. Make room and give the same command again: everything that was kept before is still there.'
    cause = cause.__cause__
  return str(error)


def run(main: Callable[[list[str]], int]) -> None:
  """Runs a binary's main with the command line and ends the process with the status that it returns.

  A reader of the output that goes away ends the process without a word. Until main installs handlers of its own, Ctrl-C
  and SIGTERM end the process at once. When main has returned, nothing is left to interrupt: they are ignored, and the
  status is the one that main gave.
  """
  _on_signals(experiments.leave)
  use_own_temporary_folder()
  # An ε that the terminal's encoding does not have must not end a program.
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # It was closed. Nothing that is written there matters to anybody.
      setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w', encoding='utf-8'))
    if isinstance(stream, io.TextIOWrapper):  # A test may have put another object in its place.
      stream.reconfigure(errors='backslashreplace')
  status = INTERRUPTED
  try:
    status = status_of(main, sys.argv)
  except KeyboardInterrupt:
    _say_interrupted()  # It came between main's return and the next line.
  # Python itself gives up handlers while it ends, but goes on ignoring what is ignored.
  _on_signals(signal.SIG_IGN)
  _end(status)


def _on_signals(handler: Any) -> None:
  for signum in experiments.SIGNALS:
    signal.signal(signum, handler)


def use_own_temporary_folder() -> None:
  """Gives this process's temporary files a folder of their own, which is removed when it ends.

  TensorFlow writes every function that it compiles to a temporary file, and removes these files only at a regular end.
  So each start also removes the folders of processes that were killed: those that no process holds locked any more.
  """
  try:
    parent = tempfile.gettempdir()
    _remove_abandoned(parent)
    made = tempfile.mkdtemp(dir=parent, prefix=_BEING_MADE)
    # Locked before it has the name under which others look for it; open until the process ends.
    fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)
    folder = os.path.join(parent, _TEMPORARY + os.path.basename(made)[len(_BEING_MADE) :])
    os.rename(made, folder)
  except OSError:
    return  # A full disk, say. The first use of a temporary file will report it.
  tempfile.tempdir = folder
  atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _remove_abandoned(parent: str) -> None:
  for name in os.listdir(parent):
    if not name.startswith(_TEMPORARY):
      continue
    path = os.path.join(parent, name)
    try:
      folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
      continue
    try:
      if os.fstat(folder).st_uid == os.geteuid():
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
      pass  # A process at work holds it.
    finally:
      os.close(folder)


def status_of(main: Callable[[list[str]], int], argv: list[str]) -> int:
  """The result of main; an error of input, files, memory or packages that it lets through is said in one line."""
  try:
    return main(argv)
  except HelpShown:
    return 0
  except BrokenPipeError:
    return FAILED
  except KeyboardInterrupt:
    _say_interrupted()
    return INTERRUPTED
  except (ValueError, OSError, MemoryError, lazy.MissingPackageError) as error:
    print(f'Error: {error_text(error) or type(error).__name__}', file=sys.stderr)
    return FAILED


def _say_interrupted() -> None:
  print('\nInterrupted.', file=sys.stderr)


def _end(status: int) -> None:
  """Ends the process. Output that nobody can receive any more is dropped."""
  contexts: Any = sys.modules.get(_TFF_CONTEXTS)
  if hasattr(contexts, 'set_no_default_context'):
    # Python may delete the context that TFF makes by default after what its finalizer needs, which would then complain.
    contexts.set_no_default_context()
  try:
    sys.stdout.flush()
    sys.stderr.flush()
  except OSError:
    # Python would say so once more when it ends and flushes.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      os.dup2(nowhere, stream.fileno())
  # Python looks for garbage several times as it ends. After TensorFlow that takes longer than a second.
  gc.freeze()
  sys.exit(status)
