#!/usr/bin/env bash
# llama3-8b on every kind of mesh of the GPUs of one machine, 4 or 8 of them (2 do for the small ones): tokens a second, memory
# and MFU beside meshplan's predictions and PyTorch's FSDP in the same run, the norm of step 1 against FSDP's, bandwidths, and a
# checkpoint saved on one mesh and resumed on another.
#
# bench/gpu_three.sh [BIN [PEER]]: as bench/gpu.sh, whose head tells of both.
#
# ONLY=                 what to do, a regular expression over: bandwidth three/ROW checkpoint-off checkpoint-thread checkpoint-pinned
# BUDGET=570            seconds for all: what would end later is not begun. All of it takes three calls on 8 GPUs:
#                       ONLY='bandwidth|checkpoint|three/fsdp', ONLY='three/(3d|hsdp|cp)[^/]*$' without and with float8
# LOGS=runs/gpu_three   where gpu_three.md and gpu_three.log are left
# CKPT_DIR=             where checkpoints are written and deleted; CKPT_MODEL: of what, by default llama3-8b with 8 layers, 31 GiB a step
# COMPILE=  STEPS=20  SEQ=8192  LIMIT=120 (seconds a job)  GPU_NAME=h200 or HARDWARE=FILE (of meshplan's predictions)
# DEVICE=cpu GPUS=8     plays it on the CPU with a small model, as a test of this script
#
# Every row of a step is 2 rows a GPU, the same ones on every mesh. Ends with 1 when something failed, was not run, or is off by more
# than 1e-2.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
peer=${2:-} budget=${BUDGET:-570} logs=${LOGS:-runs/gpu_three}
work=$(mktemp -d)
trap 'rm -rf "$work" "${store:-$work}"' EXIT
# shellcheck source=bench/lib.sh
. bench/lib.sh
bin=${1:-$work/bin}
prepare
n=$gpus norm_of=three/fsdp limit_each=${LIMIT:-120}
steps=${STEPS:-20} pp_steps=${STEPS:-20} freq=4 seq=${SEQ:-8192} compile=${COMPILE---compile}
b8='--model llama3-8b' saved=${CKPT_MODEL:---model llama3-8b --layers 8}
if [ "$device" = cpu ]; then seq=${SEQ:-64} b8='--model debugmodel --layers 4' saved=$b8; fi
[ "$n" -ge 2 ] || { echo "gpu_three.sh: $n GPU: meshes need two at least: bench/gpu.sh measures one" >&2; exit 2; }

# rows: as in bench/gpu.sh; under pp a microbatch is one row.
rows() {
  local name args
  while read -r name args; do
    echo "three/$name - $b8 $args |${peers[$name]:-}"
    echo "three/$name-float8 - $b8 $args --float8 tensorwise |${peers[$name-float8]:-}"
  done < <(
    echo "fsdp --dp-shard $n --local-batch-size 2"
    echo "fsdp-tp --dp-shard $((n / 2)) --tp 2 --local-batch-size 4"
    echo "fsdp-pp --dp-shard $((n / 2)) --pp 2 --schedule 1F1B --local-batch-size 4 --microbatches 4"
    if [ "$n" -ge 4 ]; then
      for s in 1F1B Interleaved1F1B ZBVZeroBubble; do
        echo "3d-$s --dp-shard $((n / 4)) --tp 2 --pp 2 --schedule $s --local-batch-size 8 --microbatches 8"
      done
    fi
    echo "hsdp --dp-replicate 2 --dp-shard $((n / 2)) --local-batch-size 2"
    echo "cp --dp-shard $((n / 2)) --cp 2 --local-batch-size 4"
  )
}
declare -A peers=([fsdp]=' "flavor":"8B","bs":2' [fsdp-float8]=' "flavor":"8B","bs":2,"float8":"tensorwise"')

# checkpoints MODE: FSDP saves step 4 while it goes on to step 6; synchronously, another mesh resumes at step 4.
checkpoints() {
  local mode=$1 dir=$store/$1 id=checkpoint-$1/saved at other
  wanted "checkpoint-$mode" || return 0
  at=$work/rows/${id//\//.}
  # shellcheck disable=SC2086
  TITAN_FLAGS="--checkpoint-dir $dir --checkpoint-interval 4 --async $mode --last-save-model-only" \
    titan "$id" "$limit_each" - 1 $saved --ac selective:op $compile --dtype bfloat16 --seq-len "$seq" --steps 6 --world-size "$n" --dp-shard "$n" --local-batch-size 2
  echo "checkpoint $mode: $(du -sh "$dir/step-4" 2> /dev/null | cut -f1) a step; training stalled $(field stalled_seconds "$at.titan.metrics" | awk '{ s += $1 } END { printf "%.2f", s }') s;" \
    "steps took $(field step_seconds "$at.titan.metrics" | awk '{ printf "%s%.2f", sep, $1; sep = " " }') s; $(get "$id" titan seconds) s in all" | tee -a "$work/checkpoints"
  if [ "$mode" = off ]; then
    other="--tp 2 --dp-shard $((n / 2)) --local-batch-size 4"
    [ "$n" -lt 4 ] || other="--tp 2 --pp 2 --schedule 1F1B --microbatches 8 --dp-shard $((n / 4)) --local-batch-size 8"
    # shellcheck disable=SC2086
    TITAN_FLAGS="--checkpoint-dir $dir --load-step 4 --load-only" \
      titan checkpoint-off/resumed "$limit_each" - 1 $saved --ac selective:op $compile --dtype bfloat16 --seq-len "$seq" --steps 6 --world-size "$n" $other
    paste <(field grad_norm "$at.titan.metrics" | tail -n 2) <(field grad_norm "$work/rows/checkpoint-off.resumed.titan.metrics") | awk -v other="$other" '
      { d = $2 / $1 - 1; if (d < 0) d = -d; if (d > most) most = d }
      END { ok = NR == 2 && most < 1e-2; printf "resumed on %s: grad_norm of steps 5 and 6 off by %.1e  %s\n", other, most, ok ? "ok" : "OFF"; exit !ok }' | tee -a "$work/checkpoints" || failed=1
  fi
  rm -rf "$dir"
}
store=$(mktemp -d "${CKPT_DIR:-$work}/titan-XXXXXX")
export -f bandwidth
export bin

failed=
describe | tee "$work/machine"
check bandwidth 120 bash -c bandwidth
rows | speed "$n" "$limit_each"
for mode in off thread pinned; do checkpoints "$mode"; done
{ cat "$work/machine"; echo; rows | table; echo; cat "$work/checkpoints" 2> /dev/null || true; bandwidths; } | tee "$logs/gpu_three.md"
gather "$logs/gpu_three.log"
worst=$(rows | { while read -r id _; do off "$(get "$id" titan norm)" "$(get "$norm_of" titan norm)"; echo; done; } | sort -g | tail -1)
echo "grad_norm of step 1: at most ${worst:--} from FSDP's; table and logs: $logs, $((SECONDS - began)) s"
[ -z "$failed" ] && all_done && awk -v w="${worst:-0}" 'BEGIN { exit !(w + 0 <= 1e-2) }'
