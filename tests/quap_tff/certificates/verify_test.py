"""The command `python -m quap_tff.verify`: one of four answers for every folder, and never a traceback."""

import importlib
import os
import sys

import pytest

from quap_tff import certificates
from quap_tff import verify
from quap_tff.certificates import page
from quap_tff.certificates import verifying
from quap_tff.certificates.folders import evidence
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.mechanisms.certified import weight_rules
from tests import processes
from tests.quap_tff.certificates import made


def _snapshot(path):
  return {one: (one.stat().st_mtime_ns, one.read_bytes() if one.is_file() else b'') for one in [path, *path.rglob('*')]}


# What is said after the statement where the folder of a certificate is given.
_ALONE = (
  'No audit was looked for. It lies alongside the folder certificate/, and is read if the folder of the run is given.\n'
)
# How the statement begins and ends, by the name of a run.
_STATEMENTS = {
  'certified': ('In integers, with a trusted server', f'that the run took place.\n{_ALONE}'),
  'held': ('If each secure sum opens for all clients', f'simulated by one operator, who had all keys.\n{_ALONE}'),
  'own_updates': ('In integers, with a trusted server', f'its own client and from releases alone.\n{_ALONE}'),
}


class TestAnswers:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', _STATEMENTS)
  def test_valid(self, name, request, capsys):
    path = request.getfixturevalue(name)
    before = _snapshot(path)
    assert verify.main([str(path)]) == 0
    out, err = capsys.readouterr()
    said, (begins, ends) = out.partition('\n')[2], _STATEMENTS[name]
    assert out.startswith('VALID\n') and said.startswith(begins) and said.endswith(ends) and not err
    assert 'for each of the 6 clients with ε = 3 and δ = 1e-05' in out
    assert _snapshot(path) == before

  def test_a_folder_that_nobody_may_write(self, certified, capsys):
    for one in certified.iterdir():
      one.chmod(0o444)
    certified.chmod(0o555)
    try:
      assert made.answer(certified, capsys)[0] == 0
    finally:
      certified.chmod(0o755)

  @pytest.mark.slow
  @pytest.mark.parametrize('version', [0, 1, 8, 11, 13, 99, -1])
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
      f'  {name} has version {version}, and this program knows only version 12.',
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

  @pytest.mark.parametrize('name', [folders.LEDGER, folders.CLIENTS, folders.MODEL, folders.PAGE])
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

  def test_a_package_that_is_missing(self, certified, monkeypatch, capsys):
    page._template.cache_clear()
    monkeypatch.setitem(sys.modules, 'jinja2', None)
    status, lines = made.answer(certified, capsys)
    assert status == 2 and lines[0] == 'CANNOT BE VERIFIED' and 'the package jinja2,' in lines[1]

  def test_a_package_that_reads_keys_is_missing(self, certified, tmp_path, monkeypatch, capsys):
    _, public = made.keys(tmp_path / 'keys')
    monkeypatch.setitem(sys.modules, 'cryptography.hazmat.primitives.serialization', None)
    status, lines = made.answer(certified, capsys, f'--public_key={public}')
    assert status == 2 and 'the package cryptography,' in lines[1]
    assert made.answer(certified, capsys)[0] == 0

  def test_a_fault_of_the_program(self, certified, monkeypatch, capsys):
    monkeypatch.setattr(evidence, 'run_problems', lambda _: 1 / 0)
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


_HALF = """
import dataclasses
import numpy as np
from quap_tff.mechanisms.certified import weight_rules

@dataclasses.dataclass(frozen=True)
class Half(weight_rules.WeightRule):
  share: float = 0.5

  def weights(self, view):
    return np.float32(self.share)

weight_rules.RULES['half'] = Half
"""


