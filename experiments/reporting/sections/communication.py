"""Bytes of a client in a round, down and up: `002…` table 1."""

from experiments.reporting import commands
from experiments.reporting import comparison
from experiments.reporting import document
from experiments.reporting import documents
from experiments.reporting import methods
from experiments.reporting import quantities

_COLUMNS = (
    'dataset', 'method', 'setting', 'document: upload over FedAvg\'s', 'measured: upload over FedAvg\'s',
    'document: bytes more than FedAvg', 'measured: bytes more than FedAvg', 'measured: MB down', 'measured: MB up',
    'seeds', 'rounds run of planned'
)


def build(study):
  shown = study.places([group for group in study.groups if _bytes(group, 'up') is not None])
  members = [group for family in shown for group in family.groups]
  rows = []
  for group, label in comparison.labelled(members):
    up, down = _bytes(group, 'up'), _bytes(group, 'down')
    plain = _fedavg_upload(study, group)
    has_document = group.method in documents.UPLOAD_EXTRA_BYTES
    rows.append((
        group.setting.get('dataset'),
        methods.of(group.algorithm).label,
        label,
        f'{documents.UPLOAD_RATIO:.2f}' if has_document else None,
        f'{up / plain:.4f}' if plain else None,
        str(documents.UPLOAD_EXTRA_BYTES[group.method]) if has_document else None,
        f'{up - plain:.0f}' if plain else None,
        None if down is None else quantities.Quantity(down / 1e6, digits=3),
        quantities.Quantity(up / 1e6, digits=3),
        group.seeds_text,
        group.rounds_text,
    ))
  table = document.Table('communication', 'Communication of a client in a round (`002…` table 1)', _COLUMNS, rows)
  return document.Section(
      'Communication',
      [
          comparison.without_empty(table, 'setting'),
          f'The document\'s {documents.UPLOAD_MB} MB are of ResNet-18, which is not run here: the ratio to FedAvg and '
          'the bytes beside it are what can be compared. Measured are the bytes of the values that a client takes and '
          'gives, without encoding or encryption (1 MB = 1,000,000 bytes).',
      ] if rows else [],
      commands.sweep(algorithm=['fedavg', 'fixed_dp', 'quap'], seeds=documents.SEEDS[:1]),
  )


def _bytes(group, direction):
  found = group.measure(lambda run: run.mean_of(f'{direction}_bytes_per_client'))
  return None if found is None else found.mean


def _fedavg_upload(study, group):
  """Of the same data and model."""
  same = {name: group.setting.get(name) for name in ('dataset', 'model')}
  found = [_bytes(other, 'up') for other in study.select('fedavg', **same)]
  return next((upload for upload in found if upload is not None), None)
