"""Tests run TFF computations in this process, unless they say otherwise."""

import os

# Before TensorFlow is loaded: its log of sessions would bury what a failed test says.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow_federated as tff

from quap_tff import runtime

# Also lets go of TFF's own default context now: left to the interpreter's exit, it complains there.
tff.framework.set_default_context(runtime.InProcessContext(num_threads=2))
