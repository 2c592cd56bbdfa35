"""Execution contexts: where TFF computations run."""

from quap_tff.runtime.activation import activate
from quap_tff.runtime.activation import measure_traffic
from quap_tff.runtime.activation import prepare
from quap_tff.runtime.config import RuntimeConfig
from quap_tff.runtime.errors import ClientError
from quap_tff.runtime.errors import DeviceError
from quap_tff.runtime.errors import NotMergeableError
from quap_tff.runtime.errors import RuntimeStackError
from quap_tff.runtime.errors import UnsupportedComputationError
from quap_tff.runtime.errors import WorkerError
from quap_tff.runtime.in_process import AsyncInProcessContext
from quap_tff.runtime.in_process import InProcessContext
from quap_tff.runtime.in_process import Statistics
from quap_tff.runtime.traffic import Measurement
from quap_tff.runtime.traffic import Traffic
