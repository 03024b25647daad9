#!/bin/bash
# Tests the CPU kernels for 64-bit Arm (NEON with dot products, and with matrix products: i8mm) on an x86-64
# Debian machine, under emulation.
# usage: arm-check.sh [--work DIR] [CARGO_TEST_ARG...]     default: --lib --test kernels
# The first run compiles the tests and what they need, about 20 minutes of one core; later ones take seconds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/metal-linux/lib.sh"
parse_work "$@"
[[ ${#ARGS[@]} -gt 0 ]] || ARGS=(--lib --test kernels)
TARGET=aarch64-unknown-linux-gnu

apt_install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
RUSTC=$("$KIT/darwin/fetch-toolchain.sh" --work "$WORK")
TC=$WORK/toolchain

# The standard library for Arm, of the same build as the compiler.
if [[ ! -d $TC/root/usr/lib/rustlib/$TARGET ]]; then
  apt=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::lists=$WORK/arm64-lists"
       -o APT::Sandbox::User=root)
  mkdir -p "$WORK/arm64-lists/partial" "$TC/debs"
  apt-get "${apt[@]}" update >&2
  (cd "$TC/debs" && apt-get "${apt[@]}" download "libstd-rust-web-dev=$(cat "$TC/version")" >&2) ||
    die "apt has no libstd-rust-web-dev $(cat "$TC/version") for arm64"
  dpkg-deb -x "$TC"/debs/libstd-rust-web-dev_*_arm64.deb "$TC/root"
  rm -rf "$TC/debs"
fi

export RUSTC CARGO_TARGET_DIR=$WORK/target-arm
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
unset RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
cd "$KIT/../.."
exec cargo test --locked -p shamrock-cpu --target "$TARGET" "${ARGS[@]}"
