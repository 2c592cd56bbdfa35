"""The presets: each is a run or an attack that can begin, and those of the documents have what the documents print."""

import pytest

from tests.experiments import harness

DATA = harness.REPOSITORY.parent / 'shared' / 'data'

# Presets of other binaries than experiments.train; tests of those binaries read them.
OF_OTHER_BINARIES = ('_attack', '_audit')
NAMES = sorted(path.stem for path in harness.PRESETS.iterdir() if not path.stem.endswith(OF_OTHER_BINARIES))
CERTIFIED = [name for name in NAMES if '_certified' in name or '_secure_sum' in name]
PUBLISHED = ['flute_lr_mnist', 'pfl_cifar10_iid']  # Without privacy, by other projects.

# What the documents share: N=100, M=30, T=200, 3 epochs of batches of 32, Dirichlet(0.5), δ, α, β.
DOCUMENTS = dict(
  num_clients=100,
  cohort_size=30,
  rounds=200,
  partition='dirichlet:alpha=0.5',
  delta=1e-5,
  alpha=0.5,
  beta=2.0,
  round_budget='cohort_mean_rate',
  local_epochs=3,
  batch_size=32,
  gaussian_calibration='classic',
)
NOVEMBER = dict(DOCUMENTS, epsilon=6.0, warmup_rounds=5, participation='beta:a=2,b=5', critical_layers='final_dense')
OF_DOCUMENTS = {
  'mnist_2025': NOVEMBER,
  'cifar10_2025': NOVEMBER,
  'mnist_v112': dict(DOCUMENTS, epsilon=3.0, warmup_rounds=0, critical_layers='all', noise='client'),
  'reference_mnist': dict(DOCUMENTS, epsilon=6.0, warmup_rounds=5, critical_layers='all_dense', stop_at_accuracy=0.932),
}


def _flagfile(name):
  return f'--flagfile={harness.PRESETS / name}.flags'


class TestPresets:
  @pytest.mark.parametrize('name', NAMES)
  def test_is_in_order_before_data_are_read(self, name):
    harness.check(_flagfile(name))
    run = harness.run(_flagfile(name))
    assert run.method.gives_certificate == (name in CERTIFIED)

  @pytest.mark.parametrize('name', NAMES)
  def test_leaves_nothing_to_the_public_rule(self, name):
    """Its constants are its own, also under the methods that have those of a public rule."""
    own = harness.run(_flagfile(name))
    for method in ([], ['--algorithm=fedavg'], ['--algorithm=certified:clip=0.5']):
      run = harness.run(_flagfile(name), *method)
      assert not run.by_rule and (run.local, run.data) == (own.local, own.data)

  @pytest.mark.parametrize('name', OF_DOCUMENTS)
  def test_has_what_the_documents_print(self, name):
    with harness.parsed(_flagfile(name)) as values:
      assert {flag: values[flag].value for flag in OF_DOCUMENTS[name]} == OF_DOCUMENTS[name]

  @pytest.mark.slow
  @pytest.mark.parametrize('name', [name for name in NAMES if name not in CERTIFIED + PUBLISHED])
  def test_builds_its_configuration_and_promises_nothing(self, name):
    """Over digits, which are always there: everything but the images."""
    experiment = harness.experiment(_flagfile(name), '--dataset=digits', '--model=digits_cnn', '--num_clients=40')
    assert experiment.plan.config.noise.seed is None and not experiment.plan.protection.model_protected

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name',
    [
      pytest.param(name, marks=() if name in ('mnist_secure_sum', 'mnist_certified') else pytest.mark.thorough)
      for name in CERTIFIED
    ],
  )
  def test_certified_ones_keep_nothing_exact(self, name):
    arguments = ['--dataset=digits', '--num_clients=40', '--cohort_size=20', '--features=none']
    experiment = harness.experiment(_flagfile(name), *arguments)
    config = experiment.plan.config
    assert (config.epsilon, config.delta, config.noise_seed) == (1.0 if 'epsilon1' in name else 3.0, 1e-5, None)
    assert not experiment.plan.client_metrics and experiment.plan.protection.covers == 'released model'

  @pytest.mark.slow
  @pytest.mark.parametrize('name', PUBLISHED)
  def test_published_ones_build_without_privacy(self, name):
    experiment = harness.experiment(_flagfile(name), '--dataset=digits', '--model=digits_cnn')
    assert experiment.plan.config.noise.placement == 'none' and len(experiment.federation.clients) == 1000

  @pytest.mark.slow
  @pytest.mark.thorough
  @pytest.mark.skipif(not (DATA / 'mnist.npz').exists(), reason='No real MNIST beside the repository.')
  def test_runs_a_round_on_real_mnist(self, capsys):
    flags = ['--num_clients=4', '--cohort_size=2', '--local_epochs=1', '--max_local_steps=1', '--stop_after=1']
    assert harness.main(_flagfile('mnist_v112'), f'--data_dir={DATA}', *flags, '--progress=none') == 0
    out, err = capsys.readouterr()
    assert 'mnist: 4 clients (dirichlet:alpha=0.5), 60,000 training and 10,000 test examples' in err
    assert '1,199,882 trained weights' in out
    summary = harness.last_line(out)
    assert (summary['rounds'], summary['planned_rounds']) == (1, 200)
    assert summary['model_protected'] is False
