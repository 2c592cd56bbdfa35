"""Plays bundles and compares them with what TFF gave. It runs with TFF and without:

    python -m tests.quap_tff.bundle.playing FOLDER...

Each folder holds `bundle` and `expected.npz`, from `tests.quap_tff.bundle.kinds`. The output is one JSON object with a
`Comparison` for each folder.
"""

import json
import os
import sys
from typing import NamedTuple

import numpy as np

import quap_tff
from quap_tff.bundle import structures

ROUNDS = 5


class Comparison(NamedTuple):
  """How a bundle's rounds differ from TFF's.

  Attributes:
    compared: How many arrays were compared.
    sums_differ: Names of sums in which integers differ; integers are compared by bit.
    states_differ: The same for states, metrics and the ledger.
    largest: The largest difference of floats, over the largest of the same array.
    same_bits: Whether all floats have the same bits, too.
  """

  compared: int
  sums_differ: list[str]
  states_differ: list[str]
  largest: float
  same_bits: bool


def client_data(expected, round_num, client):
  """The data of a client in a round."""
  data = dict(examples=dict(x=expected[f'x{client}'], y=expected[f'y{client}']))
  if 'no_ids' not in expected:
    data = dict(client_id=np.int64(client), **data)
  answer = f'answer{round_num}_{client}_'
  fields = {name[len(answer) :]: expected[name] for name in expected if name.startswith(answer)}
  return {**data, 'answer': fields} if fields else data if 'no_ids' not in expected else data['examples']


def play(folder):
  """A `Comparison`."""
  bundle = quap_tff.Bundle(os.path.join(folder, 'bundle'))
  with np.load(os.path.join(folder, 'expected.npz')) as kept:
    expected = dict(kept)
  draws = 'draws' in expected
  differ = {'sums': [], 'states': []}
  compared, largest, same_bits = 0, 0.0, True

  def compare(kind, name, found):
    nonlocal compared, largest, same_bits
    compared += 1
    want = expected[name]
    found = np.asarray(found)
    assert found.dtype == want.dtype and found.shape == want.shape, name
    if want.dtype.kind != 'f':
      differ[kind] += [name] * (not np.array_equal(found, want))
    elif not np.array_equal(found, want):
      same_bits = False
      largest = max(largest, float(np.abs(found - want).max() / np.abs(want).max()))

  of_round = lambda what, t: [expected[f'{what}{t}_{i}'] for i in range(int(expected[f'{what}_leaves']))]
  ledger = bundle.plan.new_ledger() if bundle.plan is not None else None
  state = structures.pack(bundle.state_type, iter(of_round('state', 0)))
  for t in range(1, ROUNDS + 1):
    if draws:
      state = structures.pack(bundle.state_type, iter(of_round('state', t - 1)))
    message, total = bundle.prepare(state), bundle.zero()
    for client in expected[f'cohort{t}'].tolist():
      total = bundle.add(total, bundle.work(client_data(expected, t, client), message))
    for i, leaf in enumerate(leaves(total)):
      compare('sums', f'total{t}_{i}', leaf)
    state, metrics = bundle.update(state, total)
    if ledger is not None:
      ledger.append(bundle.record(state, metrics, expected[f'cohort{t}']))
    if not draws:
      for what, value in (('state', state), ('metrics', metrics)):
        for i, leaf in enumerate(leaves(value)):
          compare('states', f'{what}{t}_{i}', leaf)
  last = structures.pack(bundle.state_type, iter(of_round('state', ROUNDS)))
  for name, value in bundle.evaluate(bundle.weights(last), expected['x0'], expected['y0']).items():
    compare('states', f'tested_{name}', value)
  if ledger is not None:
    for name, value in ledger.state_dict().items():
      compare('states', f'ledger_{name}', value)
  return Comparison(compared, differ['sums'], differ['states'], largest, same_bits)


def leaves(value):
  """The arrays of a value, in order."""
  if isinstance(value, dict):
    value = list(value.values())
  return [leaf for part in value for leaf in leaves(part)] if isinstance(value, (list, tuple)) else [value]


if __name__ == '__main__':
  print(json.dumps({os.path.basename(folder): play(folder)._asdict() for folder in sys.argv[1:]}))
