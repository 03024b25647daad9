#!/bin/bash
# Runs the tests of a crate that uses objc2-metal on Linux, against the stand-in for Metal in FakeMetal.m.
# usage: run-stand-in.sh [--work DIR] CRATE_DIR [CARGO_COMMAND_AND_ARG...]
#   default: `test`; others: `test --lib NAME`, `clippy --all-targets`, ...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse_work "$@"
[[ $(uname -m) == x86_64 ]] || die "the fiber switch in shim/runtime.cpp is written for x86-64 only"
command -v cargo >/dev/null || die "cargo not found (rustup, or the package cargo)"
need_clang
apt_install gobjc libgnustep-base-dev
F=$WORK/fake
mkdir -p "$F"

crate=${ARGS[0]} cmd=("${ARGS[@]:1}")
[[ -f $crate/Cargo.toml ]] || die "no Cargo.toml in $crate"
[[ ${#cmd[@]} -gt 0 ]] || cmd=(test)
cd "$crate"

# 1. the stand-in, with the path of the shim compiled in
gccdir=$(dirname "$(gcc -print-libgcc-file-name)")
[[ -f $gccdir/include/objc/objc.h ]] || die "no Objective-C headers in $gccdir/include (package gobjc of another gcc?)"
"clang-$CLANG" -c -O1 -g -fPIC -fobjc-runtime=gcc -fconstant-string-class=NSConstantString -fexceptions \
  -I/usr/include/GNUstep "-I$gccdir/include" -DGNUSTEP -DGNUSTEP_BASE_LIBRARY=1 -DGNU_GUI_LIBRARY=0 -DGNU_RUNTIME=1 \
  -D_NATIVE_OBJC_EXCEPTIONS -Wno-everything "-DMSL_SHIM=\"$KIT/shim\"" "-DCLANGXX=\"clang++-$CLANG\"" \
  "$KIT/FakeMetal.m" -o "$F/FakeMetal.o"

# 2. copies of three binding crates: no framework link attribute; GNUstep's ABI, with classes looked up by name
# The cfg goes to the crate alone, so that all others are shared with plain builds; and to cargo's question for cfgs.
package=$(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.toml | head -1)
cat > "$F/rustc" <<R
#!/bin/sh
case "\$CARGO_PKG_NAME \$*" in
"$package "* | *"--crate-name ___ "*)
  exec '$(rustc --print sysroot)/bin/rustc' "\$@" --cfg metal_host "-Lnative=$gccdir" "-Clink-arg=$F/FakeMetal.o" \
    -Clink-arg=-lgnustep-base -Clink-arg=-lobjc ;;
esac
exec '$(rustc --print sysroot)/bin/rustc' "\$@"
R
chmod +x "$F/rustc"
unset RUSTC_WORKSPACE_WRAPPER
export RUSTC=$F/rustc
target=$(rustc -vV | sed -n 's/^host: //p')
meta=$F/metadata.json
cargo metadata --format-version 1 --filter-platform "$target" > "$meta" || die "cargo metadata failed in $crate"
patches=() fresh=()
for c in objc2 block2 objc2-metal; do
  src=$(python3 - "$meta" "$c" <<'P'
import json, os, sys
m = json.load(open(sys.argv[1]))
used = {n['id'] for n in m['resolve']['nodes']}
d = [os.path.dirname(p['manifest_path']) for p in m['packages'] if p['name'] == sys.argv[2] and p['id'] in used]
print(d[0] if len(d) == 1 else '')
P
)
  [[ -n $src ]] || die "$crate must use exactly one version of $c under cfg(metal_host)"
  patches+=(--config "patch.crates-io.$c.path=\"$F/$c\"")
  [[ $(cat "$F/$c.from" 2>/dev/null) == "$src" ]] && continue
  rm -rf "$F/$c"
  cp -r "$src" "$F/$c"
  { grep -rlZE 'kind = "framework"' "$F/$c/src" || true; } | xargs -0 -r sed -i -E \
    's/^(\s*)#\[link\((name = "[A-Za-z]+", kind = "framework")\)\]/\1#[cfg_attr(target_vendor = "apple", link(\2))]/'
  fresh+=("$c")
  echo "$src" > "$F/$c.from"
done
python3 - "$F" ${fresh[@]+"${fresh[@]}"} <<'P'
import re, sys
def edit(crate, *edits):
    if crate not in sys.argv[2:]:
        return
    path = f'{sys.argv[1]}/{crate}/Cargo.toml'
    s = open(path).read()
    for pat, new in edits:
        s, n = re.subn(pat, new, s)
        if n != 1:
            sys.exit(f'error: the features of this {crate} are not those of 0.6: adapt run-stand-in.sh')
    open(path, 'w').write(s)
edit('objc2', (r'(?m)^(gnustep-1-7 = \[\s*)"unstable-static-class",', r'\1'),
     (r'(?m)^(std = \[)', r'\1"gnustep-1-7", "disable-encoding-assertions", '))
edit('block2', (r'(?m)^(std = \[)', r'\1"gnustep-1-7", '))
P

# 3. cargo, with the lock file put back as it was (the patches change it)
restore() { if [[ -f $F/Cargo.lock.saved ]]; then cp "$F/Cargo.lock.saved" "$lock"; fi; }
lock=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["workspace_root"])' "$meta")/Cargo.lock
cp "$lock" "$F/Cargo.lock.saved"
trap restore EXIT
export FAKE_METAL_CACHE=$F/kernels # compiled once for all tests of a run
rm -rf "$FAKE_METAL_CACHE"
mkdir "$FAKE_METAL_CACHE"
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-1} # GNUstep starts up on one thread
sub=${cmd[0]}
if [[ $sub == clippy ]]; then # runs instead of rustc in the workspace's crates, so it must add the cfg
  cat > "$F/clippy" <<R
#!/bin/sh
[ "\$CARGO_PKG_NAME" != "$package" ] || exec '$($RUSTC --print sysroot)/bin/clippy-driver' "\$@" --cfg metal_host -D warnings
exec "\$@"
R
  chmod +x "$F/clippy"
  export RUSTC_WORKSPACE_WRAPPER=$F/clippy
  cargo check "${patches[@]}" "${cmd[@]:1}"
else
  cargo "$sub" "${patches[@]}" "${cmd[@]:1}"
fi
