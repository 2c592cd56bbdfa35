"""A certified run over more clients than are listed: its files, its certificate, and what makes it invalid."""

import csv
import re

import numpy as np
import pytest

import data
from experiments.reporting import runs
from experiments.systems import malicious
from quap_tff import accounting
from quap_tff import certificates
from quap_tff.mechanisms.noise import integers
from tests.experiments import harness

_RUN = (
  '--dataset=synthetic:examples=4',
  '--num_clients=20000',
  '--cohort_size=8',
  '--rounds=3',
  '--epsilon=3',
  '--delta=1e-6',
  '--algorithm=certified:weights=online,noise=ar1',
  '--averaging=planned',
  '--progress=none',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('population') / 'run'
  for stop in ('--stop_after=1', '--stop_after=3'):
    assert harness.main(*_RUN, stop, f'--output_dir={path}') == 0
  return path


@pytest.mark.slow
def test_no_clients_examples_are_made_before_they_take_part(monkeypatch):
  made, examples_of = [], data.OnDemand.__getitem__
  monkeypatch.setattr(data.OnDemand, '__getitem__', lambda self, i: made.append(i) or examples_of(self, i))
  for arguments in ([], ['--algorithm=fedavg', '--averaging=none', '--malicious=label_flip:share=0.5']):
    experiment = harness.experiment(*_RUN, *arguments)
    assert len(experiment.federation.clients) == 20000 and set(made) <= {0}


def test_labels_of_malicious_clients_are_flipped_on_demand():
  federations = []
  flags = ('--dataset=synthetic:examples=4', '--algorithm=fedavg', '--num_clients=20')
  for arguments in ([], ['--malicious=label_flip:share=0.25']):
    federations.append(harness.experiment(*flags, *arguments).federation)
  honest, attacked = federations
  who = malicious.LabelFlip(0.25).clients(20, 42)
  assert attacked.is_on_demand and attacked.digest() != honest.digest() and len(who) == 5
  for client in range(20):
    a, b = honest.clients[client], attacked.clients[client]
    np.testing.assert_array_equal(b.y, honest.num_classes - 1 - a.y if client in who else a.y)
    np.testing.assert_array_equal(b.x, a.x)


@pytest.mark.thorough
@pytest.mark.slow
def test_is_valid_and_lists_those_who_took_part(folder):
  verdict = certificates.verify(str(folder))
  assert not verdict.problems and 'for each of the 20,000 clients' in verdict.statement
  ledger = accounting.RunLedger.load(folder / 'certificate' / 'ledger.npz')
  rows = harness.table(folder / 'certificate' / 'clients.csv')
  took_part = np.unique(ledger.state_dict()['clients'])
  assert [int(row['client']) for row in rows] == took_part.tolist() and 16 < len(took_part) <= 24
  epsilon = accounting.epsilon_by_client(ledger, 1e-6 * (1 - integers.RESERVE))
  stated = np.array([float(row['formal_epsilon']) for row in rows])
  assert (stated >= epsilon[took_part] * (1 - 1e-9)).all()  # Rounded up to six digits.
  np.testing.assert_allclose(stated, epsilon[took_part], rtol=1e-5)
  assert (folder / 'certificate' / 'certificate.json').stat().st_size < 20_000


@pytest.mark.slow
def test_the_report_knows_the_others_too(folder):
  run, _ = runs.load_run(str(folder))
  assert len(run.clients['rounds']) == 20_000 and run.clients['rounds'].sum() == 24
  np.testing.assert_array_equal(run.clients['rounds'], run.ledger.rounds)
  assert (run.clients['formal_epsilon'][run.ledger.rounds == 0] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  'change, words',
  [
    (lambda rows: rows[:-1], 'clients.csv has [0-9]+ lines, and the account gives [0-9]+'),
    (lambda rows: rows[:-1] + [{**rows[-1], 'client': '19999'}], "clients.csv: it says '19999,"),
    (lambda rows: [{**rows[0], 'formal_epsilon': '0'}] + rows[1:], "clients.csv: it says '[0-9]+,1,0', but"),
  ],
)
def test_other_rows_are_found(folder, change, words):
  path = folder / 'certificate' / 'clients.csv'
  before = path.read_text()
  rows = change(harness.table(path))
  with open(path, 'w', newline='', encoding='utf-8') as f:
    writer = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
  problems = certificates.verify(str(folder)).problems
  path.write_text(before)
  assert any(re.search(words, problem) for problem in problems)
