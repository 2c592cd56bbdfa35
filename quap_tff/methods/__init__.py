"""The methods by name. A new method is a class in a file here and a line in `METHODS`.

A method from outside the package needs no edit here: `METHODS['mine'] = Mine`, before the flags are read. See
CONTRIBUTING.md for an example. Nothing here loads TensorFlow.
"""

from collections.abc import Mapping
import re

from quap_tff.common import checks
from quap_tff.common import flag_fields
from quap_tff.common import registry
from quap_tff.methods import base
from quap_tff.methods import choices
from quap_tff.methods import extended
from quap_tff.methods import tff_methods

Method = base.Method
Setting = base.Setting
FLAGS, PARTS = choices.FLAGS, choices.PARTS

METHODS: dict[str, type[Method]] = {
  # Methods that others can be built around.
  **extended.BASES,
  'tff_dp_fedavg': tff_methods.TffDpFedAvg,
  'tff_dp_fedavg_adaptive': tff_methods.TffDpFedAvgAdaptive,
  'tff_layerwise_adaptive': tff_methods.TffLayerwiseAdaptive,
  'tff_dp_ftrl': tff_methods.TffDpFtrl,
}


def parse(spec: str, flags: Mapping[str, checks.Unchecked] = {}) -> Method:
  """The method that a spec names, e.g. `fixed_dp:clip=0.5`.

  Args:
    spec: A key of `METHODS`, with parameters.
    flags: The texts or values that were written for the flags of `parts.FLAGS`, by name. Flags that are left out have
      their defaults.

  Raises:
    ValueError: For an unknown name, or for a value that is out of range or of the wrong type.
  """
  return flag_fields.decoded(registry.parse_spec('algorithm', spec, METHODS), flags)


def table() -> str:
  """The methods, a line `name:parameters  description` for each."""
  return '\n'.join(f'{registry.described(name, one)}  {_first_sentence(one)}' for name, one in METHODS.items())


def _first_sentence(one: type[Method]) -> str:
  first_paragraph = ' '.join((one.__doc__ or '').partition('\n\n')[0].split())
  return re.split(r'(?<! al)\. |[:,] see `', first_paragraph)[0].rstrip('.') + '.'
