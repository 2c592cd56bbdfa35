"""What the binaries share: help that is read on a terminal of 80 columns, errors in one line."""

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import textwrap

from absl import flags
import pytest

from experiments.command import command_line
from experiments.command import flags as experiment_flags
from experiments.command import run_choices as run_parts
from quap_tff.common import registry
from tests import processes
from tests.experiments import harness

BINARIES = sorted(
  path.stem
  for path in (harness.REPOSITORY / 'experiments').glob('*.py')
  if 'command_line.run(main)' in path.read_text(encoding='utf-8')
)


def _tokens(text):
  """Names, paths and numbers, whole."""
  return set(re.findall(r'[\w./|{}*-]+', text))


class TestHelp:
  def test_nothing_is_broken_inside_a_word_or_lost(self):
    values = command_line.new_flags()
    choices = ','.join(f'a_parameter_with_a_long_name_{i}=0.5' for i in range(9))
    path = '/'.join(['a_folder'] * 12)
    words = ' '.join('word' * (i % 5 + 1) for i in range(60))
    flags.DEFINE_string('a_flag', 'value', f'Choices: method:{choices}; {path} {words}.', flag_values=values)
    doc = (
      f'Title.\n\n{words}\n{words}\n\n    python -m experiments.train --a={path} {words}\n\n'
      f'  name   {words}\n  b      c\n'
    )
    text = command_line.help_text(doc, values)
    assert _tokens(f'{doc} {choices} {path}') <= _tokens(text)
    assert ''.join(words.split()) in ''.join(text.split())
    assert all(len(line) <= 80 or path in line for line in text.splitlines())
    assert '\n  b      c\n' in text

  def test_a_command_is_continued_as_a_shell_has_it(self):
    arguments = ' '.join(f'--flag_{i}=value' for i in range(12))
    text = command_line.help_text(f'    python -m x {arguments}', command_line.new_flags())
    lines = text.split('\n\n')[0].splitlines()
    assert len(lines) > 1 and all(line.endswith(' \\') for line in lines[:-1]) and not lines[-1].endswith('\\')
    assert ' '.join(line.rstrip(' \\').strip() for line in lines) == f'python -m x {arguments}'

  def test_groups_and_tables(self):
    values = command_line.new_flags()
    flags.DEFINE_string(
      'method', 'a', 'The method.\na:x=1  the first\n' + 'b' * 30 + '  the second', flag_values=values
    )
    flags.DEFINE_string('other', None, 'Another.', flag_values=values)
    lines = command_line.help_text('Doc.', values, {'What is run': ['method']}).splitlines()
    at = lines.index('What is run:')
    assert '  --other: Another.' in lines[:at] and '  --method: The method.' in lines[at:]
    assert '      a:x=1               the first' in lines[at:]
    below = lines.index('      ' + 'b' * 30)
    assert lines[below + 1] == ' ' * 26 + 'the second'


def _choices(registry_of, flag, prefix=''):
  """Each choice of a flag and of the parameters inside, with the flag's text that names it."""
  for name, choice in registry_of.items():
    spec = f'{prefix}{name}'
    yield f'--{flag}={spec}', choice
    for key, field in registry.parameters(choice).items():
      if registry.CHOICES in field.metadata and not prefix:
        yield from _choices(field.metadata[registry.CHOICES], flag, f'{spec}:{key}=')


_CHOICES = [found for flag, one in run_parts.FLAGS.items() for found in _choices(one.choices or {}, flag)]


