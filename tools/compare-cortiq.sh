#!/usr/bin/env bash
# Compares greedy answers with those of cortiq 0.8.54 on the tiny checkpoints, both ways: cortiq on
# files that shamrock wrote, and shamrock on files that cortiq wrote.
#
#   cargo install cortiq-cli --version 0.8.54 --root DIR
#   tools/compare-cortiq.sh DIR/bin/cortiq [shamrock]
#
# cortiq runs with float activations (CMF_SDOT=0 CMF_AVX2=0 CMF_AVX512=0): its default kernels round
# activations to int8, which changes tokens on models this small.
# shamrock runs its reference executor for the same reason. Draft mode is not compared: without a GPU
# cortiq denoises in its place.
set -euo pipefail
cortiq=${1:?usage: tools/compare-cortiq.sh CORTIQ [SHAMROCK]}
root=$(cd "$(dirname "$0")/.." && pwd)
shamrock=${2:-$root/target/release/shamrock}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CMF_GPU=0 CMF_SDOT=0 CMF_AVX2=0 CMF_AVX512=0

tokens=40
prompt='The river runs past the old mill. Count the boats:'
failed=0

# The text either program answers with, without the line end.
ours() { "$shamrock" run "$1" --backend reference --raw -p "$prompt" -n $tokens --mode "$2" --accept typical --greedy 2>/dev/null; }
theirs() { CMF_CLOVER_MODE=$2 "$cortiq" run "$1" -p "$prompt" --raw -n $tokens --greedy 2>/dev/null; }

for folder in small awkward kernel; do
  "$shamrock" convert "$root/fixtures/$folder/hf" "$work/$folder.cmf" >/dev/null
  "$cortiq" verify "$work/$folder.cmf" >/dev/null && echo "$folder: cortiq verifies our file"
  for file in "$work/$folder.cmf" "$root/fixtures/$folder/model.q4tp.cmf"; do
    for mode in denoise ar; do
      mine=$(ours "$file" "${mode/ar/causal}")
      other=$(theirs "$file" "$mode")
      if [ "$mine" = "$other" ]; then verdict=equal; else verdict=DIFFERENT; failed=1; fi
      echo "$folder $(basename "$(dirname "$file")")/$(basename "$file") $mode: $verdict"
    done
  done
done
exit $failed
