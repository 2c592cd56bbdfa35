"""Runs whose cohorts are secret: their noise, what they keep, how they go on, and where secret cohorts are refused."""

import hmac
import json

import dp_accounting
from dp_accounting import pld
import pytest

from experiments.command import run_choices as run_parts
from experiments.folders import folder as run_folder
from experiments.running import loop
from quap_tff import certificates
from tests.experiments import harness

_SECRET = [
  *harness.TINY,
  '--algorithm=tff_dp_fedavg:clip=0.3',
  '--participation=bernoulli:q=0.4',
  '--cohort_seed=secret',
  '--calibration=exact',
  '--epsilon=3',
]


_CERTIFIED = [
  *harness.TINY,
  '--algorithm=certified',
  '--participation=bernoulli:q=0.4',
  '--cohort_seed=secret',
  '--epsilon=3',
]

_EXAMPLES = loop.RoundExamples.__getitem__


def _cohorts(experiment):
  return [cohort.tolist() for cohort in experiment.schedule]


@pytest.mark.slow
class TestExperiment:
  def test_two_runs_of_one_seed_have_different_cohorts_and_the_same_noise(self):
    one, other = harness.experiment(*_SECRET), harness.experiment(*_SECRET)
    assert _cohorts(one) != _cohorts(other) and one.cohorts.secret
    public = harness.experiment(*[argument for argument in _SECRET if 'cohort_seed' not in argument])
    assert _cohorts(public) not in (_cohorts(one), _cohorts(other)) and not public.cohorts.secret
    # Another seed has other public cohorts, and another noise for those.
    reseeded = harness.experiment(*_SECRET, '--seed=7')
    [multiplier] = {found.plan.mechanism.noise_multiplier for found in (one, other, reseeded)}
    assert multiplier < public.plan.mechanism.noise_multiplier

  def test_without_the_flag_there_is_no_amplification(self):
    plan = harness.experiment(*[a for a in _SECRET if 'cohort_seed' not in a], '--noclient_metrics').plan
    figures = plan.report(plan.planned_ledger([[0, 1]] * 8)).formal.figures
    assert {figure.amplification for figure in figures} == {'none'}

  def test_every_claim_is_that_of_the_library(self):
    experiment = harness.experiment(*_SECRET)
    plan = experiment.plan
    event = dp_accounting.PoissonSampledDpEvent(0.4, dp_accounting.GaussianDpEvent(plan.mechanism.noise_multiplier))
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3).compose(event, 8)
    report = plan.report(plan.planned_ledger(experiment.schedule)).formal
    figure = min(report.figures, key=lambda found: found.epsilon_max)
    assert figure.accountant == 'pld' and figure.neighbours == 'add or remove one client'
    assert figure.epsilon_max == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert 3 * (1 - 1e-3) < figure.epsilon_max <= 3
    assert figure.amplification.startswith(
      'Poisson sampling, q = 0.4; assumes that cohorts, their sizes and their seed'
    )


@pytest.mark.slow
class TestFolder:
  @pytest.mark.thorough
  def test_a_run_in_two_parts_has_the_cohorts_of_one(self, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
      loop.RoundExamples, '__getitem__', lambda examples, client: seen.append(client) or _EXAMPLES(examples, client)
    )
    run = [*_SECRET, f'--output_dir={tmp_path}', '--keep_checkpoints']
    assert harness.main(*run, '--stop_after=3') == 0
    secret = run_folder.read_secret(str(tmp_path))
    assert harness.main(*run) == 0
    cohort_seed = int.from_bytes(hmac.digest(secret, b'cohort_seed', 'sha256'), 'big')
    model = harness.run(*_SECRET).participation(8, cohort_seed)
    assert seen == [client for t in range(1, 9) for client in model.cohort(t)]
    assert run_folder.read_secret(str(tmp_path)) == secret

  @pytest.mark.thorough
  def test_nothing_that_follows_from_the_cohorts_is_left(self, tmp_path, capsys):
    folders, summaries = [tmp_path / 'one', tmp_path / 'other'], []
    # Nobody comes to most rounds.
    flags = ['--participation=bernoulli:q=0.05', '--progress=lines']
    for folder in folders:
      assert harness.main(*_SECRET, *flags, f'--output_dir={folder}') == 0
      captured = capsys.readouterr()
      assert 'cohorts secret' in captured.out and 'Keep this progress' in captured.err
      assert 'nobody took part' not in captured.err
      assert sorted(path.name for path in folder.iterdir()) == [
        '.lock',
        'final_model.keras',
        'metrics.csv',
        'plot.png',
        'run.json',
        'summary.json',
      ]
      assert set(harness.rows(folder)[0]) == {
        'round',
        'clipping_norm',
        'noise_multiplier',
        'sigma',
        'test_accuracy',
        'test_loss',
      }
      assert json.loads((folder / 'run.json').read_text())['identity']['cohort_seed'] == run_parts.SECRET
      summaries.append({**harness.summary(folder), 'output_dir': None, 'test_accuracy': None, 'test_loss': None})
    # Who came differs from run to run, and the summaries do not show it.
    assert summaries[0] == summaries[1]

  def test_another_kind_of_cohorts_is_another_run(self, tmp_path, capsys):
    public = [argument for argument in _SECRET if 'cohort_seed' not in argument]
    assert harness.main(*_SECRET, f'--output_dir={tmp_path}', '--stop_after=1', '--keep_checkpoints') == 0
    assert harness.main(*public, f'--output_dir={tmp_path}') == 1
    assert "--cohort_seed: 'secret' there, None now" in capsys.readouterr().err


