"""The units of `deploy/`: systemd takes them, they are confined, and the programs that they start know their flags."""

import ast
import pathlib
import re
import shlex
import shutil
import types

from packaging import requirements
import pytest

from quap_tff.flower import __main__ as flower
from tests import processes

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_UNITS = sorted((_ROOT / 'deploy').glob('*.service'))
_PROGRAMS = '/opt/quap/bin/'
# Of 100: `systemd-analyze security` calls up to 20 well confined.
_LARGEST_EXPOSURE = 20
_ON_CALL_WORDS = 700

_analyze = pytest.mark.skipif(shutil.which('systemd-analyze') is None, reason='systemd-analyze is not installed.')


def _text(name):
  return (_ROOT / 'deploy' / f'{name}.service').read_text(encoding='utf-8')


def _values(text, key):
  """All values of a key, with continued lines joined."""
  return re.findall(rf'^{key}=(.*)$', text.replace('\\\n', ' '), re.MULTILINE)


def _command(name, **environment):
  """The words of the command that a unit starts."""
  [line] = _values(_text(name), 'ExecStart')
  for variable, value in environment.items():
    line = line.replace(f'${{{variable}}}', value)
  assert '$' not in line
  return shlex.split(line)


def _started(monkeypatch, program, name, **environment):
  """What the program of a unit is given, which is not started."""
  given = []
  monkeypatch.setattr(flower, program, types.SimpleNamespace(main=lambda *arguments: given.append(arguments)))
  monkeypatch.setattr(flower.enrolment, 'clients_text', lambda folder: '0-24')
  monkeypatch.setattr(flower.logs, 'begin', lambda *how: None)
  python, *module = _command(name, **environment)
  assert python == f'{_PROGRAMS}python' and module[:2] == ['-m', 'quap_tff.flower']
  assert flower.main(module[2:]) == 0
  [arguments] = given
  return arguments


@pytest.fixture(name='installed')
def _installed(tmp_path):
  """The units, with programs that exist."""
  for program in ('python', 'flower-superlink'):
    (tmp_path / program).write_text('#!/bin/sh\n')
    (tmp_path / program).chmod(0o755)
  for unit in _UNITS:
    (tmp_path / unit.name).write_text(unit.read_text().replace(_PROGRAMS, f'{tmp_path}/'))
  return tmp_path


def test_there_is_a_unit_for_each_machine():
  assert [unit.stem for unit in _UNITS] == ['quap-node', 'quap-server', 'quap-superlink']


