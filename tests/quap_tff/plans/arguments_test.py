"""Arguments of another kind are refused in words, where they are given."""

import dataclasses

import pytest

import quap_tff
from quap_tff import plans
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.parts import postprocessing
from tests.quap_tff import examples

_SCHEDULE = examples.SCHEDULE


@pytest.mark.parametrize(
  'make, message',
  [
    (
      lambda: quap_tff.Plan.certified(_SCHEDULE, examples.guarantee()),
      r'begins with its configuration, a .*CertifiedConfig or .*HeldConfig, found list: Plan.certified\(config, sch',
    ),
    (
      lambda: quap_tff.Plan.certified(quap_tff.QuapConfig(num_clients=4), _SCHEDULE),
      'begins with its configuration, a .*, found QuapConfig',
    ),
    (
      lambda: quap_tff.Plan.certified(examples.guarantee(), _SCHEDULE, averaging='planned'),
      r"averaging must be a value such as postprocessing.PlannedAverage\(\), found 'planned'",
    ),
    (lambda: plans.Plan([1]), r'needs a configuration, such as quap_tff.QuapConfig\(num_clients=100\), found \[1\]'),
    (
      lambda: plans.Plan(examples.whole()).build_process('cnn'),
      "model_fn must be a function that makes a TFF model anew, or a FunctionalModel, found 'cnn'",
    ),
    (
      lambda: plans.Plan(examples.whole(), _SCHEDULE),
      'draw must be a CohortSampler, found list. A schedule is for quap_tff.certified',
    ),
  ],
)
def test_of_a_plan(make, message):
  with pytest.raises(TypeError, match=message):
    make()


@pytest.mark.parametrize('schedule', [5, examples.guarantee()])
def test_what_is_no_schedule(schedule):
  with pytest.raises(
    ValueError, match=r'A schedule must be a sequence with int\[clients\] for each planned round, found'
  ):
    quap_tff.Plan.certified(examples.guarantee(), schedule)


def test_the_values_that_the_errors_name():
  averaging = postprocessing.PlannedAverage()
  plan = quap_tff.Plan.certified(examples.guarantee(), _SCHEDULE, averaging=averaging)
  assert plan.averaging in averaging.candidates(len(_SCHEDULE))


@pytest.mark.parametrize('name', ['mechanism', 'extension', 'model', 'leaving', 'process', 'more'])
def test_nothing_is_assigned_from_outside(name):
  with pytest.raises(dataclasses.FrozenInstanceError):
    setattr(plans.Plan(examples.whole()), name, None)


def test_a_copy_with_other_options():
  plan = plans.Plan(examples.whole(), sparsity=sparsity.RandomMask(0.5), sparsity_seed=3)
  copy = dataclasses.replace(plan, client_metrics=False, sparsity_seed=4)
  assert copy.mechanism == dataclasses.replace(plan.mechanism, seed=4) and copy.mechanism.inner == examples.whole()
  assert copy.exact_logs == () != plan.exact_logs and copy.sparsity == plan.sparsity and type(copy) is plans.Plan
