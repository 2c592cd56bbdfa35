"""Folders of certified runs that were never run: what a forger can make who has the program. No TensorFlow is needed.

made.folder(path)                a folder of a certificate, which a run would have as its subfolder
made.reseal(path)                issues the certificate anew for the folder as it is, whatever is wrong with it
made.answer(path, capsys)        what python -m quap_tff.verify says of it
"""

import contextlib
import json
import pathlib
from unittest import mock

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
import numpy as np

from quap_tff import certificates
from quap_tff import plans
from quap_tff import verify
from quap_tff.certificates import certificate as certificate_lib
from quap_tff.certificates import page
from quap_tff.certificates.folders import folder as folders
from quap_tff.certificates.folders import folder_files
from quap_tff.common import files
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import layers
from tests.quap_tff import examples

NUM_CLIENTS = 6
SCHEDULE = ([0, 3, 4], [1, 2], [], [4, 3, 2, 0])
# Who comes of them.
ATTENDANCE = ([0, 3], [1, 2], [], [4, 2, 0])
MODEL = layers.ModelShape((layers.Layer('dense', (0, 1), True),), ((3, 2), (2,)))
WEIGHTS = (np.zeros((3, 2), np.float32), np.ones(2, np.float32))
ABOUT = certificates.About(
  'my data', 'I drew them with a <public> seed.', 'By theory.', 'Forty pictures.', tests=4, test_accuracy=0.5
)
HELD = {'correlation': correlation.HeldNoise(0.5)}


def plan(options=(), schedule=SCHEDULE, num_clients=NUM_CLIENTS, epsilon=3.0, delta=1e-5, **config):
  """A plan whose model's shape is known. Its process was never built."""
  config = examples.guarantee(num_clients=num_clients, epsilon=epsilon, delta=delta, **config)
  return plans.Plan.certified(config, schedule, **{'model': MODEL, **dict(options)})


def leaving(of):
  """What leaves clients, as a process of the plan has it."""
  by, dtype = ('federated_secure_modular_sum', 'int64') if of.holds_noise else ('federated_aggregate', 'int32')
  shapes = of.model.shapes
  if of.sparsity.is_sparse:
    shapes = [(of.sparsity.kept(size),) for size in of.model.sizes]
  sums = [(by, '', f'{dtype}[{",".join(map(str, shape))}]' if shape else dtype) for shape in shapes]
  count = [(by, '', dtype)] if of.holds_noise else []
  return (('federated_aggregate', 'client_id', 'int64'), *sums, *count)


def ledger(of, rounds=None):
  """The ledger of the first rounds of a plan; by default of all."""
  found, clip = of.new_ledger(), float(np.float32(of.config.clip.initial_norm))
  planned = of.core.simulated(of.expected)
  for number, (cohort, one) in list(enumerate(zip(of.expected, planned), 1))[:rounds]:
    found.append(of.core.cost(cohort, one.weights.astype(np.float64), clip, number))
  return found


def folder(path, of=None, rounds=None, about=ABOUT, weights=WEIGHTS, signing_key=None):
  """Writes the folder of a certificate."""
  of = plan() if of is None else of
  certificates.write_run(str(path), of, leaving(of), ledger(of, rounds), weights, about, signing_key)
  return pathlib.Path(path)


def read(path, name):
  return json.loads((path / name).read_text(encoding='utf-8'))


def text(name, value):
  """A JSON file as the program writes it."""
  indent = 1 if name == folders.MECHANISM else 2
  return json.dumps(value, indent=indent, ensure_ascii=False) + '\n'


def put(path, name, content=b'x'):
  """Puts a file into the folder."""
  (path / name).parent.mkdir(parents=True, exist_ok=True)
  (path / name).write_bytes(content)


def change(path, name, how):
  """Changes a JSON file: `how` changes its value, or returns another."""
  value = read(path, name)
  other = how(value)
  (path / name).write_text(text(name, value if other is None else other), encoding='utf-8')


def change_arrays(path, name, how):
  """The same for an .npz file."""
  with np.load(path / name) as kept:
    arrays = {key: kept[key].copy() for key in kept}
  other = how(arrays)
  write_arrays(path / name, arrays if other is None else other)


def write_arrays(path, arrays):
  """Writes an .npz file as the program does; objects, which it refuses, as NumPy does."""
  if any(np.asarray(array).dtype.hasobject for array in arrays.values()):
    np.savez(path, **arrays)
  else:
    path.write_bytes(files.npz(arrays))


def write_model(path, tensors):
  """Writes the tensors of a model as the program does."""
  write_arrays(path, {f'arr_{number}': tensor for number, tensor in enumerate(tensors)})


def reseal(path, how=lambda certificate: None):
  """Issues the certificate anew, with another page, for what the folder holds now; `how` changes it in addition."""
  written = lambda *_: folder_files.read_text(str(path), folders.MECHANISM)
  try:
    with (
      mock.patch.object(certificate_lib, 'refusals', lambda *_: []),
      mock.patch.object(folders, 'mechanism_text', written),
    ):
      with np.errstate(invalid='ignore'):
        found = certificate_lib.make(folders.read(str(path)))
  except (ValueError, KeyError, TypeError):  # Nothing can be made of such files. The forger keeps the old certificate.
    found = read(path, folders.CERTIFICATE)
    names = folder_files.entries(str(path)).files
    found['provenance']['files_sha256'] = {
      name: folder_files.digest(str(path), name) for name in names if name not in folders.OWN
    }
  how(found)
  found = certificate_lib.sealed(found)
  files.write_json(str(path / folders.CERTIFICATE), found)
  with contextlib.suppress(Exception):  # Of a certificate that is none, there is no page.
    files.write(str(path / folders.PAGE), page.render(found))


def answer(path, capsys, *arguments):
  """Exit status, and the lines of standard output."""
  status = verify.main([str(path), *arguments])
  return status, capsys.readouterr().out.splitlines()


def problems(path, public_key=None):
  """What verification finds wrong."""
  return certificates.verify(str(path), public_key).problems


def keys(path):
  """The paths of a new Ed25519 private key and its public key, in PEM files in a folder that is made if need be."""
  path = pathlib.Path(path)
  private = ed25519.Ed25519PrivateKey.generate()
  encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
  path.mkdir(exist_ok=True)
  (path / 'key.pem').write_bytes(private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
  public = private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
  (path / 'public.pem').write_bytes(public)
  return str(path / 'key.pem'), str(path / 'public.pem')
