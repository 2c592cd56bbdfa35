"""The command `python -m quap_tff.verify`: one of four answers for every folder, and never a traceback."""

import os
import subprocess
import sys

import pytest

from quap_tff import certificates
from quap_tff import verify
from quap_tff.certificates import page
from quap_tff.certificates import verifying
from quap_tff.certificates.folders import evidence
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from tests.quap_tff.certificates import made


def _snapshot(path):
  return {one: (one.stat().st_mtime_ns, one.read_bytes() if one.is_file() else b'') for one in [path, *path.rglob('*')]}


# Of the statement, by the name of a run.
_BEGINNINGS = {'certified': 'In integers, with a trusted server', 'held': 'If each secure sum opens for all clients'}


class TestAnswers:
  @pytest.mark.parametrize('name', ['certified', 'held'])
  def test_valid(self, name, request, capsys):
    path = request.getfixturevalue(name)
    before = _snapshot(path)
    assert verify.main([str(path)]) == 0
    out, err = capsys.readouterr()
    said = out.partition('\n')[2]
    assert out.startswith('VALID\n') and said.startswith(_BEGINNINGS[name]) and not err
    assert 'for each of the 6 clients with ε = 3 and δ = 1e-05' in out and out.endswith('that the run took place.\n')
    assert _snapshot(path) == before

  def test_a_folder_that_nobody_may_write(self, certified, capsys):
    for one in certified.iterdir():
      one.chmod(0o444)
    certified.chmod(0o555)
    try:
      assert made.answer(certified, capsys)[0] == 0
    finally:
      certified.chmod(0o755)

  @pytest.mark.parametrize('version', [0, 1, 2, 3, 4, 5, 6, 8, 99, -1])
  @pytest.mark.parametrize('name', [folders.CERTIFICATE, folders.MECHANISM])
  def test_another_version(self, name, version, certified, capsys):
    if name == folders.MECHANISM:
      made.change(certified, name, lambda value: value.update(version=version))
      made.reseal(certified)
    else:
      claims = {'guarantee': {'epsilon': 0.1, 'trust': 'nobody', 'colluders': []}, 'statement': 'ε = 0 for all.'}
      made.reseal(certified, lambda value: value.update(version=version, **claims))
    status, lines = made.answer(certified, capsys)
    assert status == 2 and lines == [
      'CANNOT BE VERIFIED',
      f'  {name} has version {version}, and this program knows version 7 alone.',
    ]

  def test_no_folder(self, tmp_path, capsys):
    assert made.answer(tmp_path / 'nowhere', capsys) == (
      2,
      ['CANNOT BE VERIFIED', f'  {tmp_path}/nowhere does not exist.'],
    )
    (tmp_path / 'file').write_text('x')
    assert made.answer(tmp_path / 'file', capsys) == (2, ['CANNOT BE VERIFIED', f'  {tmp_path}/file is not a folder.'])
    (tmp_path / 'file').unlink()
    status, lines = made.answer(tmp_path, capsys)
    assert status == 2 and lines[1] == f'  {tmp_path} holds no certificate.json. Only certified runs have one.'

  def test_a_key_that_cannot_be_read(self, certified, tmp_path, capsys):
    status, lines = made.answer(certified, capsys, f'--public_key={tmp_path / "nowhere.pem"}')
    assert status == 2 and 'cannot be read' in lines[1]

  def test_a_file_that_may_not_be_read(self, certified, monkeypatch, capsys):
    real = open

    def guarded(file, *arguments, **options):
      if str(file).endswith(folders.LEDGER):
        raise PermissionError(13, 'Permission denied')
      return real(file, *arguments, **options)

    monkeypatch.setattr('builtins.open', guarded)
    status, lines = made.answer(certified, capsys)
    assert status == 2 and lines[1] == '  ledger.npz may not be read here: Permission denied.'

  @pytest.mark.parametrize('name', [folders.LEDGER, folders.CLIENTS, folders.ARRAYS_MODEL, folders.PAGE])
  def test_a_file_that_vanishes_meanwhile(self, name, certified, monkeypatch, capsys):
    found = folder_files.entries(str(certified))
    monkeypatch.setattr(folder_files, 'entries', lambda path: found)
    (certified / name).unlink()
    status, lines = made.answer(certified, capsys)
    assert (status, lines[0]) == ((0, 'VALID') if name == folders.PAGE else (1, 'INVALID'))

  def test_a_population_that_is_too_large(self, certified, capsys):
    made.change(certified, folders.MECHANISM, lambda value: value['mechanism'].update(num_clients=2**31 - 1))
    status, lines = made.answer(certified, capsys)
    assert status == 2 and 'verifies runs of at most 10,000,000' in lines[1]

  @pytest.mark.parametrize('name', ['h5py', 'jinja2'])
  def test_a_package_that_is_missing(self, name, tmp_path, monkeypatch, capsys):
    path = made.folder(tmp_path / 'run', model=made.keras(tmp_path / 'model.keras', made.WEIGHTS))
    page._template.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    status, lines = made.answer(path, capsys)
    assert status == 2 and lines[0] == 'CANNOT BE VERIFIED' and f'the package {name},' in lines[1]

  def test_a_package_that_reads_keys_is_missing(self, certified, tmp_path, monkeypatch, capsys):
    _, public = made.keys(tmp_path / 'keys')
    monkeypatch.setitem(sys.modules, 'cryptography.hazmat.primitives.serialization', None)
    status, lines = made.answer(certified, capsys, f'--public_key={public}')
    assert status == 2 and 'the package cryptography,' in lines[1]
    assert made.answer(certified, capsys)[0] == 0

  def test_a_fault_of_the_program(self, certified, monkeypatch, capsys):
    monkeypatch.setattr(evidence, 'problems', lambda _: 1 / 0)
    assert made.answer(certified, capsys) == (
      2,
      ['CANNOT BE VERIFIED', '  This folder shows a fault of this program: ZeroDivisionError: division by zero'],
    )

  def test_code_that_was_changed_is_only_a_warning(self, certified, capsys):
    made.change(certified, folders.MECHANISM, lambda value: value['code'].update(source_sha256='0' * 64))
    made.reseal(certified)
    assert verify.main([str(certified)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\n') and err.startswith('Warning: The run was made by other code') and '0000' in err

  def test_rounds_by_other_code_are_named_first(self, certified, capsys):
    def change(value):
      one = {'first_round': 1, 'last_round': 2, 'code': value['code'], 'versions': {'python': '3.11'}}
      other = {**one, 'first_round': 3, 'last_round': 4, 'code': {'quap_tff': '0.3.1', 'source_sha256': 'c' * 64}}
      value['issuer']['stretches'] = [one, other]

    made.change(certified, folders.MECHANISM, change)
    made.reseal(certified)
    status, lines = made.answer(certified, capsys)
    assert status == 0 and lines[1].startswith('The rounds were run by different code.')
    assert lines[2].startswith('  rounds 1 to 2: quap_tff') and lines[3].endswith(f'quap_tff 0.3.1, source {"c" * 64}')
    assert 'run in 2 stretches' in lines[4]


class TestCommand:
  def test_several_folders(self, certified, held, tmp_path, capsys):
    arguments = [str(certified), str(held), str(tmp_path / 'nowhere')]
    assert verify.main(arguments[:2]) == 0
    assert capsys.readouterr().out.startswith(f'{certified}:\nVALID\n')
    assert verify.main(arguments) == 2
    out = capsys.readouterr().out
    assert f'\n{held}:\nVALID\n' in out and out.endswith(f'{tmp_path}/nowhere does not exist.\n')
    (held / 'more').write_text('x')
    assert verify.main(arguments) == 1

  @pytest.mark.parametrize('arguments', [[], ['--unknown=1', 'a']])
  def test_wrong_arguments(self, arguments, capsys):
    with pytest.raises(SystemExit) as error:
      verify.main(arguments)
    assert error.value.code == 2 and 'usage' in capsys.readouterr().err

  def test_no_text_of_a_folder_commands_the_terminal_or_adds_a_line(self, capsys):
    problem = 'a\nVALID\x1b[2J\u202e\udcff\u2028ε “x” 日本'
    assert verifying.answer(lambda: certificates.Verdict([problem], [problem], [], '')) == 1
    out, err = capsys.readouterr()
    assert out == 'INVALID\n  a\\nVALID\\x1b[2J\\u202e\\udcff\\u2028ε “x” 日本\n'
    assert err == 'Warning: a\\nVALID\\x1b[2J\\u202e\\udcff\\u2028ε “x” 日本\n'

  def _run(self, *arguments, code='', **environment):
    start = 'import runpy, sys\nsys.argv[0] = "verify"\n'
    end = 'runpy.run_module("quap_tff.verify", run_name="__main__")'
    return subprocess.run(
      [sys.executable, '-c', start + code + end, *arguments],
      env={**os.environ, **environment},
      capture_output=True,
      timeout=120,
      check=False,
    )

  @pytest.mark.slow
  def test_it_loads_no_tensorflow(self, certified):
    code = (
      'import atexit\n'
      'bad = lambda: [n for n in sys.modules if n.startswith(("tensorflow", "jax", "experiments"))]\n'
      'atexit.register(lambda: print(*bad(), file=sys.stderr))\n'
    )
    done = self._run(str(certified), code=code)
    assert done.returncode == 0 and done.stdout.startswith(b'VALID\n') and not done.stderr.strip()

  @pytest.mark.slow
  def test_a_terminal_that_knows_few_characters(self, certified):
    (certified / 'ä').write_text('x')
    done = self._run(str(certified), PYTHONIOENCODING='ascii')
    assert (
      done.returncode == 1
      and done.stdout == b'INVALID\n  \\xe4 does not belong there: a certificate does not name it.\n'
    )

  @pytest.mark.slow
  @pytest.mark.parametrize('package', ['numpy', 'scipy'])
  def test_a_package_that_every_answer_needs(self, package, certified):
    done = self._run(str(certified), code=f'sys.modules["{package}"] = None\n')
    assert done.returncode == 2 and not done.stderr
    assert done.stdout.startswith(b'CANNOT BE VERIFIED\n') and package.encode() in done.stdout
