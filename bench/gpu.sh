#!/usr/bin/env bash
# All that is claimed of one and of two GPUs, in one call: the kernels' tests, PyTorch's reference numbers, checkpoints, meshes
# of two against one, and speed beside PyTorch in the same run.
#
# bench/gpu.sh [BIN [PEER]]
#   BIN   a folder with the tools and the tests, made there with Go where it is not yet: bench/gpu.sh build BIN makes it alone
#   PEER  the command of the same training step in PyTorch. It is run once a rank with a case as its last argument, such as
#         {"name":"one/1b","flavor":"1B","seq":8192,"bs":2,"steps":12,"log":4,"float8":"tensorwise"}, and torchrun's variables; it
#         writes {"peak_alloc_gib", "peak_reserved_gib", "import_s", "log": [{"step", "tps", "tflops", "grad_norm", "wall"}]} to
#         $ANCHOR_OUT.RANK. "ac" is none or op; "tp", "pp", "sched" cut the model over ranks, else it is sharded. Without PEER titan runs alone
#
# ONLY='one/|two/fsdp'  what to do, a regular expression over: tests reference checkpoints meshes bandwidth
#                       sanitize one/ROW two/ROW
# SANITIZE=1            compute-sanitizer's memcheck and racecheck on two steps of the debugmodel
# BUDGET=570            seconds for all: what would end later is not begun. On two H200 all of it takes two calls, ONLY='two/' of
#                       some 500 s, and the rest; on one H200 one
# LOGS=runs/gpu         where gpu.md, the table, and gpu.log, all output, are left
# COMPILE=              no --compile;  STEPS=12  PP_STEPS=5  SEQ=8192
# DEVICE=cpu            plays it on the CPU with a small model, as a test of this script
#
# With two GPUs the rows of one run side by side, each model on a GPU of its own, titan and PEER in turn on the same GPU.
# Ends with 1 when something failed or was not run.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
peer=${2:-} budget=${BUDGET:-570} logs=${LOGS:-runs/gpu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=bench/lib.sh
. bench/lib.sh
if [ "${1:-}" = build ]; then build "${2:?a folder}"; exit; fi
bin=${1:-$work/bin}
prepare
steps=${STEPS:-12} pp_steps=${PP_STEPS:-5} freq=4 seq=${SEQ:-8192} compile=${COMPILE---compile}
b1='--model llama3-1b --untied' slice='--model llama3-8b --layers 8' b8='--model llama3-8b'
if [ "$device" = cpu ]; then
  seq=${SEQ:-64} b1='--model debugmodel --layers 2' slice='--model debugmodel --layers 2' b8='--model debugmodel --layers 4'
fi

# Each row is: id, GPU (- for all), meshplan's arguments | the inside of PEER's case.
one_rows() {
  cat << END
one/1b 0 $b1 --local-batch-size 2 | "flavor":"1B","bs":2
one/8b-8l 1 $slice --local-batch-size 1 | "flavor":"8B-8L","bs":1
one/1b-float8 0 $b1 --local-batch-size 2 --float8 tensorwise | "flavor":"1B","bs":2,"float8":"tensorwise"
one/8b-8l-float8 1 $slice --local-batch-size 1 --float8 tensorwise | "flavor":"8B-8L","bs":1,"float8":"tensorwise"
END
}

two_rows() {
  cat << END
two/fsdp - $b8 --dp-shard 2 --local-batch-size 1 | "flavor":"8B","bs":1
two/fsdp-float8 - $b8 --dp-shard 2 --local-batch-size 1 --float8 tensorwise | "flavor":"8B","bs":1,"float8":"tensorwise"
two/fsdp-sac - $b8 --dp-shard 2 --local-batch-size 1 --ac selective:op | "flavor":"8B","bs":1,"ac":"op"
two/tp - $b8 --tp 2 --local-batch-size 1 | "flavor":"8B","bs":1,"tp":2
two/tp-float8 - $b8 --tp 2 --local-batch-size 1 --float8 tensorwise | "flavor":"8B","bs":1,"tp":2,"float8":"tensorwise"
two/pp-1f1b - $b8 --pp 2 --schedule 1F1B --local-batch-size 8 --microbatches 8 --ac selective:op | "flavor":"8B","bs":8,"mb":1,"pp":2,"sched":"1F1B","ac":"op"
two/pp-interleaved - $b8 --pp 2 --schedule Interleaved1F1B --local-batch-size 8 --microbatches 8 --ac selective:op | "flavor":"8B","bs":8,"mb":1,"pp":2,"sched":"Interleaved1F1B","ac":"op"
END
}

# in_train ARGS...: tests of training.
in_train() { cd libtitan/train && "$bin/train.test" -test.v -test.timeout 300s "$@"; }

# sanitized TOOL: two steps of the debugmodel under compute-sanitizer. racecheck does not follow the asynchronous copies of NVIDIA's
# own kernels, so what it reports of those is counted and no more.
sanitized() {
  local rc=0 all ours
  # shellcheck disable=SC2086
  plan "$work/sanitize.json" --model debugmodel --layers 2 --seq-len 256 --local-batch-size 2 --steps 2 --dtype bfloat16 $compile --world-size 1 || return
  compute-sanitizer --tool "$1" --error-exitcode 9 titan-run -i "$work/sanitize.json" -o /dev/null --device cuda --data "$(four_batches "$work/sanitize.json")" --log-freq 1 --no-progress \
    > "$work/sanitized-$1" 2>&1 || rc=$?
  cat "$work/sanitized-$1"
  grep -q '^step:  2' "$work/sanitized-$1" || return 1
  [ "$1" = racecheck ] || return $rc
  all=$(grep -c 'Race reported between' "$work/sanitized-$1" || true)
  ours=$(grep 'Race reported between' "$work/sanitized-$1" | grep -cvE ' at (cudnn|nvjet|cutlass|cublas|void (cudnn|cutlass|cublas))' || true)
  echo "races: $all reports, $ours of them of other kernels than cuDNN's and cuBLASLt's"
  [ "$ours" -eq 0 ]
}
sanitize() {
  local tool=$1
  if [ "$device" = cpu ] || ! command -v compute-sanitizer > /dev/null; then
    echo "sanitize-$tool: NOT RUN: no compute-sanitizer here: it comes with the CUDA toolkit"
    return 0
  fi
  check "sanitize-$tool" 150 bash -c "sanitized $tool"
  grep '^races:' "$work/sanitize-$tool.log" 2> /dev/null || true
  if grep -qiE 'device not supported|failed to initialize|LibraryNotLoaded' "$work/sanitize-$tool.log" 2> /dev/null; then
    echo "sanitize-$tool: NOT RUN: THIS MACHINE DOES NOT LET compute-sanitizer AT ITS GPU: nothing is known of bad accesses or races"
  fi
}
export -f kernels bandwidth in_train sanitized plan four_batches field
export bin work compile

failed=
describe | tee "$work/machine"
check tests 200 bash -c kernels
check reference 60 bash -c "in_train -test.run 'ReferenceOnGPU|TrainsAsTheCPU'"
check checkpoints 120 bash -c "in_train -test.run 'GPU|Arena' -test.skip 'ReferenceOnGPU|TrainsAsTheCPU'"
[ "$gpus" -lt 2 ] || check meshes 180 env -u ONLY -u STEPS DEVICE="$device" bench/gpu_meshes.sh "$bin"
[ "$gpus" -lt 2 ] || check bandwidth 90 bash -c bandwidth
if [ -n "${SANITIZE:-}" ]; then sanitize memcheck; sanitize racecheck; fi
if [ "$gpus" -lt 2 ] || [ "$device" = cpu ]; then
  one_rows | sed 's/^\([^ ]*\) [01] /\1 - /' | speed 1 90
else
  one_rows | grep ' 0 ' | speed 1 90 &
  one_rows | grep ' 1 ' | speed 1 90
  wait
fi
[ "$gpus" -lt 2 ] || two_rows | speed 2 120
{ cat "$work/machine"; echo; (one_rows; two_rows) | table; bandwidths; } | tee "$logs/gpu.md"
gather "$logs/gpu.log"
echo "table and logs: $logs, $((SECONDS - began)) s"
[ -z "$failed" ] && all_done
