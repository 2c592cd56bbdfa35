"""The presets: each builds what the documents say, and those on MNIST run on the real images."""

import pytest

from data import cohorts
from quap_tff.common import registry
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.training import optimizers
from tests.experiments import harness

DATA = harness.REPOSITORY.parent / 'shared' / 'data'

# What the documents share: N=100, M=30, T=200, 3 epochs of batches of 32, Dirichlet(0.5), seed 42, δ, α, β.
DOCUMENTS = dict(
  num_clients=100,
  cohort_size=30,
  rounds=200,
  partition='dirichlet:alpha=0.5',
  seed=42,
  delta=1e-5,
  alpha=0.5,
  beta=2.0,
  round_budget='cohort_mean_rate',
  participation_rate='cumulative',
  count_during_warmup=True,
  local_epochs=3,
  batch_size=32,
  gaussian_calibration='classic',
  clip_scope='critical',
  max_agg_norm=None,
  update_scale='delta',
  noise_seed=None,
  stop_at_accuracy=None,
  client_learning_rate_decay=1.0,
  server_optimizer='sgd:learning_rate=1.0',
  stop_after=None,
  compute_dtype='float32',
  max_local_steps=None,
)
NOVEMBER = dict(
  DOCUMENTS,
  epsilon=6.0,
  warmup_rounds=5,
  participation=('beta', dict(a=2.0, b=5.0)),
  clip=clip_rules.QuantileEma(quantile=0.9, momentum=0.95, min_clip=0.1),
  critical_layers='final_dense',
  noise='server',
  client_optimizer=optimizers.Sgd(0.005),
)
EXPECTED = {
  'mnist_2025': dict(NOVEMBER, dataset='mnist', model='mnist_cnn'),
  'cifar10_2025': dict(NOVEMBER, dataset='cifar10', model='cifar10_cnn'),
  'mnist_v112': dict(
    DOCUMENTS,
    dataset='mnist',
    model='mnist_cnn',
    epsilon=3.0,
    warmup_rounds=0,
    participation=('uniform', {}),
    clip=clip_rules.QuantileEma(quantile=0.9, momentum=0.95, min_clip=0.0, max_clip=1.0),
    critical_layers='all',
    noise='client',
    max_agg_norm=10000.0,
    client_optimizer=optimizers.Sgd(0.0005),
  ),
  'reference_mnist': dict(
    DOCUMENTS,
    dataset='mnist',
    model='mnist_cnn',
    epsilon=6.0,
    warmup_rounds=5,
    count_during_warmup=False,
    participation=('hybrid_reference', {}),
    clip=clip_rules.QuantileEma(quantile=0.9, momentum=0.95, min_clip=0.1, max_clip=1.0, initial_clip=1.0),
    critical_layers='all_dense',
    noise='server',
    update_scale='pseudo_gradient',
    stop_at_accuracy=0.932,
    client_optimizer=optimizers.Sgd(0.005),
    client_learning_rate_decay=0.995,
  ),
  'femnist': dict(
    dataset='femnist',
    model='femnist_cnn',
    num_clients=None,
    cohort_size=30,
    rounds=200,
    epsilon=6.0,
    delta=1e-5,
    critical_layers='final_dense',
    noise='server',
    seed=42,
  ),
  'shakespeare': dict(
    dataset='shakespeare:length=40,test_roles=0.1',
    model='shakespeare_gru',
    num_clients=None,
    cohort_size=10,
    rounds=50,
    epsilon=6.0,
    delta=1e-5,
    critical_layers='final_dense',
    noise='server',
    seed=42,
    client_optimizer=optimizers.Sgd(1.0),
  ),
  'demo': dict(
    dataset='digits',
    num_clients=50,
    cohort_size=25,
    epsilon=10.0,
    rounds=60,
    critical_layers='final_dense',
    noise='server',
    participation=('beta', dict(a=2.0, b=5.0)),
    partition='dirichlet:alpha=0.5',
    noise_seed=None,
  ),
}

# Presets of other binaries than experiments.train; tests of those binaries read them.
OF_OTHER_BINARIES = ('_attack', '_audit')