class TestChoices:
  """What --help says of the choices that flags name."""

  @pytest.mark.slow
  @pytest.mark.parametrize('argument, choice', _CHOICES, ids=lambda value: value if isinstance(value, str) else '')
  def test_each_parameter_is_explained(self, argument, choice):
    flag, _, spec = argument[2:].partition('=')
    with harness.parsed(argument):
      lines = experiment_flags.help_text([flag], '').splitlines()
    inner = re.search(r':(\w+)=(\w+)$', spec)
    begin = lines.index(f'{inner[1]}={inner[2]}' if inner else f'--{flag}={spec}')
    assert all(len(line) <= 80 for line in lines) and lines[begin + 2]
    rows = re.findall(r'^ {6}(\w+)\s+(\S.*(?:\n {26}.*)*)', '\n'.join(lines[begin:]), re.MULTILINE)
    found = {name: ' '.join(text.split()) for name, text in rows}
    names = list(registry.parameters(choice))
    assert list(found)[: len(names)] == names
    for name in names:
      assert re.fullmatch(r'\S.*\S \(default: \S+\)', found[name]), name

  def test_a_method_names_its_flags_and_a_choice_inside_follows(self, capsys):
    assert harness.main('--help', '--algorithm=scaffold:base=certified:weights=online', '--clip=fixed') == 0
    out = capsys.readouterr().out
    titles = ['--algorithm=scaffold', 'base=certified', 'weights=online', '--clip=fixed']
    assert [line for line in out.splitlines() if line in titles] == titles
    uses = out.partition('Flags that it uses, and that --help alone explains:')[2].partition('\n\n')[0].split()
    assert '--epsilon' in uses and '--warmup_rounds' not in uses and '--clip' not in uses
    # A choice that cannot be made yet is explained, too.
    assert harness.main('--help', '--dataset=npz') == 0
    assert 'test_share' in capsys.readouterr().out

  def test_flags_without_choices_leave_the_whole_help(self, capsys):
    assert harness.main('--help', '--rounds=3', '--noclient_metrics') == 0
    assert 'Flags:' in capsys.readouterr().out

  def test_an_unknown_choice(self, capsys):
    assert harness.main('--help', '--clip=fixd') == command_line.FAILED
    assert "Did you mean 'fixed'" in capsys.readouterr().err


class TestErrors:
  @pytest.mark.parametrize('error', [ValueError('It is wrong.'), OSError(errno.EACCES, 'Permission denied', 'x')])
  def test_are_one_line_and_a_status(self, error, capsys):
    def main(argv):
      raise error

    assert command_line.status_of(main, ['x']) == command_line.FAILED
    assert len(capsys.readouterr().err.splitlines()) == 1

  @pytest.mark.parametrize(
    'argument, words',
    [
      ('--count=a few', "--count must be an integer, found 'a few'."),
      ('--share=half', "--share must be a number, found 'half'."),
      ('--whole=maybe', "--whole must be true or false, found 'maybe'."),
      (
        '--flagfile=/',
        "--flagfile='/' cannot be read (Is a directory). Give a file with one --name=value on each line.",
      ),
      ('--flagfile=absent.flags', "--flagfile: there is no file 'absent.flags'. Presets are in experiments/presets."),
    ],
  )
  def test_a_value_of_another_kind(self, argument, words):
    values = command_line.new_flags()
    flags.DEFINE_integer('count', 1, 'A number.', flag_values=values)
    flags.DEFINE_float('share', 1.0, 'A number.', flag_values=values)
    flags.DEFINE_bool('whole', None, 'Yes or no.', flag_values=values)
    with pytest.raises(ValueError) as caught:
      command_line.parse(values, ['program', argument])
    assert str(caught.value) == words

  def test_a_full_disk_says_what_to_do(self, capsys):
    def main(argv):
      raise OSError(errno.ENOSPC, 'No space left on device')

    assert command_line.status_of(main, ['x']) == command_line.FAILED
    assert 'Make room' in capsys.readouterr().err


