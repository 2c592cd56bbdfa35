"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff.runtime.activation import activate as activate
from quap_tff.runtime.activation import client_values as client_values
from quap_tff.runtime.activation import measure_traffic as measure_traffic
from quap_tff.runtime.activation import prepare as prepare
from quap_tff.runtime.config import RuntimeConfig as RuntimeConfig
from quap_tff.runtime.in_process.context import InProcessContext as InProcessContext
from quap_tff.runtime.in_process.context import Statistics as Statistics
from quap_tff.runtime.values.errors import ClientError as ClientError
from quap_tff.runtime.values.errors import DeviceError as DeviceError
from quap_tff.runtime.values.errors import NotMergeableError as NotMergeableError
from quap_tff.runtime.values.errors import RuntimeStackError as RuntimeStackError
from quap_tff.runtime.values.errors import UnsupportedComputationError as UnsupportedComputationError
from quap_tff.runtime.values.errors import WorkerError as WorkerError
from quap_tff.runtime.values.traffic import Traffic as Traffic
from quap_tff.runtime.values.traffic import TrafficMeasurement as TrafficMeasurement
