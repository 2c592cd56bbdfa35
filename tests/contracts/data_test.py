"""Registered participation models and datasets keep the contracts of their kinds."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import data
from data import cohorts
from data import datasets
from data.cohorts import dropouts
from experiments.command import run as run_lib
from quap_tff.common import registry
from tests.data import tff_file
from tests.data.datasets import npz_test
from tests.experiments import harness

# The specs of those that need more than their name; `{}` stands for a folder with files.
_MODELS = {'separated': 'separated:min_separation=1', 'log': 'log:path={}/log.csv'}
_DATASETS = {
  'npz': 'npz:path={}/mine.npz',
  'stackoverflow_words': 'stackoverflow_words:words=3,length=4',
  # Fewer drawings than by default.
  'glyphs': 'glyphs:copies=21',
  'things': 'things:copies=21',
}
_SETTINGS = hypothesis.settings(max_examples=12)


@pytest.fixture(scope='module', name='folder')
def _folder(tmp_path_factory):
  """A folder with a small file for whatever reads one."""
  path = tmp_path_factory.mktemp('files')
  rows = [f'{t},{"abc"[(t + k) % 3]}' for t in range(1, 41) for k in range(1 + t % 2)]
  (path / 'log.csv').write_text('\n'.join(['round,client', *rows, '']), encoding='utf-8')
  tff_file.mnist_writers(path, np.arange(40) % 7)
  tff_file.unipen(path)
  np.savez(path / 'cifar10.npz', **tff_file.keras_images(shape=(32, 32, 3)))
  np.savez(path / 'mine.npz', **npz_test.contents())
  tff_file.shakespeare(path / 'shakespeare.sqlite')
  tff_file.cifar100(path / 'cifar100.sqlite')
  tff_file.stackoverflow(path / 'stackoverflow.sqlite', path / 'stackoverflow.word_count')
  return path


def _spec(specs, name, folder):
  return specs.get(name, name).replace('{}', str(folder))


def _assert_is_recorded(*arguments):
  """What run.json has of a run is the run again, but for the places of files on this machine."""
  run = harness.run(*harness.TINY, *arguments)
  assert run_lib.Run.from_json({'flags': run.recorded(), 'identity': run.identity()}).identity() == run.identity()


class TestParticipationModels:
  @pytest.fixture(scope='class', params=[*cohorts.PARTICIPATION_MODELS, 'hybrid:normalize=true'])
  def name(self, request):
    return request.param

  @staticmethod
  def make(name, folder, num_clients=20, cohort_size=6, seed=3):
    spec = _spec(_MODELS, name, folder)
    learns = cohorts.PARTICIPATION_MODELS[name.partition(':')[0]].learns_from_dropout
    dropout = dropouts.make('beta', num_clients, seed) if learns else None
    return cohorts.make(spec, num_clients, cohort_size, seed, dropout)

  def test_a_spec_is_the_choice_again(self, name, folder):
    choice = registry.parse_spec('participation', _spec(_MODELS, name, folder), cohorts.PARTICIPATION_MODELS)
    text = registry.format_spec(name.partition(':')[0], choice)
    assert registry.parse_spec('participation', text, cohorts.PARTICIPATION_MODELS) == choice

  def test_a_run_is_recorded_with_it(self, name, folder):
    if cohorts.PARTICIPATION_MODELS[name.partition(':')[0]].learns_from_dropout:
      pytest.skip('It needs clients that drop out.')
    _assert_is_recorded(f'--participation={_spec(_MODELS, name, folder)}')

  @pytest.mark.slow
  @_SETTINGS
  @hypothesis.given(data=st.data(), num_clients=st.integers(4, 60), seed=st.integers(0, 2**64), t=st.integers(1, 40))
  def test_a_cohort_is_sorted_distinct_and_in_range(self, name, folder, data, num_clients, seed, t):
    size = data.draw(st.integers(1, num_clients))
    model = self.make(name, folder, num_clients, size, seed)
    cohort = model.cohort(t)
    assert cohort.dtype == np.int64 and cohort.ndim == 1 and (np.diff(cohort) > 0).all()
    assert not len(cohort) or (cohort[0] >= 0 and cohort[-1] < num_clients)
    assert len(cohort) == size or model.sampler.kind != 'fixed_size'

  @pytest.mark.slow
  @_SETTINGS
  @hypothesis.given(rounds=st.lists(st.integers(1, 30), min_size=1, max_size=8), seed=st.integers(0, 2**64))
  def test_resumed_it_draws_what_it_would_have_drawn(self, name, folder, rounds, seed):
    model = self.make(name, folder, seed=seed)
    for t in rounds:
      np.random.seed(t)
      np.testing.assert_array_equal(model.cohort(t), self.make(name, folder, seed=seed).cohort(t))

  def test_it_keeps_what_it_states(self, name, folder):
    model = self.make(name, folder)
    drawn = [model.cohort(t) for t in range(1, 31)]
    if model.min_separation is not None:
      gaps = [np.diff([t for t, cohort in enumerate(drawn) if i in cohort]) for i in range(20)]
      assert np.concatenate(gaps).min() >= model.min_separation and all(map(len, drawn))
    if model.mean_cohort_size is not None and name != 'log':  # Of a log it is the mean over its own rounds.
      np.testing.assert_allclose(np.mean([len(cohort) for cohort in drawn]), model.mean_cohort_size, rtol=0.25)
    for t, cohort in enumerate(drawn, 1):
      assert np.isin(cohort, model.drawn(t)).all() and not np.isin(model.absent(t), cohort).any()


class TestDatasets:
  @pytest.fixture(scope='class', params=datasets.DATASETS)
  def name(self, request):
    return request.param

  @staticmethod
  def load(name, folder, **options):
    prefix = 'digits_only' if name == 'femnist_digits' else 'all'
    tff_file.emnist(folder / 'emnist_all.sqlite', tff_file.writers(num_classes=10), prefix=prefix)
    return data.load(_spec(_DATASETS, name, folder), data_dir=str(folder), **options)

  def test_a_spec_is_the_choice_again(self, name, folder):
    choice = registry.parse_spec('dataset', _spec(_DATASETS, name, folder), datasets.DATASETS)
    assert registry.parse_spec('dataset', registry.format_spec(name, choice), datasets.DATASETS) == choice

  def test_a_run_is_recorded_with_it(self, name, folder):
    sequences = datasets.DATASETS[name].is_sequences
    model = '--model=auto' if sequences else '--model=logistic_regression'
    _assert_is_recorded(f'--dataset={_spec(_DATASETS, name, folder)}', model)

  @pytest.mark.slow
  def test_loaded_again_it_is_the_same(self, name, folder):
    one, again = (self.load(name, folder, seed=5, num_clients=2) for _ in range(2))
    assert one.digest() == again.digest() and list(one.client_ids) == list(again.client_ids)
    for client, other in zip(one.clients, again.clients):
      np.testing.assert_array_equal(client.x, other.x)
      np.testing.assert_array_equal(client.y, other.y)

  @pytest.mark.slow
  def test_it_keeps_what_it_states(self, name, folder):
    kind = registry.parse_spec('dataset', _spec(_DATASETS, name, folder), datasets.DATASETS)
    fed = self.load(name, folder, seed=5, num_clients=2)
    assert fed.num_clients == len(fed.client_ids) == len(list(fed.clients)) == 2
    for part in (*fed.clients, fed.test):
      assert len(part) and part.x.shape[1:] == fed.input_shape and part.y.dtype == np.int32
      assert part.is_sequences == kind.is_sequences and part.labels.min() >= 0 and part.labels.max() < fed.num_classes
    assert fed.test_is_of_clients == kind.tests_clients
    if kind.image_shape is not None:
      assert fed.input_shape == kind.image_shape
    assert (fed.partition == 'natural') == kind.has_own_clients
