#!/bin/sh
# Makes an environment for each peer under build/peers/: about 2 GB and a few minutes. Nothing else uses them.
#
#     docs/benchmarks/peers/setup.sh [DIR [PIP_OPTION ...]]
#
# It needs python3.11 (PYTHON=... names another one). The package index has PyTorch's builds for GPUs. They are much
# larger and as fast on a CPU. To install the builds for CPUs, name PyTorch's own index with pip's --extra-index-url.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../../../build/peers}
if [ $# -gt 0 ]; then shift; fi
for peer in pfl flower; do
  "${PYTHON:-python3.11}" -m venv --clear "$target/$peer"
  "$target/$peer/bin/python" -m pip install --disable-pip-version-check --no-deps "$@" -r "$here/requirements-$peer.txt"
done
