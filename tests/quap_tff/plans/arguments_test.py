"""Arguments of another kind are refused in words, where they are given."""

import pytest

import quap_tff
from quap_tff import plans
from tests.quap_tff import examples

_SCHEDULE = examples.SCHEDULE


@pytest.mark.parametrize(
  'make, message',
  [
    (
      lambda: quap_tff.certified_plan(_SCHEDULE, examples.guarantee()),
      r'begins with its configuration, a .*CertifiedConfig or .*HeldConfig, found list: certified_plan\(config, sch',
    ),
    (
      lambda: quap_tff.certified_plan(quap_tff.QuapConfig(num_clients=4), _SCHEDULE),
      'begins with its configuration, a .*, found QuapConfig',
    ),
    (
      lambda: quap_tff.certified_plan(examples.guarantee(), _SCHEDULE, averaging='planned'),
      r"averaging must be a value such as quap_tff.postprocessing.Planned\(\), found 'planned'",
    ),
    (
      lambda: plans.Plan(examples.whole(), _SCHEDULE),
      'draw must be a Sampler, found list. A schedule is for quap_tff.certified_plan',
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
    quap_tff.certified_plan(examples.guarantee(), schedule)


def test_the_values_that_the_errors_name():
  averaging = quap_tff.postprocessing.Planned()
  plan = quap_tff.certified_plan(examples.guarantee(), _SCHEDULE, averaging=averaging)
  assert plan.averaging in averaging.candidates(len(_SCHEDULE))
