#!/usr/bin/env bash
# Checks the Metal executor on Linux, as far as a machine without Metal can: tools/metal-linux/README.md
# says what each part proves and what it does not.
#   tools/metal-check-linux.sh [--work DIR] [--darwin]
# Needs x86-64, cargo, and root or sudo for the Debian packages that it installs. --darwin also generates code for
# aarch64-apple-darwin, of the crate with its tests and benches and of the whole program, against the real bindings
# (850 MB of toolchain in DIR).
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

part "kernels in four orders, and the executor over the stand-in"
"$kit/run-stand-in.sh" --work "$WORK" "$crate" test --lib --tests

part "kernels under AddressSanitizer"
runtime=$("clang-$CLANG" -print-file-name=libclang_rt.asan-x86_64.so)
ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 FAKE_METAL_CFLAGS="-fsanitize=address -shared-libsan" \
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env LD_PRELOAD=$runtime" \
  "$kit/run-stand-in.sh" --work "$WORK" "$crate" test --lib

part "lints"
"$kit/run-stand-in.sh" --work "$WORK" "$crate" clippy --all-targets

if [[ $darwin == 1 ]]; then
  part "code for aarch64-apple-darwin: crate, tests and benches"
  "$kit/darwin/build-darwin.sh" --work "$WORK" "$crate" --locked --all-targets
  part "code for aarch64-apple-darwin: the program"
  "$kit/darwin/build-darwin.sh" --work "$WORK" "$crate/../cli" --locked --bin shamrock
fi
part "all passed"