# All clients in each round, client-level (3, 1e-5) unless a preset says otherwise, constants chosen elsewhere.
CERTIFIED_MNIST = dict(
  num_clients=100,
  partition='dirichlet:alpha=0.5',
  participation=('full', {}),
  model='linear_features',
  features='scattering:centred=true',
  algorithm='certified:weights=participation,noise=independent,clip=0.5',
  epsilon=3.0,
  delta=1e-5,
  rounds=20,
  warmup_rounds=0,
  local_epochs=10,
  batch_size=100000,
  client_optimizer=optimizers.Sgd(1.0),
  averaging='none',
  noise_seed=None,
  client_metrics=None,
  dataset='mnist',
  seed=42,
)
# 30% of the clients in each round, with noise that takes itself back.
CORRELATED_MNIST = dict(
  {name: value for name, value in CERTIFIED_MNIST.items() if name != 'warmup_rounds'},
  participation=('uniform', {}),
  cohort_size=30,
  features='pretrained:path=runs/extractor,size=128,centred=true',
  rounds=60,
  local_epochs=30,
  algorithm='certified:weights=online,noise=ar1,clip=0.25',
  averaging='planned',
)
CERTIFIED = {
  'mnist_secure_sum': dict(
    CORRELATED_MNIST, algorithm='certified:trust=secure_sum,noise=held,clip=0.15,colluders=1/10'
  ),
  'digits_secure_sum': dict(
    CORRELATED_MNIST,
    dataset='digits',
    features='scattering:scales=1',
    rounds=30,
    local_epochs=10,
    algorithm='certified:trust=secure_sum,noise=held,clip=0.5,colluders=1/5',
  ),
  'mnist_certified': CERTIFIED_MNIST,
  'mnist_certified_pretrained': dict(
    CERTIFIED_MNIST, features='pretrained:path=runs/extractor', local_epochs=30, averaging='tail:start=16'
  ),
  'cifar10_certified': dict(CERTIFIED_MNIST, dataset='cifar10', features='scattering'),
  'digits_certified': dict(CERTIFIED_MNIST, dataset='digits', features='scattering:scales=1'),
  'femnist_certified': dict(
    CERTIFIED_MNIST,
    dataset='femnist:test_writers=0.1',
    features='scattering',
    num_clients=None,
    rounds=40,
    participation=('bernoulli', dict(q=0.5)),
  ),
  'mnist_certified_correlated': CORRELATED_MNIST,
  'mnist_certified_epsilon1': dict(
    CORRELATED_MNIST,
    epsilon=1.0,
    features='pretrained:path=runs/extractor,size=64,centred=true',
    algorithm='certified:weights=online,noise=ar1,clip=0.06',
  ),
  'femnist_certified_correlated': dict(
    CORRELATED_MNIST,
    dataset='femnist:test_writers=0.1',
    num_clients=None,
    cohort_size=100,
    rounds=100,
    algorithm='certified:weights=online,noise=ar1,clip=1',
  ),
  'cifar10_certified_correlated': dict(
    CORRELATED_MNIST,
    dataset='cifar10',
    features='drawn:size=256',
    participation=('full', {}),
    cohort_size=None,
    rounds=20,
    local_epochs=10,
    algorithm='certified:weights=online,noise=ar1,clip=1',
  ),
}
CERTIFIED['cifar10_certified_imagenet'] = dict(
  CERTIFIED['cifar10_certified_correlated'], features='pretrained:path=runs/lite0,size=256,centred=true'
)
# Set-ups that other projects publish times of, without privacy.
PUBLISHED = {
  'flute_lr_mnist': dict(
    dataset='mnist',
    algorithm='fedavg',
    model='logistic_regression',
    num_clients=1000,
    cohort_size=10,
    rounds=100,
    participation=('uniform', {}),
    local_epochs=1,
    batch_size=10,
    client_optimizer=optimizers.Sgd(0.03),
    server_optimizer='sgd:learning_rate=1.0',
    eval_every=20,
  ),
  'pfl_cifar10_iid': dict(
    dataset='cifar10',
    algorithm='fedavg',
    model='mnist_cnn',
    partition='iid',
    num_clients=1000,
    cohort_size=50,
    rounds=1500,
    participation=('uniform', {}),
    local_epochs=1,
    batch_size=10,
    client_optimizer=optimizers.Sgd(0.1),
    server_optimizer='sgd:learning_rate=1.0',
    eval_every=10,
  ),
}


