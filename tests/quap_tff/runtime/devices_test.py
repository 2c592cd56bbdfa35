"""Tests of clients spread over devices, on a program of its own: devices are fixed once TensorFlow is in use."""

import subprocess
import sys

import pytest

_PROGRAM = """
import tensorflow as tf
import tensorflow_federated as tff

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

from quap_tff import runtime
from tests.quap_tff.runtime import cases
from tests.quap_tff.runtime import comparison

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


@pytest.mark.slow
def test_several_devices_give_the_same_bits_as_one():
  program = subprocess.run([sys.executable, '-c', _PROGRAM], capture_output=True, text=True, timeout=120)
  assert program.stdout.split() == ['same'], program.stderr[-2000:]
