# shellcheck shell=bash disable=SC2154,SC2034 # variables of the script that reads this
# What bench/gpu.sh and bench/gpu_three.sh share: jobs of titan and of a peer, one row each, their figures, and the table.
#
# A row has an id, SECTION/NAME. Its figures are files of "key=value" lines, rows/ID.titan and rows/ID.peer, its logs lie beside.
# Set before: bin, peer, here (where PEER is called), work (a folder of ours), budget. Everything ends within $budget seconds: a
# row that would not is not begun.

device=${DEVICE:-cuda}
peak=${PEAK_TFLOPS:-989} # of the peer's MFU: dense bfloat16, an H100's and H200's
only=${ONLY:-}
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} # multicast, which a hypervisor may not bear
export PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF:-expandable_segments:True}
began=$SECONDS
mkdir -p "$work/rows"

# build FOLDER: the tools, and the tests that need GPUs or another CPU.
build() {
  go build -trimpath -ldflags='-s -w' -o "$1/" ./tools/...
  git rev-parse --short HEAD > "$1/commit" 2> /dev/null || true
  for p in device/cpu device/cuda comm/nccl exec measure train; do
    CGO_ENABLED=0 go test -c -trimpath -ldflags='-s -w' -o "$1/${p##*/}.test" "./libtitan/$p"
  done
}

# num_gpus: how many GPUs there are; on CPUs as many as GPUS says.
num_gpus() {
  if [ "$device" = cpu ]; then echo "${GPUS:-2}"; else nvidia-smi -L 2> /dev/null | grep -c ^GPU || true; fi
}

