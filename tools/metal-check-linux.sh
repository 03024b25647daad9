#!/usr/bin/env bash
# Checks the Metal executor on Linux, as far as a machine without Metal can: tools/metal-linux/README.md
# says what each part proves and what it does not.
#   tools/metal-check-linux.sh [--work DIR] [--darwin]
# Needs x86-64, cargo, and root or sudo for the Debian packages that it installs. --darwin also generates code for
# aarch64-apple-darwin, of the crate with its tests and benches and of the whole program, against the real bindings
# (850 MB of toolchain in DIR), while the tests run.
set -euo pipefail
kit=$(cd "$(dirname "$0")" && pwd)/metal-linux
source "$kit/lib.sh"
parse_work "$@"
darwin=0
for argument in ${ARGS[@]+"${ARGS[@]}"}; do
  [[ $argument == --darwin ]] || die "unknown argument $argument"
  darwin=1
done
crate=$(cd "$kit/../../crates/metal" && pwd)
# Absolute, since cargo runs in the crate's folder.
[[ -z ${CARGO_TARGET_DIR:-} ]] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
need_clang
part() { printf '== %s (%d s so far)\n' "$*" "$SECONDS"; }

part "address spaces of the kernels"
# As `native/kernel.rs` puts them together.
(cd "$crate/kernels" && cat common.metal norm.metal gemm.metal attention.metal gdn.metal route.metal moe.metal head.metal) > "$WORK/kernels.metal"
"$kit/check-msl.sh" --work "$WORK" "$WORK/kernels.metal"
# That the check finds what it is for: a pointer into another address space, and one into none.
for wrong in "thread:cannot initialize" ":without address space"; do
  printf '%s\n' "kernel void wrong(device float* out [[buffer(0)]], uint t [[thread_position_in_grid]]) {" \
    "  ${wrong%%:*} float* p = out;" "  p[t] = 1.0f;" "}" > "$WORK/wrong.metal"
  if said=$("$kit/check-msl.sh" --work "$WORK" "$WORK/wrong.metal" 2>&1) || [[ $said != *"${wrong#*:}"* ]]; then
    die "a wrong pointer is not refused as one: $said"
  fi
done

part "lints"
"$kit/run-stand-in.sh" --work "$WORK" "$crate" clippy --all-targets

part "tests over the stand-in, compiled"
"$kit/run-stand-in.sh" --work "$WORK" "$crate" test --lib --tests --no-run --message-format json-render-diagnostics > "$WORK/built.json"

# Cargo's lock file is as it was again, and tests are on one thread: another core makes code for macOS meanwhile.
if [[ $darwin == 1 ]]; then
  darwin_packages
  set -m # a process group of its own, to be ended as one
  {
    part "of the crate, its tests and benches"
    "$kit/darwin/build-darwin.sh" --work "$WORK" "$crate" --locked --all-targets
    part "of the program"
    "$kit/darwin/build-darwin.sh" --work "$WORK" "$crate/../cli" --locked --bin shamrock
  } > "$WORK/darwin.log" 2>&1 &
  building=$!
  set +m
  trap 'kill -- "-$building" 2>/dev/null || true' EXIT
fi

# program TARGET: the compiled tests of a target of the crate
program() { python3 -c '
import json, sys
built = [json.loads(line) for line in open(sys.argv[1])]
print(*(b["executable"] for b in built if b.get("executable") and b["target"]["name"] == sys.argv[2]))' "$WORK/built.json" "$1"; }
kernels=$(program shamrock_metal) executor=$(program executor)
cd "$crate"
export FAKE_METAL_CACHE=$WORK/fake/kernels RUST_TEST_THREADS=1

part "kernels in four orders, and the executor over the stand-in"
"$kernels"
"$executor"

part "kernels under AddressSanitizer"
runtime=$("clang-$CLANG" -print-file-name=libclang_rt.asan-x86_64.so)
ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 LD_PRELOAD=$runtime \
  FAKE_METAL_CFLAGS="-fsanitize=address -shared-libsan" "$kernels"

if [[ $darwin == 1 ]]; then
  part "code for aarch64-apple-darwin"
  wait "$building" || { cat "$WORK/darwin.log"; die "no code for aarch64-apple-darwin"; }
  trap - EXIT
  grep -E '^==|Finished' "$WORK/darwin.log"
fi
part "all passed"
