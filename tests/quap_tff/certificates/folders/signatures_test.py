"""Only the holder of a key can sign a folder, and a signature file holds a signature and nothing else."""

import base64

import pytest

from quap_tff import certificates
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import signatures
from tests.quap_tff.certificates import made


@pytest.fixture(name='signed')
def _signed(tmp_path):
  """A folder that is signed, and the files of both keys."""
  key, public = made.keys(tmp_path / 'keys')
  return made.folder(tmp_path / 'signed', signing_key=key), key, public


@pytest.mark.slow
def test_a_signed_folder(signed, tmp_path):
  path, _, public = signed
  verdict = certificates.verify(str(path), public)
  assert not verdict.problems and not verdict.warnings and verdict.statement
  [warning] = certificates.verify(str(path)).warnings
  assert warning == "certificate.sig was not checked. To check it, give the signer's --public_key."
  _, other = made.keys(tmp_path / 'other')
  assert made.problems(path, other) == [
    f'certificate.sig is not a signature of certificate.json with the key of {other}.'
  ]


def test_a_key_that_cannot_be_read_leaves_no_folder(tmp_path):
  with pytest.raises(ValueError, match='cannot be read'):
    made.folder(tmp_path / 'run', signing_key=str(tmp_path / 'nowhere.pem'))
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_somebody_who_makes_the_whole_folder_anew_cannot_sign_it(signed):
  path, _, public = signed
  signature = (path / folders.SIGNATURE).read_text()
  made.change(path, folders.MECHANISM, lambda value: value['issuer'].update(tuning='By luck.'))
  made.reseal(path)
  assert (path / folders.SIGNATURE).read_text() == signature and not made.problems(path)
  [problem] = made.problems(path, public)
  assert problem.startswith('certificate.sig is not a signature of certificate.json')


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, words', [(folders.SIGNATURE, 'certificate.json is not signed'), (folders.PAGE, 'certificate.html is missing')]
)
def test_with_a_key_nothing_may_be_missing(name, words, signed):
  path, _, public = signed
  (path / name).unlink()
  assert not made.problems(path)
  [problem] = made.problems(path, public)
  assert words in problem


@pytest.mark.slow
@pytest.mark.parametrize(
  'change',
  [
    lambda line: '',
    pytest.param(lambda line: 'client 7 has the label 3', marks=pytest.mark.thorough),
    lambda line: line + 'client 7 has the label 3\n',
    pytest.param(lambda line: 'client 7 has the label 3\n' + line, marks=pytest.mark.thorough),
    lambda line: line + '\n',
    pytest.param(lambda line: line[:-1], marks=pytest.mark.thorough),
    pytest.param(lambda line: line[:-1] + '\r\n', marks=pytest.mark.thorough),
    pytest.param(lambda line: ' ' + line, marks=pytest.mark.thorough),
    pytest.param(lambda line: line[:40] + '\n' + line[40:], marks=pytest.mark.thorough),
    lambda line: line[:-4] + 'B' + line[-3:] if line[-4] != 'B' else line[:-4] + 'C' + line[-3:],
    lambda line: base64.b64encode(b'x' * 63).decode() + '\n',
    lambda line: base64.b64encode(b'x' * 65).decode() + '\n',
    lambda line: '\udcff',
  ],
)
def test_junk_in_a_signature_is_refused_with_and_without_a_key(change, signed):
  path, _, public = signed
  changed = change((path / folders.SIGNATURE).read_text())
  (path / folders.SIGNATURE).write_bytes(changed.encode(errors='surrogateescape'))
  for found in (made.problems(path), made.problems(path, public)):
    assert len(found) == 1 and found[0].startswith('certificate.sig'), found


@pytest.mark.slow
def test_another_signature_is_refused_only_with_a_key(signed):
  path, _, public = signed
  (path / folders.SIGNATURE).write_text(base64.b64encode(bytes(64)).decode() + '\n')
  assert not made.problems(path) and 'is not a signature' in made.problems(path, public)[0]


class TestKeys:
  @pytest.mark.parametrize('read', [signatures.read_private_key, signatures.read_public_key])
  def test_files_that_hold_none(self, read, tmp_path):
    with pytest.raises(ValueError, match='nowhere cannot be read: No such file'):
      read(str(tmp_path / 'nowhere'))
    (tmp_path / 'key.pem').write_text('x')
    with pytest.raises(ValueError, match='must hold a PEM key without a password'):
      read(str(tmp_path / 'key.pem'))

  def test_each_kind_is_for_one_use(self, tmp_path):
    key, public = made.keys(tmp_path / 'keys')
    with pytest.raises(ValueError, match='must hold a PEM key'):
      signatures.read_private_key(public)
    with pytest.raises(ValueError, match='must hold a PEM key'):
      signatures.read_public_key(key)

  def test_a_key_of_another_kind(self, tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    content = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / 'ec.pem').write_bytes(content)
    with pytest.raises(ValueError, match='must hold an Ed25519PublicKey'):
      signatures.read_public_key(str(tmp_path / 'ec.pem'))
