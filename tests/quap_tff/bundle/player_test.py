"""Tests of bundles that are not as they should be, and of values that are not."""

import collections
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import quap_tff
from quap_tff.bundle import bundle_files
from quap_tff.bundle import structures
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap.config import NoiseConfig
from tests.quap_tff import examples
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow


def _plan(**options):
  config = examples.whole(noise=NoiseConfig(calibration='analytic', seed=1))
  return quap_tff.Plan(config, **options)


@pytest.fixture(scope='module')
def built(context):
  return _plan().build_process(linear_model.Linear)


@pytest.fixture(scope='module')
def plan(built):
  return built.plan


@pytest.fixture(scope='module')
def folder(built, tmp_path_factory):
  return _exported(built, tmp_path_factory.mktemp('bundles') / 'bundle')


@pytest.fixture(scope='module')
def bundle(folder):
  return quap_tff.Bundle(folder)


@pytest.fixture
def copied(folder, tmp_path):
  return shutil.copytree(folder, tmp_path / 'bundle')


def _client(client_id=0, n=3, **changes):
  examples_of = dict(x=np.ones([n, 1], np.float32), y=np.ones([n, 1], np.float32))
  return dict(client_id=np.int64(client_id), examples={**examples_of, **changes})


def _changed(folder, **changes):
  path = folder / bundle_files.MANIFEST
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_refuses_a_changed_file(copied):
  with open(copied / 'work.pb', 'ab') as f:
    f.write(b'\0')
  with pytest.raises(ValueError, match=r'work\.pb in .* is not the file that was exported.* Copy the bundle again'):
    quap_tff.Bundle(copied)


def test_refuses_a_missing_file(copied):
  os.remove(copied / 'update.pb')
  with pytest.raises(ValueError, match=r'update\.pb is missing'):
    quap_tff.Bundle(copied)


def test_refuses_another_version(copied):
  _changed(copied, version=99)
  with pytest.raises(ValueError, match='a bundle of version 99, and this quap_tff plays only version 3. Export the'):
    quap_tff.Bundle(copied)


def test_refuses_an_older_tensorflow(copied):
  major, minor = tf.__version__.split('.')[:2]
  newer = f'{major}.{int(minor) + 1}.0'
  _changed(copied, versions={'tensorflow': newer})
  with pytest.raises(ValueError, match=f'exported by TensorFlow {newer}.* older. Install a newer one: pip install'):
    quap_tff.Bundle(copied)
  _changed(copied, versions={'tensorflow': f'{major}.{minor}.99'})
  assert quap_tff.Bundle(copied).plan is not None


def test_says_that_tensorflow_is_missing(folder, monkeypatch):
  monkeypatch.setattr(bundle_files.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match='is not installed here: pip install tensorflow'):
    quap_tff.Bundle(folder)


def test_refuses_a_folder_that_is_none(tmp_path):
  with pytest.raises(ValueError, match='does not exist'):
    quap_tff.Bundle(tmp_path / 'none')


def test_refuses_a_plan_of_other_parts(copied):
  value = json.loads((copied / bundle_files.PLAN).read_text())
  dict(value['arguments']['dict'])['mechanism']['fields']['num_clients'] = 5
  text = json.dumps(value)
  (copied / bundle_files.PLAN).write_text(text)
  digest = json.loads(bundle_files.manifest({}, {bundle_files.PLAN: text.encode()}))['files'][bundle_files.PLAN]
  files = json.loads((copied / bundle_files.MANIFEST).read_text())['files']
  _changed(copied, files={**files, bundle_files.PLAN: digest})
  with pytest.raises(ValueError, match='cannot be read by this quap_tff. Export the run again.*give another plan'):
    quap_tff.Bundle(copied)


@pytest.mark.parametrize(
  'data, error',
  [
    (_client(x=np.ones([3, 2], np.float32)), r'data\.examples\.x must be float32\[\?,1\], found float32\[3, 2\]'),
    (_client(x=np.ones([3, 1])), r'data\.examples\.x must be float32\[\?,1\], found float64\[3, 1\]'),
    (dict(client_id=0), r'data must be \{client_id: sequence.*\}, found client_id'),
    (_client(z=1), r'y: float32\[\?,1\]\}, found x, y, z'),
    ({**_client(), 'client_id': tf.data.Dataset.from_tensors(1.0)}, r'client_id must be int64\[\] in each element'),
    ({**_client(), 'client_id': tf.data.Dataset.from_tensors((1, 1))}, r'client_id must be int64\[\] in each element'),
  ],
)
def test_refuses_data_of_another_type(data, error, bundle):
  with pytest.raises(ValueError, match=error):
    bundle.work(data, bundle.prepare(bundle.initialize()))