@pytest.mark.slow
class TestEnds:
  def test_a_reader_of_the_help_that_goes_away_is_no_error(self):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
      command = [sys.executable, '-m', 'experiments.train', '--help']
      process = processes.run(command, cwd=harness.REPOSITORY, stdout=closed, stderr=subprocess.PIPE)
    # A short text is written when the program has ended already, with success.
    assert process.returncode in (0, command_line.FAILED) and not process.stderr

  @pytest.mark.parametrize('name, place', [('SIGINT', 'absl'), ('SIGTERM', 'numpy')])
  def test_a_signal_while_modules_are_imported_is_no_traceback(self, place, name, tmp_path):
    (tmp_path / place).mkdir()
    (tmp_path / place / '__init__.py').write_text(f'import os, signal\nos.kill(os.getpid(), signal.{name})\n')
    command = [sys.executable, '-m', 'experiments.train', '--help']
    process = processes.run(command, cwd=harness.REPOSITORY, env={**os.environ, 'PYTHONPATH': str(tmp_path)})
    assert (process.returncode, process.stderr) == (command_line.INTERRUPTED, '\nInterrupted.\n')

  @pytest.mark.parametrize('name, installed', [('SIGINT', False), ('SIGTERM', True)])
  def test_a_signal_before_the_end_of_main_is_said(self, name, installed):
    process = _child(f"""
        def main(argv):
          if {installed}:
            interrupts.install()
          os.kill(os.getpid(), signal.{name})
        command_line.run(main)
    """)
    assert (process.returncode, process.stderr) == (command_line.INTERRUPTED, '\nInterrupted.\n')

  @pytest.mark.parametrize('name, status', [('SIGINT', 0), ('SIGTERM', 3)])
  def test_a_signal_while_python_ends_changes_nothing(self, name, status):
    process = _child(f"""
        import atexit
        def signalled(kill=os.kill, pid=os.getpid(), signum=signal.{name}, write=os.write):
          kill(pid, signum)
          write(1, b'.')
        class Last:
          __del__ = lambda self, signalled=signalled: signalled()
        def main(argv):
          interrupts.install()
          atexit.register(signalled)
          sys.kept = Last()  # Its finalizer is called after Python has given up handlers.
          return {status}
        command_line.run(main)
    """)
    assert (process.returncode, process.stdout, process.stderr) == (status, '..', '')

  @pytest.mark.thorough
  def test_tff_does_not_complain_at_the_end(self):
    pytest.importorskip('tensorflow_federated')
    process = _child("""
        from quap_tff.common import lazy
        command_line.run(lambda argv: lazy.load('experiments.attacking.membership_study') and 0)
    """)
    assert (process.returncode, process.stderr) == (0, '')

  def test_a_missing_package_is_one_line(self):
    process = _child(
      """
        from quap_tff.common import lazy
        command_line.run(lambda argv: lazy.load('kymatio'))
    """,
      missing=['kymatio'],
    )
    assert process.returncode == command_line.FAILED and len(process.stderr.splitlines()) == 1
    assert process.stderr.startswith('Error: quap_tff needs the package kymatio, which is not installed')


# Modules of the packages that only TFF's environment has, and `pip install .` does not install.
_OF_TFF = [
  'PIL',
  'cryptography',
  'grpc',
  'h5py',
  'jax',
  'kymatio',
  'matplotlib',
  'psutil',
  'sklearn',
  'tensorflow',
  'tensorflow_federated',
  'tensorflow_privacy',
  'tqdm',
  'tree',
]


def _child(code, missing=()):
  """Runs code in a process of its own, in which some packages are missing."""
  before = f"""
      import importlib.abc, os, signal, sys
      class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
          if name.partition('.')[0] in {list(missing)}:
            raise ModuleNotFoundError('No module named ' + repr(name), name=name)
      sys.meta_path.insert(0, Missing())
      from experiments.command import command_line, interrupts
  """
  return processes.run([sys.executable, '-c', textwrap.dedent(before) + textwrap.dedent(code)], cwd=harness.REPOSITORY)


