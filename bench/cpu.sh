#!/usr/bin/env bash
# Tokens a second of the debugmodel on this CPU, alternated with a peer in one run.
# bench/cpu.sh [PEER]: PEER is a command that takes --seq N --batch N --steps N --dtype float32|bfloat16 and prints its own figure,
# such as 'python3 torch_cpu.py' for the same step in plain PyTorch. Without it titan runs alone.
set -euo pipefail
cd "$(dirname "$0")/.."
peer=${1:-}
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -o "$bin" ./libtitan/train
for case in 'float32 256 8' 'float32 2048 2' 'bfloat16 256 8' 'bfloat16 2048 2'; do
  read -r dtype seq batch <<<"$case"
  for _ in 1 2; do
    (cd libtitan/train && "$bin" -test.run '^$' -test.bench "Train/$dtype/seq$seq\$" -test.benchtime 1x | grep tokens/s)
    [ -z "$peer" ] || $peer --seq "$seq" --batch "$batch" --steps 5 --dtype "$dtype"
  done
done
