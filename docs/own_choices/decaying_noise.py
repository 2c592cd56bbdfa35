"""An example of a certified mechanism, with the method that makes it and with its tests.

The account is exact: round t, whose noise is f_t times as large, costs a client of weight w (w/(f_t·z))² of its μ², and
z is chosen so that the budgets are used. Clipping, the filter and the rounding are those of `Certified`.

    python -m pytest decaying_noise.py                              # the contract that all mechanisms keep
    python -m quap_tff.verify --import=decaying_noise FOLDER        # the figures rest on this file
"""

import dataclasses

import pytest

from quap_tff import methods
from quap_tff.certificates.folders import folder
from quap_tff.common import array_types
from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.common.numbers import arrays
from quap_tff.mechanisms.certified import config
from quap_tff.mechanisms.noise import correlation
from quap_tff.methods import base
from quap_tff.methods import certified_method
from quap_tff.plans import plan as plan_lib
from tests.contracts import mechanisms


@dataclasses.dataclass(frozen=True)
class DecayingNoise(config.CertifiedConfig):
  """A certified run whose noise shrinks from round to round, because a model that is nearly right needs small steps.

  Attributes:
    decay: In (0, 0.999], the factor from one round's noise to the next.
  """

  decay: float = checks.number_field('decay of the noise', 0.9, above=0, at_most=0.999)

  def noise_scale(self, round_num: array_types.Numbers) -> array_types.Numbers:
    """f_t = decay^(t-T): the last round has the least noise, which is z·C."""
    rounds_left = arrays.namespace(round_num).maximum(self.num_rounds - round_num, 0)
    return 1 / arrays.whole_power(self.decay, rounds_left)


@dataclasses.dataclass(frozen=True)
class DecayingNoiseMethod(certified_method.CertifiedMethod):
  """Certified QuAP-FL whose noise shrinks from round to round. Under correlated noise it could not."""

  noise: correlation.Correlation = flag_fields.parameter('noise correlation', correlation.FAMILIES, 'independent')
  decay: float = 0.9

  def configure(self, setting: base.Setting) -> config.CertifiedConfig:
    asked = registry.parameter_values(super().configure(setting))
    return DecayingNoise(**asked, decay=self.decay)


folder.MECHANISMS['decaying_noise'] = DecayingNoise
methods.METHODS['decaying_noise'] = DecayingNoiseMethod


class TestDecayingNoise(mechanisms.MechanismContract):
  @pytest.fixture(scope='class')
  def plan(self) -> plan_lib.Plan:
    method = methods.parse('decaying_noise:decay=0.8', {'epsilon': 3.0})
    return method.plan(mechanisms.setting())