def _answers(calls, missing):
  """Status, standard output and error of each `[binary, *arguments]`, all in one process without some packages."""
  pytest.importorskip('pandas')  # Some binaries import it at once.
  process = _child(
    f"""
        import contextlib, importlib, io, json
        for name, *arguments in {calls}:
          with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            main = importlib.import_module('experiments.' + name).main
            status = command_line.status_of(main, [name, *arguments])
          print(json.dumps([status, out.getvalue(), err.getvalue()]))
    """,
    missing=missing,
  )
  assert process.returncode == 0, process.stderr
  return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.slow
class TestWithoutTff:
  def test_every_binary_has_its_help_in_80_columns(self):
    answers = _answers([[binary, '--help'] for binary in BINARIES], [*_OF_TFF, 'scipy'])
    for binary, (status, text, _) in zip(BINARIES, answers):
      assert status == 0 and 'Flags:' in text and '--[no]help: Show this help.' in text, binary
      for line in text.splitlines():
        # Only a word that is longer than a line, such as a quoted grid of a sweep, makes a longer line.
        assert len(line) <= 80 or len(line.split()) <= 2, (binary, line)

  def test_work_that_needs_it_says_so_in_one_line(self, tmp_path):
    preset = f'--flagfile={harness.PRESETS / "demo.flags"}'
    calls = [
      ['attack'],
      ['benchmark', '--device=gpu'],
      ['survey'],
      ['pretrain', f'--output={tmp_path}/extractor'],
      ['train', preset, f'--output_dir={tmp_path}/run', '--progress=none'],
    ]
    for call, (status, _, error) in zip(calls, _answers(calls, _OF_TFF)):
      assert status == command_line.FAILED, call
      assert error.startswith('Error: quap_tff needs the package ') and len(error.splitlines()) == 1, (call, error)
      assert error.endswith('pip install --no-deps -r requirements.txt\n') and not list(tmp_path.iterdir()), call


@pytest.mark.slow
class TestTemporaryFolder:
  @contextlib.contextmanager
  def _process(self, parent):
    """A process with a folder of its own in `parent`, in which it has a file."""
    code = (
      'import sys, tempfile\nfrom experiments.command import command_line\ncommand_line.use_own_temporary_folder()\n'
      'tempfile.mkstemp()\nprint(tempfile.gettempdir(), flush=True)\nsys.stdin.read()\n'
    )
    process = subprocess.Popen(
      [sys.executable, '-c', code],
      cwd=harness.REPOSITORY,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      encoding='utf-8',
      env={**os.environ, 'TMPDIR': str(parent)},
    )
    with process:
      try:
        yield process, process.stdout.readline().strip()
      finally:
        process.kill()

  def test_goes_with_the_process(self, tmp_path):
    with self._process(tmp_path) as (process, folder):
      assert os.path.dirname(folder) == str(tmp_path) and len(os.listdir(folder)) == 1
      process.stdin.close()
      assert process.wait(timeout=processes.DEADLINE_SECONDS) == 0
    assert not list(tmp_path.iterdir())

  def test_of_a_killed_process_goes_at_the_next_start_and_no_other(self, tmp_path):
    (tmp_path / 'quap_tff_a_file').touch()
    (tmp_path / 'of_others').mkdir()
    with self._process(tmp_path) as (killed, left), self._process(tmp_path) as (_, held):
      killed.kill()
      killed.wait()
      assert os.path.isdir(left)
      with self._process(tmp_path) as (_, third):
        assert sorted(tmp_path.iterdir()) == sorted(
          [tmp_path / 'quap_tff_a_file', tmp_path / 'of_others', *map(type(tmp_path), (held, third))]
        )

  def test_a_folder_that_cannot_be_made_is_none(self, tmp_path, monkeypatch):
    monkeypatch.setattr(command_line.tempfile, 'tempdir', str(tmp_path / 'absent'))
    command_line.use_own_temporary_folder()
    assert command_line.tempfile.tempdir == str(tmp_path / 'absent')
