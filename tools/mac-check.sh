#!/usr/bin/env bash
# Builds, tests and times the Metal executor on a Mac with Apple silicon, from a clean tree, and writes a
# report to attach to an issue.
#   tools/mac-check.sh [OUT_FOLDER]     default: target/mac-check
# Needs Rust and the command line tools of Xcode. LARGE=1 also times the full 35B-A3B geometry, with random
# weights that take 20 GB of disk.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/mac-check}
mkdir -p "$out"
report=$out/report.txt
shamrock=target/release/shamrock
failed=0

# Runs a command, with its output in the report; goes on whatever comes of it.
part() {
    printf '\n== %s\n' "$*"
    "$@" 2>&1 || { failed=1; echo "FAILED: $*"; }
}

{
    echo "commit $(git rev-parse HEAD 2>/dev/null)"
    part sw_vers
    part sysctl -n machdep.cpu.brand_string hw.memsize
    part rustc --version
    part cargo test --locked -p shamrock-metal -- --test-threads 1
    part cargo build --release --locked -p shamrock-cli
    part cargo bench --locked -p shamrock-metal
    for mode in causal draft denoise; do
        part "$shamrock" eval --backend metal --mode "$mode" --json
    done
    part "$shamrock" bench --backend metal --rows 1,8,32 --commit 32,256
    part "$shamrock" bench --backend metal --precision f32 --rows 1,8,32 --commit 32,256
    part "$shamrock" bench --backend metal --routing device --rows 1,8,32 --commit 32,256
    part "$shamrock" bench --backend metal --routing device --json --rows 1,32 --commit 256
    part "$shamrock" bench --backend metal --json --rows 1,32 --commit 256
    part "$shamrock" bench --backend metal --profile --rows 1,32 --commit 256
    part "$shamrock" bench --backend metal --profile --routing device --rows 1,32 --commit 256
    part "$shamrock" bench --backend cpu --rows 1,8,32 --commit 32,256
    if [ -n "${LARGE:-}" ]; then
        part "$shamrock" synth "$out/clover-35b.cmf" --seed 1
        for views in 2GiB 6GiB 10GiB; do
            part "$shamrock" bench "$out/clover-35b.cmf" --backend metal --expert-views "$views" --rows 1,32 --commit 256
        done
        part "$shamrock" bench "$out/clover-35b.cmf" --backend metal --no-prefetch --rows 1,32 --commit 256
        part "$shamrock" bench "$out/clover-35b.cmf" --backend metal --json --rows 1,32 --commit 256
        rm -f "$out/clover-35b.cmf"
    fi
    [ "$failed" = 0 ] && echo "all passed" || echo "something failed, see above"
    [ "$failed" = 0 ]
} | tee "$report" && status=0 || status=1
echo "the report is in $report"
exit "$status"