@pytest.mark.slow
class TestCertified:
  def test_two_runs_show_nothing_of_their_cohorts(self, tmp_path, capsys):
    mechanisms, summaries = [], []
    for name in ('one', 'other'):
      run = [*_CERTIFIED, f'--output_dir={tmp_path / name}', '--progress=lines']
      assert harness.main(*run) == 0
      captured = capsys.readouterr()
      assert 'add or remove; cohorts secret' in ' '.join(captured.out.split())
      assert 'nobody took part' not in captured.err
      left = {path.name for path in (tmp_path / name).iterdir()}
      assert left == {'.lock', 'certificate', 'metrics.csv', 'plot.png', 'run.json', 'summary.json'}
      # What is sent in a round where nobody comes is nothing, so it would show these rounds.
      of_cohorts = {'cohort_size', 'spent_max', 'up_bytes_per_client', 'down_bytes_per_client'}
      assert not of_cohorts & set(harness.rows(tmp_path / name)[0])
      mechanisms.append((tmp_path / name / 'certificate' / 'mechanism.json').read_text())
      summaries.append(
        {**harness.summary(tmp_path / name), 'output_dir': None, 'test_accuracy': None, 'test_loss': None}
      )
    constants = [json.loads(text)['mechanism'] for text in mechanisms]
    assert constants[0] == constants[1] and summaries[0] == summaries[1]
    verdict = certificates.verify(str(tmp_path / 'one'))
    assert not verdict.problems and 'The coins must stay secret' in verdict.statement
    page = (tmp_path / 'one' / 'certificate' / 'certificate.html').read_text(encoding='utf-8')
    assert 'as long as they do not learn in which rounds' in page and 'cohorts follow from a public seed' not in page
    assert summaries[0]['formal']['figures'][0]['epsilon_max'] <= 3

  def test_a_run_in_two_parts_states_the_planned_rounds(self, tmp_path):
    run = [*_CERTIFIED, f'--output_dir={tmp_path}']
    assert harness.main(*run, '--stop_after=2') == 0
    stopped = certificates.verify(str(tmp_path))
    assert not stopped.problems and 'over all 8 planned rounds, wherever the run ended' in stopped.statement
    first = json.loads((tmp_path / 'certificate' / 'certificate.json').read_text())
    assert harness.main(*run) == 0
    last = json.loads((tmp_path / 'certificate' / 'certificate.json').read_text())
    assert first['guarantee'] == last['guarantee'] and first['achieved'] == last['achieved']


class TestRefusals:
  @pytest.mark.parametrize(
    'arguments, words',
    [
      ('--algorithm=certified:trust=secure_sum', 'clients see who is announced'),
      ('--algorithm=certified:noise=ar1', 'noise=ar1 has no proof for secret coins'),
      ('--algorithm=certified:weights=uniform', 'weights follow from the rates of the coins alone'),
      ('--algorithm=certified:expected=7', 'the noise follows from rates'),
      ('--algorithm=quap', '--algorithm=quap divides sums by the number of clients that came'),
      ('--algorithm=fixed_dp', 'Use --algorithm=certified or tff_dp_fedavg'),
      ('--algorithm=local_dp', '--algorithm=local_dp divides sums'),
      ('--algorithm=fedavg', '--algorithm=fedavg adds no noise'),
      ('--participation=uniform', 'independent coins: --participation=bernoulli, beta_bernoulli or extreme_imbalance'),
      ('--participation=full', 'found full'),
      ('--participation=markov', 'found markov'),
      ('--participation=uniform --cohort_size=5', 'found uniform'),
      ('--dropout=bernoulli', 'who drops out follows from --seed, which is public'),
      ('--client_metrics', 'Leave --client_metrics out'),
      ('--dataset=femnist', 'Test on others: --dataset=femnist:test_writers=0.1'),
    ],
  )
  def test_before_data_are_read(self, arguments, words):
    flags = ['--cohort_seed=secret', '--participation=bernoulli', '--algorithm=tff_dp_fedavg']
    message = harness.refusal(*flags, *arguments.split())
    assert message.startswith('--cohort_seed=secret') and words in message

  @pytest.mark.parametrize('algorithm', ['tff_dp_fedavg', 'certified'])
  @pytest.mark.parametrize('participation', ['bernoulli:q=0.2', 'beta_bernoulli', 'extreme_imbalance'])
  def test_independent_coins_are_taken(self, participation, algorithm):
    harness.check('--cohort_seed=secret', f'--participation={participation}', f'--algorithm={algorithm}')

  @pytest.mark.slow
  @pytest.mark.parametrize('algorithm, reason', [('tff_dp_ftrl', 'the noise was chosen on the planned cohorts')])
  def test_a_plan_without_amplification_before_anything_is_trained(self, algorithm, reason):
    with pytest.raises(ValueError, match=f'secret cohorts amplify nothing: {reason}. Leave this flag out'):
      harness.experiment(*_SECRET, f'--algorithm={algorithm}')
