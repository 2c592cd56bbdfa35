"""The words for settings."""

from experiments.reporting import naming
from experiments.reporting import published
from quap_tff import methods
from quap_tff.common import flag_fields


def test_the_ablation_has_the_parts_of_the_methods():
  assert len(published.BY_PARTS) == 8
  for name, parts in published.PARTS.items():
    method = methods.METHODS[name]
    assert parts == tuple(flag in flag_fields.flags_of(method) for flag in ('alpha', 'clip', 'critical_layers'))


def test_every_method_has_a_title_of_its_own():
  titles = [naming.title_of(name) for name in methods.METHODS]
  assert len(set(titles)) == len(titles) and not set(titles) & set(methods.METHODS)
  assert naming.title_of('brand_new:a=1') == 'brand_new'


def test_the_words_of_flags():
  assert naming.participation('beta:a=2,b=5') == 'Beta(2,5)'
  assert naming.participation('beta_bernoulli:a=2,b=5') == 'Beta(2,5) by coins'
  assert naming.participation('extreme_imbalance:rare_rate=0.01') == 'extreme_imbalance:rare_rate=0.01'
  assert naming.value('client_optimizer', 'sgd:learning_rate=1') == 'client optimizer sgd, learning rate 1'
  assert naming.value('epsilon', 3) == 'ε = 3'


def test_data_of_ones_own_have_the_name_of_their_file():
  assert naming.dataset('npz:path=tab.npz,test_share=0.2,test_of_clients=False,classes=0') == 'tab.npz'
  assert naming.dataset('of_another_version:a=1') == 'of_another_version:a=1'


def test_labels_name_only_what_differs():
  participation = 'certified:clip=0.5,weights=participation'
  specs = [participation, 'certified:clip=0.5,weights=uniform', 'quap', 'fixed_dp:clip=0.5']
  assert naming.labels(specs) == [
    'Certified QuAP-FL (weights by participation)',
    'Certified QuAP-FL (equal weights)',
    'QuAP-FL',
    'Fixed-DP',
  ]


def test_labels_have_the_fewest_parameters_that_tell_specs_apart():
  held = 'certified:trust=secure_sum'
  specs = ['certified:weights=participation,noise=independent', held, f'{held},noise=independent']
  assert naming.distinguished(list(map(naming.canonical_algorithm, specs))) == [
    ('Certified QuAP-FL (trusted server, independent noise)', 'weights by participation'),
    ('Certified QuAP-FL (no trusted server, noise held by clients)', 'weights that spend evenly'),
    ('Certified QuAP-FL (no trusted server, independent noise)', 'weights that spend evenly'),
  ]
  assert naming.labels(specs[:2]) == ['Certified QuAP-FL (trusted server)', 'Certified QuAP-FL (no trusted server)']