# prepare: the GPUs, the tools on the path, the folder of the logs.
prepare() {
  gpus=$(num_gpus)
  [ "${gpus:-0}" -gt 0 ] || { echo "${0##*/}: no GPU found by nvidia-smi; DEVICE=cpu plays this on the CPU" >&2; exit 5; }
  case $bin in /*) ;; *) bin=$here/$bin ;; esac
  [ -d "$bin" ] || build "$bin"
  PATH=$bin:$PATH
  case $logs in /*) ;; *) logs=$here/$logs ;; esac
  mkdir -p "$logs"
}

left() { echo $((budget - SECONDS + began)); }

# wanted ID: whether ONLY, a regular expression, names it.
wanted() { [ -z "$only" ] || [[ $1 =~ $only ]]; }

# begin NAME LIMIT: sets limit to the seconds that a job may take, or says why it is not begun.
begin() {
  limit=$2
  [ "$limit" -le "$(left)" ] || limit=$(left)
  [ "$limit" -ge 15 ] || { echo "$1: NOT RUN: $budget s (BUDGET) are over"; return 1; }
}

# on GPU CMD...: it sees that one alone; "": all.
on() {
  local gpu=$1
  shift
  env ${gpu:+CUDA_VISIBLE_DEVICES="$gpu"} "$@"
}

# last_words FILE: the end of a failed job's log.
last_words() { tail -n 8 "$1" | cut -c 1-400 | sed 's/^/    /'; }

# watch FILE [GPU]: the memory that is taken of each GPU, MiB, five times a second, until unwatch.
watch() {
  watcher=
  [ "$device" = cuda ] || return 0
  nvidia-smi ${2:+-i "$2"} --query-gpu=index,memory.used --format=csv,noheader,nounits -lms 200 > "$1" 2> /dev/null &
  watcher=$!
}
unwatch() { [ -z "$watcher" ] || { kill "$watcher" 2> /dev/null && wait "$watcher"; } 2> /dev/null || true; }

# most FILE: the most that one GPU had, GiB.
most() {
  [ -s "$1" ] || { echo -; return; }
  awk -F ', *' '$2 + 0 > m { m = $2 + 0 } END { printf "%.1f\n", m / 1024 }' "$1"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "" }'; }

# plan FILE ARGS...: a job's manifest, at one learning rate throughout.
plan() {
  local out=$1
  shift
  meshplan --log-level warn "$@" --set optimizer.lr=3e-4 --set lr_scheduler.warmup_steps=0 --set lr_scheduler.decay_ratio=0 > "$out.plan" || return
  if [[ " $* " == *' --pp '* ]]; then pp-split --log-level warn -i "$out.plan" -o "$out"; else mv "$out.plan" "$out"; fi
}

# four_batches MANIFEST: a file of random tokens of the whole vocabulary, those of four steps, which go round: what a GPU takes for a
# product depends on its numbers, by 1 to 2%, so both sides learn the like. Jobs of one size learn the same tokens, so that their
# norms can be compared, and one goes on from where another saved.
four_batches() {
  local tokens=$((4 * $(field global_batch_size "$1") * ($(field seq_len "$1") + 1))) vocab file new
  vocab=$(field vocab_size "$1")
  file=$work/tokens.$tokens.$vocab.jsonl new=$file.$BASHPID
  if [ ! -e "$file" ]; then
    od -An -v -tu4 -w4 -N $((4 * tokens)) /dev/urandom |
      awk -v vocab="$vocab" '{ printf "%s%d", NR == 1 ? "{\"input_ids\":[" : ",", $1 % vocab } END { print "]}" }' > "$new"
    mv -n "$new" "$file" # of rows side by side the first makes it
  fi
  echo "$file"
}

# titan ID LIMIT GPU FREQ ARGS...: trains meshplan's ARGS and leaves the figures. GPU is the one to use, - for all.
titan() {
  local id=$1 gpu=$3 freq=$4 limit tokens
  local at=$work/rows/${id//\//.}
  echo 'rc=not run' > "$at.titan"
  begin "$id titan" "$2" || return 0
  shift 4
  if ! plan "$at.json" "$@" 2> "$at.titan.log"; then
    tell "$id" titan 'its plan' 0
    return 0
  fi
  tokens=$(four_batches "$at.json")
  [ "$gpu" != - ] || gpu=
  watch "$at.titan.mem" "$gpu"
  local started=$SECONDS rc=0
  # shellcheck disable=SC2086
  on "$gpu" timeout -k 5 "$limit" titan-run -i "$at.json" -o /dev/null --device "$device" --data "$tokens" \
    --log-freq "$freq" --log-level debug --no-progress --metrics "$at.titan.metrics" ${TITAN_FLAGS:-} >> "$at.titan.log" 2>&1 || rc=$?
  unwatch
  {
    echo "rc=$rc"
    echo "seconds=$((SECONDS - started))"
    echo "device=$(most "$at.titan.mem")"
    sed -n 's/.*plan: needs \([0-9.]*\)GiB.*/planned=\1/p; s/.* first step, \([0-9]*\) ms since.*/\1/p' "$at.titan.log" |
      awk '/=/ { print; next } { printf "start=%.1f\n", $1 / 1000 }'
    steps "$at.titan.log" | awk '
      { if ($4 + 0 > memory) memory = $4 + 0 }
      END { if (NR) printf "last=%s\nloss=%s\nmemory=%s\n", $1, $2, memory }'
    echo "norm=$(field grad_norm "$at.titan.metrics" | head -1)"
    echo "tps=$(steps "$at.titan.log" | awk 'NR > 1 { print $5 }' | median)"
    echo "mfu=$(steps "$at.titan.log" | awk 'NR > 1 { print $6 }' | median)"
  } > "$at.titan"
  tell "$id" titan "$rc" $((SECONDS - started))
}

# steps LOG: of each line of a step: its number, loss, norm, GiB, tokens a second, MFU.
steps() {
  sed -n 's/^step: *\([0-9]*\)  loss: *\([^ ]*\)  grad_norm: *\([^ ]*\)  memory: *\([0-9.]*\)GiB.*  tps: \([0-9,]*\) .*mfu: \([^ %]*\).*/\1 \2 \3 \4 \5 \6/p' "$1" | tr -d ,
}

