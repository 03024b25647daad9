#!/usr/bin/env bash
# Compares shamrock with cortiq 0.8.54, both ways: each program verifies and runs files that the other
# one wrote, and greedy answers must have the same text.
#
#   cargo install cortiq-cli --version 0.8.54 --root DIR
#   tools/compare-cortiq.sh DIR/bin/cortiq [SHAMROCK]             answers
#   tools/compare-cortiq.sh DIR/bin/cortiq [SHAMROCK] --speed     times on clover-nano
#
# For answers cortiq runs with float activations (CMF_SDOT=0 CMF_AVX2=0 CMF_AVX512=0), since its
# default kernels round activations to int8, which changes tokens on models this small; shamrock runs
# its reference executor for the same reason. Draft mode is not compared: without a GPU cortiq
# denoises in its place. For times both run as they do by default.
set -euo pipefail
cortiq=${1:?usage: tools/compare-cortiq.sh CORTIQ [SHAMROCK] [--speed]}
root=$(cd "$(dirname "$0")/.." && pwd)
shamrock=${2:-$root/target/release/shamrock}
nano=$root/models/clover-nano.cmf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CMF_GPU=0

# The text either program answers with, without the line end.
ours() { # FILE MODE PROMPT TOKENS [FLAGS]
  "$shamrock" run "$1" --raw -p "$3" -n "$4" --mode "$2" --greedy "${@:5}" 2>/dev/null
}
theirs() { # FILE MODE PROMPT TOKENS
  CMF_CLOVER_MODE=${2/causal/ar} "$cortiq" run "$1" -p "$3" --raw -n "$4" --greedy 2>/dev/null
}

# A question as clover-nano's chat template puts it, without reasoning.
ask() { printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' "$1"; }
story='Tell me a story about a bee, a lantern and a mountain.'

speed() {
  # Seconds of a run, of which both load the file, read the prompt and write about 40 tokens.
  seconds() { local TIMEFORMAT='%R %U %S'; { time "$@" >/dev/null; } 2>&1 | tail -1; }
  median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
  local prompt; prompt=$(ask "$story")
  echo "mode program wall_s cpu_s (medians of 9 interleaved runs)"
  for mode in causal denoise; do
    for _ in 1 2 3 4 5 6 7 8 9; do
      seconds ours "$nano" $mode "$prompt" 128 >>"$work/$mode.shamrock"
      seconds theirs "$nano" $mode "$prompt" 128 >>"$work/$mode.cortiq"
    done
    for program in shamrock cortiq; do
      wall=$(awk '{ print $1 }' "$work/$mode.$program" | median)
      cpu=$(awk '{ print $2 + $3 }' "$work/$mode.$program" | median)
      echo "$mode $program $wall $cpu"
    done
  done
}

if [ "${3:-}" = --speed ]; then
  speed
  exit
fi

export CMF_SDOT=0 CMF_AVX2=0 CMF_AVX512=0
failed=0
check() { # WHAT COMMAND…
  if "${@:2}" >"$work/log" 2>&1; then echo "$1: ok"; else
    echo "$1: FAILED"; tail -3 "$work/log"; failed=1
  fi
}
compare() { # WHAT FILE PROMPT TOKENS
  for mode in denoise causal; do
    mine=$(ours "$2" $mode "$3" "$4" --backend reference)
    other=$(theirs "$2" $mode "$3" "$4")
    if [ "$mine" = "$other" ]; then verdict=equal; else verdict=DIFFERENT; failed=1; fi
    echo "$1, $mode: $verdict, ${#mine} characters"
    [ $verdict = equal ] || printf '  shamrock: %q\n  cortiq:   %q\n' "$mine" "$other"
  done
}

prompt='The river runs past the old mill. Count the boats:'
for folder in small awkward kernel; do
  hf=$root/fixtures/$folder/hf
  check "$folder: shamrock converts" "$shamrock" convert "$hf" "$work/$folder.cmf"
  check "$folder: cortiq converts" "$cortiq" convert --model "$hf" --quant q4tp --output "$work/$folder.cortiq.cmf"
  check "$folder: cortiq verifies shamrock's file" "$cortiq" verify "$work/$folder.cmf"
  check "$folder: shamrock verifies cortiq's file" "$shamrock" verify "$work/$folder.cortiq.cmf"
  compare "$folder: on shamrock's file" "$work/$folder.cmf" "$prompt" 40
  compare "$folder: on cortiq's file" "$work/$folder.cortiq.cmf" "$prompt" 40
done
check "clover-nano: cortiq verifies" "$cortiq" verify "$nano"
for question in "$story" 'How much is 12 plus 30?' 'Sort these words: pear, apple, plum'; do
  compare "clover-nano: $question" "$nano" "$(ask "$question")" 64
done
exit $failed
