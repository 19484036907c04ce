#!/usr/bin/env bash
# Moving a checkpoint against copying it: bench/reshard.sh DIR [LAYERS [VOCAB [RUNS]]]
# Makes DIR/src, llama3-1b's shapes with LAYERS layers (8: 8.4 GiB with both moments), and alternates RUNS (5) times, the
# source in the page cache: cp -r --reflink=never and sync; reshard to 8 files; convert to Hugging Face in bfloat16; verify.
# Prints medians: seconds, source bytes a second over cp's, peak resident memory. DIR needs three times the size.
set -euo pipefail
dir=${1:?a folder to work in} layers=${2:-8} vocab=${3:-128256} runs=${4:-5}
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin" "$dir/out"' EXIT
go build -o "$bin/" ./bench/moving ./tools/ckpt-shard
mkdir -p "$dir"
[ -d "$dir/src" ] || "$bin/moving" make "$dir/src" "$layers" "$vocab"
bytes=$(du -sb --apparent-size "$dir/src" | cut -f1)

once() { # NAME CMD...: one run, its source cached and its output gone afterwards
  local name=$1; shift
  rm -rf "$dir/out"; sync
  cat "$dir"/src/* "$dir"/src/.metadata >/dev/null
  "$bin/moving" time "$@" >>"$bin/$name" 2>"$bin/log" || { cat "$bin/log" >&2; exit 1; }
}
for _ in $(seq "$runs"); do
  once cp sh -c 'cp -r --reflink=never "$0/src" "$0/out" && sync' "$dir"
  once reshard "$bin/ckpt-shard" reshard --quiet "$dir/src" "$dir/out" --world-size 8
  once convert "$bin/ckpt-shard" convert --quiet "$dir/src" "$dir/out" --to hf --dtype bf16 --model "$dir/src.json"
  once verify "$bin/ckpt-shard" verify --quiet "$dir/src"
done
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
cp=$(cut -d' ' -f1 "$bin/cp" | median)
printf '%d bytes, %d runs\n%-8s %9s %9s %8s %9s\n' "$bytes" "$runs" what seconds GB/s of-cp peak-MiB
for name in cp reshard convert verify; do
  s=$(cut -d' ' -f1 "$bin/$name" | median) m=$(cut -d' ' -f2 "$bin/$name" | sort -n | tail -1)
  awk -v n="$name" -v s="$s" -v cp="$cp" -v b="$bytes" -v m="$m" 'BEGIN { printf "%-8s %9.2f %9.2f %8.2f %9d\n", n, s, b / s / 1e9, cp / s, m }'
done
