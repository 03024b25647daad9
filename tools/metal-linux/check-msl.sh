#!/bin/bash
# Address-space and type check of MSL files with clang's C++ for OpenCL front end.
# usage: check-msl.sh [--work DIR] FILE.metal...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_work "$@"
[[ ${#ARGS[@]} -gt 0 ]] || die "usage: check-msl.sh [--work DIR] FILE.metal..."
need_clang
SHIM=$KIT/shim
FLAGS=(-x clcpp -cl-std=clc++2021 -target spir64 -Xclang -finclude-default-header -fsyntax-only "-I$SHIM"
  -Wno-unknown-attributes -Wno-duplicate-decl-specifier -Wno-null-dereference)
mkdir -p "$WORK/msl"
bad=0
for f in "${ARGS[@]}"; do
  [[ -f $f ]] || die "no such file: $f"
  gen=$WORK/msl/$(basename "$f" .metal).check.clcpp
  python3 "$SHIM/prepass.py" --check "$f" > "$gen"
  if ! "clang-$CLANG" "${FLAGS[@]}" "$gen"; then bad=1; continue; fi
  # A pointer or reference without address space: generic in OpenCL, an error in MSL.
  generic=$("clang-$CLANG" "${FLAGS[@]}" -Xclang -ast-dump -fno-color-diagnostics "$gen" 2>/dev/null |
    sed -n '/TranslationUnitDecl/,$p' | grep -E '(ParmVarDecl|[^m]VarDecl|FieldDecl) ' |
    grep -vE 'implicit|opencl-c|<invalid' | grep -E ":[0-9]+ ((used|referenced) )?[A-Za-z_][A-Za-z_0-9]* '[^']*__generic" |
    grep -vE ":[0-9]+ (used|referenced) '" | # of a struct's implicit constructors
    grep -vE 'operator|simdgroup_matrix|msl_atomic' | sort -u || true)
  if [[ -n $generic ]]; then
    echo "$generic" >&2
    echo "$f: error: pointer or reference without address space" >&2
    bad=1
    continue
  fi
  echo "$f: ok"
done
exit $bad
