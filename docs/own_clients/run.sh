#!/usr/bin/env bash
# Plays a run on this machine whose clients train by a program of one's own: a server, and four nodes of 25 clients.
#
#     cd PROJECT
#     docs/own_clients/run.sh FOLDER docs/own_clients/digits_torch.py experiments/presets/digits_certified.flags
#     docs/own_clients/run.sh FOLDER docs/own_clients/digits_torch.py experiments/presets/digits_secure_sum.flags
#
# The second run has no trusted server. FOLDER is new, and what follows the preset are more flags of the export. The
# Python on the path has '.[flower]' and the framework of the program; TFF=… names the one that has TFF. Everything that
# was started ends with this program.
set -euo pipefail
project=$PWD program=$(realpath "$2") preset=$(realpath "$3") tff=$(realpath -s "${TFF:-.venv/bin/python}") port=${PORT:-8000}
module=$(basename "$program" .py)
mkdir "$1" && cd "$1"
cp "$program" .
export PYTHONPATH=$project FLWR_HOME=$PWD/flower FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export CUDA_VISIBLE_DEVICES= PYTHONUNBUFFERED=1
umask 077
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

# The plan, and the first weights.
python "$module.py"
PYTHONPATH=$project "$tff" -m experiments.export --flagfile="$preset" --weights=weights.npz --output=bundle \
  --clients=clients.npz "${@:4}"

# The server.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=run \
  -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout server.key -out server.pem 2>openssl.log
openssl rand -out superexec.secret 32
flower-superlink --host=127.0.0.1 --port="$port" --ssl-certfile=server.pem --ssl-keyfile=server.key \
  --ssl-ca-certfile=server.pem --enable-supernode-auth --disable-runtime-dependency-installation \
  --database=flower.sqlite --isolation=process --superexec-auth-secret-file=superexec.secret >superlink.log 2>&1 &
python -m quap_tff.flower operator operator
mkdir flower nodes
printf '[superlink.mine]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' "$port" "$PWD/server.pem" \
  >flower/config.toml

# The nodes. Each one's `--train` names the function in the file of this folder.
first=(0 25 50 75)
for node in 0 1 2 3; do
  python -m quap_tff.flower enrol "node$node" --clients="${first[$node]}-$((first[node] + 24))"
  cp "node$node/enrolment.json" "nodes/node$node.json"
done
until (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null; do sleep 1; done
for node in 0 1 2 3; do
  flwr supernode register "node$node/node_key.pub" mine
  python -m quap_tff.flower node "node$node" --superlink=127.0.0.1:"$port" --root-certificates=server.pem \
    --operator=operator/operator_key.pub --bundle=bundle --enrolment=nodes --train="$module:train" \
    >"node$node.log" 2>&1 &
done

# The run.
python -m quap_tff.flower app app --bundle=bundle --enrolment=nodes --operator=operator --output=out
python -m quap_tff.flower server app --superlink=127.0.0.1:"$port" --root-certificates=server.pem \
  --secret=superexec.secret --evaluate="$module:evaluate" >server.log 2>&1 &
flwr run app mine --stream
python -m quap_tff.verify out
cat out/summary.json
