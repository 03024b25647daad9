#!/usr/bin/env bash
# Runs the CUDA executor's device tests on a CPU, over the stand-in for the driver and NVRTC
# (crates/cuda/standin). It shows results, barriers, bounds of copies and the host's logic; not
# speed, not races between blocks, and not that NVRTC takes the kernels.
#   tools/cuda-standin.sh [--asan] [TEST_NAME ...]     default: what CI has time for
# Needs g++ on x86-64. STANDIN_SCHEDULE=1 or 2 has threads run in descending or random order,
# STANDIN_DEFER=1 does work on streams as late as their waits allow.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$(realpath -m "${CARGO_TARGET_DIR:-target}/cuda-standin")"
if [ "${1:-}" = --asan ]; then
    shift
    crates/cuda/standin/build.sh "$out-asan" asan
    out+=-asan
    LD_PRELOAD_ASAN="$(c++ -print-file-name=libasan.so)"
    export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0
else
    crates/cuda/standin/build.sh "$out"
fi
[ $# -gt 0 ] || set -- results_depend memory_that_runs_out a_lost_device device_cache device_few_rows device_attention device_long

# Built before the stand-in is in the loader's path.
binaries=$(cargo test --locked -p shamrock-cuda --test standin --test device --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
cd crates/cuda
for binary in $binaries; do
    LD_LIBRARY_PATH="$out" LD_PRELOAD="${LD_PRELOAD_ASAN:-}" "$binary" --ignored "$@"
done