# theirs ID LIMIT GPU RANKS CASE: the peer's processes, one a rank, and their figures. CASE is the inside of its JSON object.
theirs() {
  local id=$1 gpu=$3 ranks=$4 limit
  local at=$work/rows/${id//\//.}
  [ -n "$peer" ] || return 0
  echo 'rc=not run' > "$at.peer"
  begin "$id peer" "$2" || return 0
  [ "$gpu" != - ] || gpu=
  watch "$at.peer.mem" "$gpu"
  local started=$SECONDS rc=0 pids=() p port=$((20000 + RANDOM % 20000)) t0
  t0=$(date +%s.%N)
  for ((r = 0; r < ranks; r++)); do
    # shellcheck disable=SC2086
    (cd "$here" && on "$gpu" RANK="$r" LOCAL_RANK="$r" WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" ANCHOR_T0="$t0" ANCHOR_OUT="$at.peer.json" \
      timeout -k 5 "$limit" $peer "{\"name\":\"$id\",$5}") > "$at.peer.log.$r" 2>&1 < /dev/null &
    pids+=($!)
  done
  { until wrote "$at" "$ranks"; do sleep 1; done; sleep 10; pkill -f "\"name\":\"$id\"" || true; } &
  local reaper=$!
  for p in "${pids[@]}"; do wait "$p" || rc=$?; done
  kill "$reaper" 2> /dev/null || true
  unwatch
  if [ "$rc" != 0 ] && wrote "$at" "$ranks"; then
    echo "$id peer: ended with $rc after all its ranks had written their figures" | tee -a "$at.peer.log.0"
    rc=0
  fi
  for ((r = 0; r < ranks; r++)); do sed "s/^/rank $r: /" "$at.peer.log.$r"; cat "$at.peer.json.$r" 2> /dev/null && echo; done > "$at.peer.log"
  {
    echo "rc=$rc"
    echo "device=$(most "$at.peer.mem")"
    echo "alloc=$(field peak_alloc_gib "$at".peer.json.* | sort -g | tail -1)"
    echo "reserved=$(field peak_reserved_gib "$at".peer.json.* | sort -g | tail -1)"
    echo "norm=$(field grad_norm "$at.peer.json.0" | head -1)"
    echo "tps=$(field tps "$at.peer.json.0" | tail -n +2 | median)"
    echo "tflops=$(field tflops "$at.peer.json.0" | tail -n +2 | median)"
    echo "start=$(paste -d ' ' <(field import_s "$at.peer.json.0") <(field wall "$at.peer.json.0" | head -1) | awk 'NF == 2 { printf "%.1f", $1 + $2 }')"
  } > "$at.peer"
  tell "$id" peer "$rc" $((SECONDS - started))
}

# wrote FILE RANKS: whether every rank of a peer has written its figures. One that has may still hang as its processes part.
wrote() {
  local r
  for ((r = 0; r < $2; r++)); do [ -s "$1.peer.json.$r" ] || return 1; done
}

# field NAME FILE...: the numbers of that name in JSON files.
field() {
  local name=$1
  shift
  { grep -oh "\"$name\": *[-0-9.e+]*" "$@" 2> /dev/null || true; } | sed 's/.*: *//'
}

# get ID SIDE KEY: a figure, - where there is none.
get() {
  local v=
  [ ! -f "$work/rows/${1//\//.}.$2" ] || v=$(sed -n "s/^$3=//p" "$work/rows/${1//\//.}.$2" | head -1)
  echo "${v:--}"
}

# tell ID SIDE RC SECONDS: how a job went, at once.
tell() {
  local at=$work/rows/${1//\//.}.$2.log
  if [ "$3" != 0 ]; then
    echo "$1 $2: FAILED with $3 after $4 s"
    last_words "$at"
    return 0
  fi
  printf '%-28s %-5s %10s tokens/s/GPU, first step after %s s, %s s in all\n' "$1" "$2" "$(get "$1" "$2" tps)" "$(get "$1" "$2" start)" "$4"
}

# speed RANKS LIMIT < rows: both sides of each row, in turn. Set before: steps, freq, pp_steps, seq, compile.
speed() {
  local id gpu args case n f
  while IFS='|' read -r args case; do
    read -r id gpu args <<< "$args"
    wanted "$id" || continue
    n=$steps f=$freq
    [[ $args != *'--pp '* ]] || n=$pp_steps f=$(((freq + 1) / 2))
    # shellcheck disable=SC2086
    titan "$id" "$2" "$gpu" "$f" $args $compile --dtype bfloat16 --seq-len "$seq" --steps "$n" --world-size "$1"
    predict "$id"
    [ -z "${case// /}" ] || theirs "$id" "$2" "$gpu" "$1" "${case# },\"seq\":$seq,\"steps\":$n,\"log\":$f"
  done
}

# bandwidth: collectives between all GPUs by size, NCCL alone; bandwidths prints what it found.
bandwidth() { cd libtitan/comm/nccl && "$bin/nccl.test" -test.run '^$' -test.bench . -test.benchtime 1x -test.timeout 300s; }
bandwidths() { [ ! -s "$work/bandwidth.log" ] || { echo; sed 's/^/    /' "$work/bandwidth.log"; }; }

# predict ID: what meshplan says of the job.
predict() {
  local at=$work/rows/${1//\//.}
  [ -s "$at.json" ] || return 0
  local machine=(--gpu "${GPU_NAME:-h200}")
  [ -z "${HARDWARE:-}" ] || machine=(--hardware "$HARDWARE")
  meshplan estimate -i "$at.json" --log-level error --software titan "${machine[@]}" 2> /dev/null > "$at.estimate" || return 0
  { echo "tps=$(field tokens_per_second_per_gpu "$at.estimate")"; echo "gib=$(field peak_bytes "$at.estimate" | sort -g | tail -1 | awk '{ printf "%.1f", $1 / 2^30 }')"; } > "$at.meshplan"
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
  { grep -E '^ *--- FAIL|OFF |FAILED|Error:' "$work/$id.log" | head -20 | sed 's/^/    /'; } || true
  last_words "$work/$id.log"
  failed=1
}

# kernels: the tests of the packages that launch something, and of the CPU's own, which may have what no other has that tests run on;
# each in its folder, where its testdata lies.
kernels() {
  local p rc=0
  for p in device/cpu device/cuda comm/nccl exec measure; do
    echo "$p"
    (cd "libtitan/$p" && "$bin/${p##*/}.test" -test.v -test.timeout 300s) || rc=1
  done
  return $rc
}

# table < rows: their figures, for docs/measurements. The norm is compared with that of the row $norm_of, where one is named.
table() {
  echo '| | tokens/s/GPU, titan | PyTorch | ratio | meshplan | MFU %, titan; PyTorch | GiB, titan: planned; of the process; device | PyTorch: allocated; reserved; device | meshplan | start to step 1, s, titan; PyTorch | grad_norm of step 1, titan; PyTorch | off |'
  echo '|---|---|---|---|---|---|---|---|---|---|---|---|'
  local id a b
  t() { get "$id" titan "$1"; }
  p() { round "$(get "$id" peer "$1")" "${2:-1}"; }
  while read -r id _; do
    [ -f "$work/rows/${id//\//.}.titan" ] || [ -f "$work/rows/${id//\//.}.peer" ] || continue
    a=$(t tps) b=$(get "$id" peer tps)
    echo "| ${id#*/} | $a | $(round "$b" 0) | $(ratio "$a" "$b" 1) | $(round "$(get "$id" meshplan tps)" 0) | $(t mfu); $(ratio "$(get "$id" peer tflops)" "$peak" 100) |" \
      "$(t planned); $(t memory); $(t device) | $(p alloc); $(p reserved); $(get "$id" peer device) | $(get "$id" meshplan gib) |" \
      "$(t start); $(p start) | $(round "$(t norm)" 4); $(p norm 4) | $(off "$(t norm)" "$(get "${norm_of:-none}" titan norm)") |"
  done
}
round() { awk -v v="$1" -v d="$2" 'BEGIN { if (v + 0 == v && v != "") printf "%.*f", d, v; else print "-" }'; }
ratio() { awk -v a="$1" -v b="$2" -v f="$3" 'BEGIN { if (a > 0 && b > 0) printf "%.3f", f * a / b; else print "-" }'; }
off() { awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0 && b > 0) { d = a / b - 1; printf "%.1e", d < 0 ? -d : d } else print "-" }'; }

# all_done: whether all that was begun ended well, and all that was to be begun was.
all_done() {
  ! grep -L '^rc=0' "$work"/rows/*.titan "$work"/rows/*.peer 2> /dev/null | grep -q .
}

# describe: the machine, for the head of the logs.
describe() {
  date -u +%F
  echo "commit $(cat "$bin/commit" 2> /dev/null || git rev-parse --short HEAD 2> /dev/null || echo unknown)"
  echo "$(nproc) CPU cores, $(awk '/model name/ { sub(/.*: /, ""); print; exit }' /proc/cpuinfo)"
  [ "$device" = cpu ] || nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader
  [ -z "$peer" ] || python3 -c 'from importlib.metadata import version; print("torch", version("torch"))' 2> /dev/null || true
}

# gather LOG: what every job said, in one file.
gather() {
  local f
  for f in "$work"/*.log "$work"/rows/*.titan.log "$work"/rows/*.peer.log; do
    [ ! -s "$f" ] || { echo "== $(basename "$f" .log)"; cut -c 1-2000 "$f"; }
  done > "$1"
}