class TestChoicesOfSomebodysProgram:
  @pytest.fixture(name='folder')
  def _folder(self, tmp_path, monkeypatch):
    """A run of a weight rule that only the module `half_rule` registers."""
    (tmp_path / 'half_rule.py').write_text(_HALF)
    (tmp_path / 'broken_rule.py').write_text('1 / 0')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(weight_rules.RULES, 'half', None)  # To be undone, whatever happens.
    rule = importlib.import_module('half_rule').Half
    yield made.folder(tmp_path / 'run', made.plan(weights=rule(0.25)))
    sys.modules.pop('half_rule', None)

  @staticmethod
  def _forget():
    del weight_rules.RULES['half'], sys.modules['half_rule']

  def test_it_cannot_be_verified_without_the_module(self, folder, capsys):
    self._forget()
    status, (first, reason) = made.answer(folder, capsys)
    assert (status, first) == (2, 'CANNOT BE VERIFIED')
    assert "mechanism.json names a choice that is not registered here. Unknown weight rule 'half'." in reason
    assert reason.endswith('get the module that does, read it, and give --import=MODULE, which runs its code.')

  @pytest.mark.slow
  def test_it_is_valid_with_the_module(self, folder, capsys):
    self._forget()
    assert verify.main([str(folder), '--import=json', '--import=half_rule']) == 0
    out, err = capsys.readouterr()
    assert out.startswith('VALID\n') and 'Warning: The code of half_rule was run.' in err

  @pytest.mark.slow
  @pytest.mark.parametrize('name, words', [('nowhere', 'No module named'), ('broken_rule', 'ZeroDivisionError')])
  def test_a_module_that_cannot_be_imported(self, name, words, folder, capsys):
    status, (first, reason) = made.answer(folder, capsys, f'--import={name}')
    assert (status, first) == (2, 'CANNOT BE VERIFIED') and f'--import={name}: ' in reason and words in reason

  @pytest.mark.parametrize(
    'place, spec, kind',
    [
      (('mechanism', 'weights'), 'mine:share=0.5', 'weight rule'),
      (('mechanism', 'clip'), 'mine', 'clip rule'),
      (('mechanism', 'correlation'), 'mine:decay=0.5', 'noise correlation'),
      (('sparsity',), 'mine', 'sparsity'),
    ],
  )
  def test_of_every_kind(self, place, spec, kind, certified, capsys):
    def change(value):
      for name in place[:-1]:
        value = value[name]
      value[place[-1]] = spec

    made.change(certified, folders.MECHANISM, change)
    made.reseal(certified)
    status, lines = made.answer(certified, capsys)
    assert status == 2 and f"Unknown {kind} 'mine'" in lines[1]


class TestCommand:
  @pytest.mark.slow
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
    command = [sys.executable, '-c', start + code + end, *arguments]
    return processes.run(command, env={**os.environ, **environment}, encoding=None)

  @pytest.mark.slow
  def test_it_loads_no_tensorflow(self, certified):
    code = (
      'import atexit\n'
      'bad = lambda: [n for n in sys.modules if n.startswith(("tensorflow", "jax", "experiments"))]\n'
      'atexit.register(lambda: print(*bad(), file=sys.stderr))\n'
    )
    done = self._run(str(certified), code=code)
    assert done.returncode == 0 and done.stdout.startswith(b'VALID\n') and not done.stderr.strip()

  @pytest.mark.thorough
  @pytest.mark.slow
  @pytest.mark.parametrize('is_valid', [True, pytest.param(False, marks=pytest.mark.thorough)])
  def test_who_does_not_read_the_answer_is_told_no_other_one(self, is_valid, certified):
    if not is_valid:
      (certified / 'more').write_text('x')
    answer = 0 if is_valid else 1
    for output, status, words in (
      ('>/dev/null', answer, ''),
      ('>&-', answer, ''),
      ('>/dev/full', 2, 'No space left on device'),
      ('| true; exit ${PIPESTATUS[0]}', 141, ''),
    )[:: 1 if is_valid else 2]:
      # `true` has ended before the answer comes.
      command = (
        f'"{sys.executable}" -c "import runpy, sys, time; sys.stdin.read(); sys.argv[1:] = [{str(certified)!r}]; '
      )
      command += f'runpy.run_module({"quap_tff.verify"!r}, run_name={"__main__"!r})" {output}'
      done = processes.run(['bash', '-c', command])
      assert done.returncode == status and words in done.stderr and 'Traceback' not in done.stderr, (output, done)

  @pytest.mark.slow
  def test_ctrl_c(self, certified):
    code = (
      'import signal, os\nfrom quap_tff.certificates import verifying\n'
      'verifying.verify = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n'
    )
    done = self._run(str(certified), code=code)
    assert (done.returncode, done.stdout, done.stderr) == (130, b'', b'\nInterrupted.\n')

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
