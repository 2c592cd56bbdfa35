"""The in-process runtime gives what TFF's own context gives, for computations of every kind."""

import pytest
import tensorflow_federated as tff

from quap_tff import runtime
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def native():
  with runtime.activate(runtime.RuntimeConfig('native')) as context:
    yield context


# Large ones, made of what the others are made of.
_LARGE = {
  'fed_avg_iterator_loop',
  'fed_avg_keras',
  'fed_eval',
  'fed_kmeans',
  'gaussian_adaptive',
  'quantile_estimation',
  'robust_aggregator',
  'tree_aggregation',
}


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.thorough if name in _LARGE else ()) for name in sorted(cases.CASES)]
)
def test_in_process_gives_what_tffs_context_gives(native, context, name):
  results = []
  for one in (native, context):
    with tff.framework.get_context_stack().install(one):
      results.append(cases.CASES[name]())
  comparison.assert_same(results[1], results[0], tolerance=2e-5)
