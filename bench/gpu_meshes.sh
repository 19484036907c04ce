#!/usr/bin/env bash
# Meshes of two GPUs against one: the same rows on each, five steps, and the largest relative difference of grad_norm and loss.
# bench/gpu_meshes.sh [BIN]: BIN is a folder with the tools; without it they are built. DEVICE=cpu plays it on this machine's
# CPU. Names that end in -plain gather without windows. Ends with 1 when a mesh is off by more than 1e-2 (bfloat16, and its
# float8 recipes) or 1e-5 (float32), or fails.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bin=${1:-$work/bin}
[ -n "${1:-}" ] || go build -o "$bin/" ./tools/...
PATH=$bin:$PATH
device=${DEVICE:-cuda} steps=${STEPS:-5}
model="--model debugmodel --seq-len 256 --steps $steps --global-batch-size 8"
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}

# plan MORE...: a job.
plan() {
  # shellcheck disable=SC2086
  meshplan $model "$@" > "$work/plan"
  if [[ "$*" == *--pp* ]]; then pp-split -i "$work/plan" > "$work/job"; else mv "$work/plan" "$work/job"; fi
}

# run NAME DTYPE MORE... < manifest: trains, and leaves its metrics and its log. A recipe of float8 is a DTYPE too.
run() {
  local name=$1 dtype=$2 compute=$2 began=$SECONDS
  shift 2
  case $dtype in tensorwise | rowwise | rowwise_with_gw_hp) compute="bfloat16 --float8 $dtype" ;; esac
  # shellcheck disable=SC2086
  timeout 120 ${LAUNCH:-} titan-run --device "$device" --dtype $compute --data 'docs/*.md' --data README.md --metrics "$work/$name.$dtype" \
    --log-freq 1 --comm-init-timeout 60 --comm-timeout 20 "$@" > "$work/$name.json" 2> "$work/$name.log" || { echo "$name $dtype FAILED"; tail -n 12 "$work/$name.log"; failed=1; }
  took=$((SECONDS - began))
}

# compare NAME DTYPE: the largest relative difference from one GPU, step by step.
compare() {
  local limit=1e-5 one=one
  [ "$2" = float32 ] || limit=1e-2
  [[ $1 != *-tied ]] || one="one-tied"
  [[ $1 != *-long ]] || one="one-long"
  [ -s "$work/$1.$2" ] || return 0
  paste -d '\n' "$work/$one.$2" "$work/$1.$2" | sed 's/[{},"]/ /g; s/:/ /g' | awk -v name="$1" -v dtype="$2" -v limit="$limit" -v took="$took" '
    { norm = ""; loss = ""
      for (i = 1; i < NF; i++) { if ($i == "grad_norm") norm = $(i + 1); if ($i == "loss") loss = $(i + 1); if ($i == "step") step = $(i + 1) }
      if (NR % 2) { n = norm; l = loss; s = step; next }
      if (s != step) bad = 1
      d = (norm - n) / n; d = d < 0 ? -d : d; if (d > dn) dn = d
      e = (loss - l) / l; e = e < 0 ? -e : e; if (e > dl) dl = e }
    END { ok = !bad && NR > 0 && dn <= limit && dl <= limit
      printf "%-22s %-10s %2d steps  grad_norm %.1e  loss %.1e  %s  %d s\n", name, dtype, NR / 2, dn, dl, ok ? "ok" : "OFF", took; exit !ok }' || failed=1
}

# says NAME DTYPE: whether a row says more in this type than it does in another.
says() {
  case $1:$2 in
  *-long:bfloat16 | *-plain:bfloat16 | *-tied:float32 | cp2:float32 | cp2:tensorwise | cp2-ring:float32 | *-compiled:float32 | *-kept:float32 | *-kept:tensorwise | fsdp2-compiled:tensorwise) ;;
  *-long:* | *-plain:* | *-tied:* | *-compiled:* | *-kept:* | cp2*) return 1 ;;
  esac
}

failed=
for dtype in ${DTYPES:-float32 bfloat16 tensorwise rowwise}; do
  plan --world-size 1 --local-batch-size 8
  run one "$dtype" < "$work/job"
  compare one "$dtype"
  while read -r name args; do
    [ -z "${ONLY:-}" ] || [[ $name =~ $ONLY ]] || continue
    says "$name" "$dtype" || continue
    ranks=2 windows=1
    [[ $name != one-* ]] || ranks=1
    [[ $name != *-plain ]] || windows=0
    # shellcheck disable=SC2086
    plan --world-size $ranks $args
    TITAN_WINDOWS=$windows run "$name" "$dtype" < "$work/job"
    compare "$name" "$dtype"
  done <<'END'
fsdp2 --dp-shard 2 --local-batch-size 4
fsdp2-plain --dp-shard 2 --local-batch-size 4
fsdp2-kept --dp-shard 2 --local-batch-size 4 --set mesh.reshard_after_forward=never
fsdp2-accumulated --dp-shard 2 --local-batch-size 2
ddp2 --dp-replicate 2 --dp-shard 1 --local-batch-size 4
tp2 --tp 2 --local-batch-size 8
fsdp2-compiled --dp-shard 2 --local-batch-size 4 --compile
tp2-compiled --tp 2 --local-batch-size 8 --compile
pp2-1f1b --pp 2 --schedule 1F1B --local-batch-size 8 --microbatches 8
pp2-interleaved --pp 2 --schedule Interleaved1F1B --local-batch-size 8 --microbatches 8
cp2 --cp 2 --local-batch-size 8
cp2-ring --cp 2 --local-batch-size 8 --set mesh.cp_rotate=ring
one-long --seq-len 1024 --local-batch-size 8
cp2-long --cp 2 --seq-len 1024 --local-batch-size 8
cp2-ring-long --cp 2 --seq-len 1024 --local-batch-size 8 --set mesh.cp_rotate=ring
one-tied --tied --local-batch-size 8
pp2-tied --pp 2 --tied --schedule 1F1B --local-batch-size 8 --microbatches 8
END
done

# A launcher of its own, and a checkpoint that two ranks save beside their steps, one goes on from, and two of another mesh end.
if [ "$device" = cuda ] && command -v torchrun > /dev/null && [ -z "${ONLY:-}" ]; then
  plan --world-size 2 --dp-shard 2 --local-batch-size 4
  LAUNCH='torchrun --nproc-per-node 2 --no-python' run torchrun-fsdp2 float32 -i "$work/job" < /dev/null
  compare torchrun-fsdp2 float32
fi
if [[ " ${DTYPES:-float32} " == *" float32 "* ]] && [ -z "${ONLY:-}" ]; then
  for part in '2 --world-size 2 --dp-shard 2 --local-batch-size 4' '3 --world-size 1 --local-batch-size 8' "$steps --world-size 2 --tp 2 --local-batch-size 8"; do
    # shellcheck disable=SC2086
    plan ${part#* }
    run saved float32 --steps "${part%% *}" --checkpoint-dir "$work/ckpt" --checkpoint-interval 1 --async pinned < "$work/job"
  done
  compare saved float32
fi
[ -z "$failed" ]