def _flagfile(name):
  return f'--flagfile={harness.PRESETS / name}.flags'


def _value(values, name):
  value = values[name].value
  if name == 'clip':
    return registry.parse_spec('clip rule', value, clip_rules.RULES)
  if name == 'client_optimizer':
    return registry.parse_spec('client optimizer', value, optimizers.OPTIMIZERS)
  if name == 'participation':
    choice = registry.parse_spec('participation model', value, cohorts.PARTICIPATION_MODELS)
    return value.partition(':')[0], vars(choice)
  return value


class TestPresets:
  def test_there_is_no_other(self):
    assert {path.stem for path in harness.PRESETS.iterdir() if not path.stem.endswith(OF_OTHER_BINARIES)} == {
      *EXPECTED,
      *CERTIFIED,
      *PUBLISHED,
    }

  @pytest.mark.parametrize('name', sorted({**EXPECTED, **CERTIFIED, **PUBLISHED}))
  def test_values(self, name):
    expected = {**EXPECTED, **CERTIFIED, **PUBLISHED}[name]
    with harness.parsed(_flagfile(name)) as values:
      found = {field: _value(values, field) for field in expected}
    if name == 'reference_mnist':
      found['participation'] = (found['participation'][0], {})  # Its parameters are its own; see data.cohorts.
    assert found == expected

  @pytest.mark.parametrize('name', sorted(EXPECTED))
  def test_builds_its_configuration(self, name):
    """Over digits, which are always there: everything but the images."""
    experiment = harness.experiment(_flagfile(name), '--dataset=digits', '--model=digits_cnn', '--num_clients=40')
    assert experiment.plan.config.budget.num_rounds == experiment.run.schedule.rounds == EXPECTED[name]['rounds']
    assert experiment.plan.config.critical_layers == EXPECTED[name]['critical_layers']
    assert not experiment.plan.protection.model_protected

  @pytest.mark.slow
  @pytest.mark.parametrize('name', sorted(CERTIFIED))
  def test_certified_ones_ask_for_no_less_and_keep_nothing_exact(self, name):
    arguments = ['--dataset=digits', '--num_clients=40', '--cohort_size=20', '--features=none']
    experiment = harness.experiment(_flagfile(name), *arguments)
    config = experiment.plan.config
    assert (config.epsilon, config.delta, config.noise_seed) == (CERTIFIED[name]['epsilon'], 1e-5, None)
    assert not experiment.plan.client_metrics and experiment.plan.protection.covers == 'released model'

  @pytest.mark.parametrize('name', sorted(PUBLISHED))
  def test_published_ones_build_without_privacy(self, name):
    experiment = harness.experiment(_flagfile(name), '--dataset=digits', '--model=digits_cnn')
    assert experiment.plan.config.noise.placement == 'none'
    cohort_size = PUBLISHED[name]['cohort_size']
    assert (len(experiment.federation.clients), len(experiment.cohorts.cohort(1))) == (1000, cohort_size)

  @pytest.mark.skipif(not (DATA / 'mnist.npz').exists(), reason='No real MNIST beside the repository.')
  @pytest.mark.parametrize('name', [name for name in sorted(EXPECTED) if 'mnist_' in name or '_mnist' in name])
  def test_runs_a_round_on_real_mnist(self, name, capsys):
    assert (
      harness.main(
        _flagfile(name),
        f'--data_dir={DATA}',
        '--num_clients=4',
        '--cohort_size=2',
        '--local_epochs=1',
        '--max_local_steps=1',
        '--stop_after=1',
        '--progress=none',
      )
      == 0
    )
    out, err = capsys.readouterr()
    assert 'mnist: 4 clients (dirichlet:alpha=0.5), 60,000 training and 10,000 test examples' in err
    assert '1,199,882 trained weights' in out
    summary = harness.last_line(out)
    assert (summary['rounds'], summary['planned_rounds']) == (1, 200)
    assert summary['model_protected'] is False
