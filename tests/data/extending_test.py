"""A new dataset, partition, feature map, participation model or dropout is one class and one line in a registry."""

import dataclasses

import numpy as np

import data
from data import base
from data import cohorts
from data import datasets
from data import dropouts
from data import features
from data import partition


@dataclasses.dataclass(frozen=True)
class Parity(base.PooledDataset):
  """Bits, and whether their sum is odd."""

  bits: int = 3

  def read(self, data_dir):
    x = np.random.default_rng(0).integers(0, 2, (50, self.bits)).astype(np.uint8)
    y = x.sum(axis=1) % 2
    return base.Pool(x[10:], y[10:], x[:10], y[:10], white=1.0, num_classes=2)


class InTurn(partition.Partition):
  """Examples are dealt out in their order."""

  def assign(self, labels, num_clients, rng):
    return np.arange(len(labels)) % num_clients


class Centred(features.Features):
  """Bits as -1 and 1, to unit norm."""

  def check(self, input_shape):
    del input_shape

  def fingerprint(self):
    return 'centred'

  def extractor(self, input_shape):
    return lambda x: features.unit_rows(2 * x - 1)


@dataclasses.dataclass(frozen=True)
class EvenIds(cohorts.ParticipationChoice):
  """Only clients with even ids, by weights."""

  def over(self, population):
    weights = (np.arange(population.num_clients) % 2 == 0).astype(np.float64)
    return cohorts.base.weighted(population, lambda round_num: weights)


class EveryOther(dropouts.DropoutChoice):
  """All clients drop out of even rounds."""

  def over(self, num_clients, seed):
    rates = np.full(num_clients, 0.5)
    return dropouts.DropoutModel(rates, lambda t: np.full(num_clients, t % 2 == 0), is_independent=False)


def test_classes_of_others_take_part_by_their_names(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  for registry, name, choice in (
    (datasets.DATASETS, 'parity', Parity),
    (partition.PARTITIONS, 'in_turn', dataclasses.dataclass(frozen=True)(InTurn)),
    (features.FEATURES, 'centred', dataclasses.dataclass(frozen=True)(Centred)),
    (cohorts.PARTICIPATION_MODELS, 'even_ids', EvenIds),
    (dropouts.DROPOUTS, 'every_other', dataclasses.dataclass(frozen=True)(EveryOther)),
  ):
    monkeypatch.setitem(registry, name, choice)
  fed = data.load('parity:bits=4', num_clients=8, partition='in_turn', features='centred')
  assert (fed.name, fed.partition, fed.features, fed.input_shape) == ('parity', 'in_turn', 'centred', (4,))
  assert [len(client) for client in fed.clients] == [5] * 8 and set(np.abs(fed.test.x).ravel()) == {0.5}
  dropout = dropouts.make('every_other', 8, 0)
  model = dropouts.WithDropout(cohorts.make('even_ids', 8, 4, 0, dropout), dropout, charges_absent=False)
  np.testing.assert_array_equal(model.cohort(1), [0, 2, 4, 6])
  assert len(model.cohort(2)) == 0 and model.sampler.kind == 'none'
