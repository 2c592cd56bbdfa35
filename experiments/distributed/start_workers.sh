#!/bin/sh
# Starts one worker behind TLS on each of several machines through ssh, and prints the flags of a run that uses them.
# Ctrl-C ends the workers.
#
#     experiments/distributed/start_workers.sh FOLDER PORT HOST...
#
# On each machine FOLDER holds this project, set up by `make setup`, and in credentials/ what make_credentials.sh made
# for workers (DIR/worker).
set -eu
[ $# -ge 3 ] || { echo "usage: $0 FOLDER PORT HOST..." >&2; exit 2; }
folder=$1 port=$2
shift 2
addresses= pids=
for host; do
  # With a terminal (-tt) the remote command ends when this one does.
  ssh -tt "$host" "cd '$folder' && exec .venv/bin/python -m experiments.worker --port=$port --credentials=credentials" \
    </dev/null &
  pids="$pids $!"
  addresses=$addresses${addresses:+,}$host:$port
done
trap 'kill $pids 2>/dev/null' EXIT
trap 'exit 130' INT TERM
echo "--runtime=workers --worker_addresses=$addresses --worker_credentials=DIR/program"
wait
