#!/usr/bin/env bash
# Builds the stand-ins for the CUDA driver and NVRTC.
#   build.sh FOLDER [asan]     then run with LD_LIBRARY_PATH=FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
mkdir -p "$out"
out=$(cd "$out" && pwd)
common="-std=c++20 -O2 -g1 -fPIC -shared -Wall -Wextra -fvisibility=hidden"
kernels="-std=c++17 -O1 -g1 -fPIC -shared -w -march=native -ffp-contract=off -fno-math-errno -fno-strict-aliasing"
if [ "${2:-}" = asan ]; then
    common+=" -fsanitize=address"
    kernels+=" -fsanitize=address"
fi
cp "$here/device.h" "$here/fibers.h" "$out/"
echo "$kernels" >"$out/flags"
c++ $common -Wl,-soname,libcuda.so "$here/driver.cpp" "$here/fibers.cpp" -ldl -o "$out/libcuda.so"
c++ $common -Wl,-soname,libnvrtc.so "$here/nvrtc.cpp" -ldl -o "$out/libnvrtc.so"