def test_takes_arrays_lists_and_datasets(bundle):
  message = bundle.prepare(bundle.initialize())
  plain = _client()
  listed = {name: [one] for name, one in plain.items()}
  datasets = {name: tf.data.Dataset.from_tensors(one) for name, one in plain.items()}
  split = {**plain, 'examples': [_client(n=1)['examples'], _client(n=2)['examples']]}
  found = [tf.nest.flatten(bundle.work(one, message)) for one in (plain, listed, datasets, split)]
  for other in found[1:]:
    tf.nest.map_structure(np.testing.assert_array_equal, found[0], other)


def test_nobody_has_no_examples(bundle):
  message = bundle.prepare(bundle.initialize())
  none = [bundle.work({**_client(), 'examples': one}, message) for one in ([], _client(n=0)['examples'])]
  tf.nest.map_structure(np.testing.assert_array_equal, *none)


def test_each_run_has_noise_of_its_own(built, tmp_path):
  seeded = quap_tff.Bundle(_exported(built, tmp_path / 'seeded'))
  np.testing.assert_array_equal(*(seeded.initialize().aggregator.noise.seed for _ in range(2)))
  open_plan = quap_tff.Plan(examples.whole(noise=NoiseConfig(calibration='analytic')))
  bundle = quap_tff.Bundle(_exported(open_plan.build_process(linear_model.Linear), tmp_path / 'open'))
  one, other = (bundle.initialize() for _ in range(2))
  assert (one.aggregator.noise.seed != other.aggregator.noise.seed).all()
  again = quap_tff.Bundle(tmp_path / 'open').initialize()
  assert (one.aggregator.noise.seed != again.aggregator.noise.seed).all()


def _exported(built, path):
  quap_tff.export(built, path)
  return path


def test_refuses_a_folder_that_exists(built, tmp_path):
  with pytest.raises(ValueError, match='already exists: give a new folder'):
    quap_tff.export(built, tmp_path)


def test_says_why_a_round_cannot_be_exported(context, tmp_path):
  plan = quap_tff.Plan(examples.whole(clip=clip_rules.QuantileEma()))
  built = plan.build_process(linear_model.Linear)
  with pytest.raises(ValueError, match='clients wait for others in mid-round.*timing=previous'):
    quap_tff.export(built, tmp_path / 'bundle')


@pytest.mark.thorough
def test_says_what_a_bundle_without_a_plan_lacks(built, tmp_path):
  quap_tff.export(built.process, tmp_path / 'bundle')
  bundle = quap_tff.Bundle(tmp_path / 'bundle')
  with pytest.raises(ValueError, match='exported without a plan.*Export it with one'):
    bundle.record(None, None, [0])
  with pytest.raises(ValueError, match='no evaluation'):
    bundle.evaluate(None, [], [])


def test_another_cohort_is_refused(bundle):
  state = bundle.initialize()
  message, total = bundle.prepare(state), bundle.zero()
  for client in (0, 2):
    total = bundle.add(total, bundle.work(_client(client), message))
  state, metrics = bundle.update(state, total)
  assert bundle.record(state, metrics, [0, 2]).cohort.tolist() == [0, 2]
  with pytest.raises(ValueError, match='not the cohort of the round'):
    bundle.record(state, metrics, [0, 1])


def test_shards_add_up(bundle):
  message = bundle.prepare(bundle.initialize())
  updates = [bundle.work(_client(client), message) for client in range(3)]
  whole = bundle.zero()
  for update in updates:
    whole = bundle.add(whole, update)
  shards = [bundle.add(bundle.zero(), updates[0]), bundle.add(bundle.add(bundle.zero(), updates[1]), updates[2])]
  tf.nest.map_structure(np.testing.assert_array_equal, whole, bundle.merge(*shards))


def test_a_type_is_a_line_for_people(bundle):
  expected = '{client_id: sequence of int64[], examples: sequence of {x: float32[?,1], y: float32[?,1]}}'
  assert structures.described(bundle.data_type) == expected


def test_packs_what_it_flattens():
  leaf = {'dtype': 'float32', 'shape': [None]}
  kind = {'fields': [['b', leaf], ['a', {'fields': [[None, leaf]]}]]}
  one, other = np.zeros(1, np.float32), np.ones(2, np.float32)
  packed = structures.pack(kind, iter([one, other]))
  assert (packed.b is one, packed.a[0] is other) == (True, True)
  assert [leaf.size for leaf in structures.flatten(kind, packed, 'value')] == [1, 2]
  assert structures.flatten(kind, collections.OrderedDict(a=(other,), b=one), 'value')[0] is one
