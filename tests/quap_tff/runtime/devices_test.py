"""Tests of devices and thread pools, on a program of their own: both are fixed once TensorFlow is in use."""

import sys

import pytest

from tests import processes

_POOLS = """
import tensorflow as tf

from quap_tff import runtime

pools = tf.config.threading
runtime.prepare(runtime.RuntimeConfig(device='cpu', num_threads=1))
print(pools.get_inter_op_parallelism_threads(), pools.get_intra_op_parallelism_threads())
pools.set_inter_op_parallelism_threads(2)
runtime.prepare(runtime.RuntimeConfig(device='cpu', num_threads=1))
print(pools.get_inter_op_parallelism_threads(), pools.get_intra_op_parallelism_threads())
"""
_DEVICES = """
import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import runtime
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

def results(num_threads, devices, *names):
  context = runtime.InProcessContext(num_threads, devices)
  with tff.framework.get_context_stack().install(context):
    found = [cases.CASES[name]() for name in ('dependent_levels', 'sequences', *names)]
  context.close()
  return found

one = results(2, ['/device:CPU:0'], 'fed_avg_iterator_loop')
several = results(3, ['/device:CPU:0', '/device:CPU:1', '/device:CPU:2'], 'fed_avg_iterator_loop')
comparison.assert_same(several, one, tolerance=0)
other = results(2, ['/device:CPU:1'])
comparison.assert_same(other, one[:2], tolerance=0)
print('same')
"""


def _printed(program):
  """The lines that a program prints."""
  pytest.importorskip('tensorflow_federated')
  found = processes.run([sys.executable, '-c', program])
  assert not found.returncode, found.stderr[-2000:]
  return found.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.slow
def test_several_devices_give_the_same_bits_as_one():
  assert _printed(_DEVICES) == ['same']


@pytest.mark.slow
def test_each_client_has_one_thread_of_the_pool_unless_the_program_chose():
  assert _printed(_POOLS) == ['1 1', '2 1']
