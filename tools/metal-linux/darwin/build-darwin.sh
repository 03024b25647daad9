#!/bin/bash
# Generates code for aarch64-apple-darwin and links executables with ld64.lld, against an SDK that it makes up:
# headers in include/, libraries of no symbols. What comes out cannot run here. Warnings of the workspace's crates are
# errors. Quick rather than good: not optimised, no unwinding, and one set of features for all packages, so that they
# share what they depend on.
# usage: build-darwin.sh [--work DIR] CRATE_DIR [CARGO_BUILD_ARG...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
parse_work "$@"
[[ ${#ARGS[@]} -gt 0 ]] || die "usage: build-darwin.sh [--work DIR] CRATE_DIR [CARGO_BUILD_ARG...]"
need_clang
darwin_packages

export SDKROOT=$WORK/sdk
rm -rf "$SDKROOT"
stub() { # PATH_IN_SDK INSTALL_NAME SYMBOL
  mkdir -p "$SDKROOT/$(dirname "$1")"
  cat > "$SDKROOT/$1.tbd" <<T
--- !tapi-tbd
tbd-version: 4
targets: [ arm64-macos ]
install-name: '$2'
exports:
  - targets: [ arm64-macos ]
    symbols: [ $3 ]
...
T
}
for library in System c iconv m; do stub "usr/lib/lib$library" /usr/lib/libSystem.B.dylib dyld_stub_binder; done
stub usr/lib/libobjc /usr/lib/libobjc.A.dylib _objc_msgSend
for framework in CoreFoundation CoreGraphics Foundation Metal Security SystemConfiguration; do
  at=System/Library/Frameworks/$framework.framework
  stub "$at/$framework" "/$at/$framework" "_made_up_symbol_of_$framework"
done
cp -r "$KIT/darwin/include" "$SDKROOT/usr/include"

mkdir -p "$WORK/bin"
ln -sf "$(command -v "llvm-objcopy-$CLANG")" "$WORK/bin/rust-objcopy" # with which rustc strips
export PATH=$WORK/bin:$PATH
export CC_aarch64_apple_darwin=clang-$CLANG AR_aarch64_apple_darwin=llvm-ar-$CLANG
export CFLAGS_aarch64_apple_darwin=-ffreestanding # stdint.h and limits.h of clang itself
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=clang-$CLANG
# Symbols that the made-up libraries do not list are left to the dynamic loader.
flags=(--target=arm64-apple-macosx11.0 -mlinker-version=951 -isysroot "$SDKROOT" "-fuse-ld=$(command -v "ld64.lld-$CLANG")"
  -Wl,-undefined,dynamic_lookup -nodefaultlibs -lSystem)
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_PANIC=abort
export CARGO_RESOLVER_FEATURE_UNIFICATION=workspace
rust_flags "${flags[@]/#/-Clink-arg=}"
exec "$KIT/darwin/cargo-darwin.sh" --work "$WORK" build "${ARGS[0]}" --release -Zfeature-unification -Zpanic-abort-tests "${ARGS[@]:1}"
