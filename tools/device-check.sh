#!/usr/bin/env bash
# Builds, tests and times the CUDA executor on a machine with an NVIDIA GPU, from a clean tree.
#   tools/device-check.sh [OUT_FOLDER]     default: target/device-check
# Needs Rust, the driver and NVRTC where the loader finds it (LD_LIBRARY_PATH). The synthetic model
# takes 20 GB of disk; SKIP_LARGE=1 leaves it out.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/device-check}
mkdir -p "$out"
shamrock=target/release/shamrock

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/machine.txt"
cargo build --release --locked -p shamrock-cli
cargo test --locked -p shamrock-cuda -- --ignored --test-threads 1 2>&1 | tee "$out/tests.txt"

for mode in causal draft denoise; do
    "$shamrock" eval --mode "$mode" --backend cuda --json | tail -n 1
done | tee "$out/eval.jsonl"
"$shamrock" bench --backend cuda --rows 1,8,32 --commit 32,256,1024 --json | tee "$out/nano.jsonl"

if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        echo "== $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$shamrock" logits fixtures/awkward/model.q4tp.cmf \
            --backend cuda --prompt-ids 1,2,3,4,5 --block-ids 5,6,7,8,9,10,11,12 --out "$out/logits.safetensors"
    done 2>&1 | tee "$out/sanitizer.txt"
fi

if [ -z "${SKIP_LARGE:-}" ]; then
    "$shamrock" synth "$out/clover-35b.cmf" --seed 1
    "$shamrock" bench "$out/clover-35b.cmf" --backend cuda --rows 8,32 --commit 256,1024 --repeat 9 --warmup 3 --json |
        tee "$out/clover-35b.jsonl"
    rm "$out/clover-35b.cmf"
fi
echo "results are in $out"
