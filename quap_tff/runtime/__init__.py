"""Execution contexts: where TFF computations run."""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'activation': ['activate', 'client_values', 'measure_traffic', 'prepare'],
    'config': ['RuntimeConfig'],
    'values.errors': [
      'ClientError',
      'DeviceError',
      'NotMergeableError',
      'RuntimeStackError',
      'UnsupportedComputationError',
      'WorkerError',
    ],
    'in_process.context': ['InProcessContext', 'Statistics'],
    'values.traffic': ['Traffic', 'TrafficMeasurement'],
  },
)