@pytest.mark.slow
@_analyze
@pytest.mark.parametrize('unit', _UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it(unit, installed):
  found = processes.run(['systemd-analyze', 'verify', '--man=no', installed / unit.name])
  complaints = [line for line in found.stderr.splitlines() if unit.name in line or str(installed) in line]
  assert found.returncode == 0 and not complaints, found.stderr


@pytest.mark.slow
@_analyze
@pytest.mark.parametrize('unit', _UNITS, ids=lambda unit: unit.stem)
def test_it_is_confined(unit, installed):
  arguments = ['--offline=true', f'--threshold={_LARGEST_EXPOSURE}', '--no-pager', installed / unit.name]
  found = processes.run(['systemd-analyze', 'security', *arguments])
  if 'offline' in found.stderr and 'unrecognized' in found.stderr:
    pytest.skip('This systemd-analyze looks at running units alone.')
  assert found.returncode == 0, found.stdout[-2000:] + found.stderr


@pytest.mark.parametrize('unit', _UNITS, ids=lambda unit: unit.stem)
def test_it_is_started_again_after_a_pause_as_a_user_of_its_own(unit):
  text = unit.read_text(encoding='utf-8')
  assert _values(text, 'Restart') == ['always'] and int(_values(text, 'RestartSec')[0]) >= 10
  assert _values(text, 'StartLimitIntervalSec') == ['0']
  [user] = _values(text, 'User')
  assert user == unit.stem == _values(text, 'StateDirectory')[0]
  users = (_ROOT / 'deploy' / 'quap.sysusers').read_text(encoding='utf-8')
  assert re.search(rf'^u {user} - "[^"]+" /var/lib/{user}$', users, re.MULTILINE)
  assert _values(text, 'WorkingDirectory') == [f'/var/lib/{user}']


@pytest.mark.parametrize('name', ['quap-server', 'quap-superlink'])
def test_what_nodes_do_not_need_is_on_this_machine_alone(name):
  assert _values(_text(name), 'IPAddressDeny') == ['any'] and _values(_text(name), 'IPAddressAllow') == ['localhost']


class TestCommands:
  def test_of_a_node(self, monkeypatch):
    config, options, of_log = _started(
      monkeypatch, 'node_program', 'quap-node', SUPERLINK='example.org:8443', DATA='mine:examples', ENROLMENT=''
    )
    assert config['folder'] == 'node' and config['data'] == 'mine:examples' and config['enrolment'] == ''
    assert '--name=%H' in of_log
    assert '--superlink=example.org:8443' in options and '--root-certificates=server.pem' in options

  def test_of_the_server(self, monkeypatch):
    assert _started(monkeypatch, 'server_program', 'quap-server') == (
      'app',
      '127.0.0.1:8000',
      'server.pem',
      'superexec.secret',
      '',
    )

  def test_of_the_superlink_is_that_of_the_page(self):
    page = (_ROOT / 'docs' / 'deploy.md').read_text(encoding='utf-8').replace('\\\n', ' ')
    [line] = re.findall(r'^    (flower-superlink .*)$', page, re.MULTILINE)
    program, *options = _command('quap-superlink')
    assert program == f'{_PROGRAMS}flower-superlink' and options == shlex.split(line)[1:]

  def test_flower_knows_the_flags_of_the_superlink(self):
    superlink = pytest.importorskip('flwr.superlink.cli.flower_superlink')
    _, *options = _command('quap-superlink')
    superlink._parse_args_run_superlink().parse_args(options)

  def test_the_environment_of_a_node_is_what_its_unit_says(self):
    asked = set(re.findall(r'\$\{(\w+)\}', _text('quap-node')))
    assert asked == set(re.findall(r'^#   (\w+)=', _text('quap-node'), re.MULTILINE)) != set()


def _sentences():
  """What the programs can say, with `…` in place of values."""
  for path in (_ROOT / 'quap_tff' / 'flower').rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, ast.JoinedStr):
        yield ''.join(part.value if isinstance(part, ast.Constant) else '…' for part in node.values)
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r'%[-.\d]*[sdfgr]', '…', node.value)


def test_each_line_on_the_page_for_who_is_on_call_is_said_by_a_program():
  page = (_ROOT / 'docs' / 'on_call.md').read_text(encoding='utf-8')
  rows = page.partition('| line | what to do |')[2].partition('\n\n')[0].splitlines()
  lines = [line for row in rows for line in re.findall(r'\*([^*|]+)\*', row)]
  sentences = list(_sentences())
  assert len(lines) > 10
  for line in lines:
    assert any(line in sentence for sentence in sentences), line


def test_the_lock_file_has_what_the_extra_of_a_node_and_a_server_asks_for():
  text = (_ROOT / 'deploy' / 'requirements.lock').read_text(encoding='utf-8')
  locked = dict(re.findall(r'^([\w.-]+)==(\S+)$', text, re.MULTILINE))
  assert not re.search('://|^-', text, re.MULTILINE)
  tomllib = pytest.importorskip('tomllib', reason='Python 3.10 reads no TOML.')
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
  asked = [*project['dependencies'], *project['optional-dependencies']['flower']]
  wanted = [requirements.Requirement(one) for one in asked]
  assert len(wanted) > 6
  for one in wanted:
    assert one.specifier.contains(locked[one.name]), one


def test_the_page_for_who_is_on_call_is_short_and_names_each_unit():
  page = (_ROOT / 'docs' / 'on_call.md').read_text(encoding='utf-8')
  assert len(page.split()) <= _ON_CALL_WORDS
  assert all(f'`{unit.stem}`' in page for unit in _UNITS)
