"""Tests of `quap_tff.runtime.config`."""

import pytest

from quap_tff import runtime


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(kind='in_proces'), r"Unknown runtime 'in_proces'\. Did you mean 'in_process'"),
    (dict(device='gpus'), r"Unknown device 'gpus'\. Did you mean 'gpu'"),
    (dict(num_threads=0), 'num_threads must be an integer at least 1, found 0'),
    (dict(clients_per_call=0), 'clients_per_call must be an integer at least 1, found 0'),
    (dict(kind='native', clients_per_call=4), 'clients_per_call is for the runtime "in_process", found it with'),
    (dict(num_workers=0), 'num_workers must be an integer at least 1, found 0'),
    (dict(kind='native', device='gpu'), 'cannot use a GPU'),
  ],
)
def test_what_cannot_be_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    runtime.RuntimeConfig(**arguments)


def test_defaults():
  config = runtime.RuntimeConfig()
  assert (config.kind, config.device) == ('in_process', 'auto')
  assert config.resolved_num_threads() >= 1
  assert runtime.RuntimeConfig(num_threads=3).resolved_num_threads() == 3
