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
# ONLY='one/|two/fsdp'  what to do, a regular expression over: tests reference checkpoints meshes sanitize one/ROW two/ROW
# SANITIZE=1            compute-sanitizer's memcheck and racecheck on two steps of the debugmodel
# BUDGET=570            seconds for all: what would end later is not begun
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
case $bin in /*) ;; *) bin=$here/$bin ;; esac
[ -d "$bin" ] || build "$bin"
PATH=$bin:$PATH
case $logs in /*) ;; *) logs=$here/$logs ;; esac
mkdir -p "$logs"

gpus=$(num_gpus)
[ "${gpus:-0}" -gt 0 ] || { echo "gpu.sh: no GPU found by nvidia-smi; DEVICE=cpu plays this on the CPU" >&2; exit 5; }
steps=${STEPS:-12} pp_steps=${PP_STEPS:-5} seq=${SEQ:-8192} compile=${COMPILE---compile}
b1='--model llama3-1b --untied' slice='--model llama3-8b --layers 8' b8='--model llama3-8b'
if [ "$device" = cpu ]; then
  seq=${SEQ:-64} b1='--model debugmodel --layers 2' slice='--model debugmodel --layers 2' b8='--model debugmodel --layers 4'
fi
data=$work/data.txt
head -c 3000000 /dev/urandom | base64 -w 0 > "$data"

# one ROWS: rows of one GPU. Each is: name, GPU, titan's arguments | PEER's.
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

# speed RANKS LIMIT < rows: both sides of each row, in turn.
speed() {
  local id gpu args case n freq
  while IFS='|' read -r args case; do
    read -r id gpu args <<< "$args"
    wanted "$id" || continue
    n=$steps freq=4
    [[ $args != *'--pp '* ]] || n=$pp_steps freq=2
    # shellcheck disable=SC2086
    titan "$id" "$2" "$gpu" "$freq" $args $compile --dtype bfloat16 --seq-len "$seq" --steps "$n" --world-size "$1"
    theirs "$id" "$2" "$gpu" "$1" "${case# },\"seq\":$seq,\"steps\":$n,\"log\":$freq"
  done
}

# check ID LIMIT CMD...: something that passes or fails; its last line is its result.
check() {
  local id=$1 limit rc=0 started=$SECONDS
  wanted "$id" || return 0
  begin "$id" "$2" || { failed=1; return 0; }
  shift 2
  timeout -k 5 "$limit" "$@" > "$work/$id.log" 2>&1 || rc=$?
  if [ "$rc" -eq 0 ]; then echo "$id: ok, $((SECONDS - started)) s: $(grep -c -e '--- SKIP' "$work/$id.log" || true) tests skipped"; return 0; fi
  echo "$id: FAILED with $rc after $((SECONDS - started)) s"
  { grep -E '^ *--- FAIL|OFF$|FAILED|Error:' "$work/$id.log" | head -20 | sed 's/^/    /'; } || true
  last_words "$work/$id.log"
  failed=1
}

# kernels: the tests of the packages that launch something; each in its folder, where its testdata lies.
kernels() {
  local p rc=0
  for p in device/cuda comm/nccl exec; do
    echo "$p"
    (cd "libtitan/$p" && "$bin/${p##*/}.test" -test.v -test.timeout 300s) || rc=1
  done
  return $rc
}
in_train() { cd libtitan/train && "$bin/train.test" -test.v -test.timeout 300s "$@"; }

# sanitized TOOL: two steps of the debugmodel under compute-sanitizer.
sanitized() {
  plan "$work/sanitize.json" --model debugmodel --layers 2 --seq-len 256 --local-batch-size 2 --steps 2 --dtype bfloat16 $compile --world-size 1 || return
  compute-sanitizer --tool "$1" --error-exitcode 9 titan-run -i "$work/sanitize.json" -o /dev/null --device cuda --data "$data" --log-freq 1 --no-progress
}
sanitize() {
  local tool=$1
  if [ "$device" = cpu ] || ! command -v compute-sanitizer > /dev/null; then
    echo "sanitize-$tool: NOT RUN: no compute-sanitizer here: it comes with the CUDA toolkit"
    return 0
  fi
  check "sanitize-$tool" 150 bash -c "sanitized $tool"
  if grep -qiE 'device not supported|failed to initialize|LibraryNotLoaded' "$work/sanitize-$tool.log" 2> /dev/null; then
    echo "sanitize-$tool: NOT RUN: THIS MACHINE DOES NOT LET compute-sanitizer AT ITS GPU: nothing is known of bad accesses or races"
  fi
}
export -f kernels in_train sanitized plan
export bin work data compile

# table: markdown, for docs/measurements.
table() {
  local id a b
  echo '| | tokens/s/GPU, titan | PyTorch | ratio | MFU %, titan; PyTorch | GiB, titan: planned; line; device | PyTorch: allocated; reserved; device | start to step 1, s, titan; PyTorch | grad_norm of step 1 |'
  echo '|---|---|---|---|---|---|---|---|---|'
  while read -r id _; do
    [ -f "$work/rows/${id//\//.}.titan" ] || [ -f "$work/rows/${id//\//.}.peer" ] || continue
    t() { get "$id" titan "$1"; }
    p() { get "$id" peer "$1"; }
    a=$(t tps) b=$(p tps)
    printf '| %s | %s | %s | %s | %s; %s | %s; %s; %s | %s; %s; %s | %s; %s | %s; %s |\n' "${id#*/}" "$a" "$(round "$b" 0)" "$(awk -v a="$a" -v b="$b" 'BEGIN { if (a > 0 && b > 0) printf "%.3f", a / b; else print "-" }')" \
      "$(t mfu)" "$(awk -v f="$(p tflops)" -v p="$peak" 'BEGIN { if (f > 0) printf "%.2f", 100 * f / p; else print "-" }')" \
      "$(t planned)" "$(t memory)" "$(t device)" "$(round "$(p alloc)" 1)" "$(round "$(p reserved)" 1)" "$(p device)" "$(t start)" "$(p start)" "$(t norm)" "$(round "$(p norm)" 4)"
  done < <(one_rows; two_rows)
}
round() { awk -v v="$1" -v d="$2" 'BEGIN { if (v + 0 == v && v != "") printf "%.*f", d, v; else print "-" }'; }

failed=
describe | tee "$work/machine"
check tests 200 bash -c kernels
check reference 60 bash -c "in_train -test.run 'ReferenceOnGPU|TrainsAsTheCPU'"
check checkpoints 120 bash -c "in_train -test.run 'GPU|Arena' -test.skip 'ReferenceOnGPU|TrainsAsTheCPU'"
[ "$gpus" -lt 2 ] || check meshes 180 env DEVICE="$device" bench/gpu_meshes.sh "$bin"
if [ -n "${SANITIZE:-}" ]; then sanitize memcheck; sanitize racecheck; fi
if [ "$gpus" -lt 2 ] || [ "$device" = cpu ]; then
  one_rows | sed 's/^\([^ ]*\) [01] /\1 - /' | speed 1 90
else
  one_rows | grep ' 0 ' | speed 1 90 &
  one_rows | grep ' 1 ' | speed 1 90
  wait
fi
[ "$gpus" -lt 2 ] || two_rows | speed 2 120
{ cat "$work/machine"; echo; table; } | tee "$logs/gpu.md"
gather "$logs/gpu.log"
echo "table and logs: $logs, $((SECONDS - began)) s"
[ -z "$failed" ] && ! grep -L '^rc=0' "$work"/rows/*.titan "$work"/rows/*.peer 2> /dev/null | grep -q .
