#!/usr/bin/env python3
"""MSL -> C++ for the CPU shim: prepass.py FILE.metal > FILE.cpp

1. threadgroup variables of a kernel become MSL_TG_VAR (storage that the threads of a group share);
2. every kernel, also an explicit instantiation with [[host_name("...")]], gets a thunk that binds its
   arguments from the attributes, and an entry in the launcher's table.
Line numbers are kept. `--check` leaves the thunks out and includes msl_check.h (see check-msl.sh).
"""
import re
import sys

VECTOR = {
    'thread_position_in_grid': 'g.group_id * g.tpg + f.tid',
    'thread_position_in_threadgroup': 'f.tid',
    'threadgroup_position_in_grid': 'g.group_id',
    'threads_per_threadgroup': 'g.tpg',
    'threadgroups_per_grid': 'g.groups',
    'threads_per_grid': 'g.groups * g.tpg',
}
SCALAR = {
    'thread_index_in_threadgroup': 'f.index',
    'thread_index_in_simdgroup': 'f.lane',
    'simdgroup_index_in_threadgroup': 'f.sg',
    'simdgroups_per_threadgroup': '(g.nthreads + 31) / 32',
    'threads_per_simdgroup': '32u',
}

check = '--check' in sys.argv
path = [a for a in sys.argv[1:] if a != '--check'][0]


def fail(code, at, why):
    sys.exit(f'{path}:{code.count(chr(10), 0, at) + 1}: error: {why}')


def blank(m):
    return re.sub(r'[^\n]', ' ', m.group(0))


def threadgroup_variables(code):
    n = 0

    def one(m):
        nonlocal n
        out = []
        for d in re.split(r',(?![^\[]*\])', m.group(2)):
            name, dims = re.match(r'\s*(\w+)\s*((?:\[[^\]]*\])*)\s*$', d).groups()
            out.append(f'MSL_TG_VAR({n}, MSL_T({m.group(1)}), {name}, {dims});')
            n += 1
        return ' ' + ' '.join(out)

    return re.sub(r'(?<=[;{}\n])(?<![(,])[ \t]*threadgroup\s+([\w:<>]+(?:\s*<[^;]*?>)?)\s+'
                  r'(\w+\s*(?:\[[^;]*?\])*(?:\s*,\s*\w+\s*\[[^;]*?\])*)\s*;', one, code)


def split(s):
    """Splits at the commas that are in no bracket."""
    depth, cur, out = 0, '', []
    for ch in s:
        depth += (ch in '(<[') - (ch in ')>]')
        if ch == ',' and depth == 0:
            out.append(cur)
            cur = ''
        else:
            cur += ch
    return out + [cur]


def bind(params, code, at, template=False):
    """The argument list of a call of the kernel, from the attributes of its parameters. Those of a template
    may have types that depend on it: pointers and references then convert themselves."""
    out = []
    for p in split(params):
        a = re.search(r'\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]', p)
        if not a:
            fail(code, at, f'kernel parameter without attribute: {p.strip()}')
        kind, i = a.groups()
        ty = re.match(r'(.*?)(\w+)?$', re.sub(r'\[\[.*?\]\]', '', p).strip(), re.S).group(1).strip()
        if kind == 'buffer' and template:
            out.append(f'msl::{"Ref" if ty.endswith("&") else "Ptr"}{{g.bufs[{i}]}}')
        elif kind == 'buffer':
            out.append(f'(*({ty.rstrip("& ")}*)g.bufs[{i}])' if ty.endswith('&') else f'(({ty})g.bufs[{i}])')
        elif kind == 'threadgroup':
            out.append(f'(({ty})g.tgmem[{i}])')
        elif kind in VECTOR:
            out.append(f'msl::pos<{ty}>({VECTOR[kind]})')
        elif kind in SCALAR:
            out.append(f'({ty})({SCALAR[kind]})')
        else:
            fail(code, at, f'attribute [[{kind}]] is not in the shim (add it to prepass.py)')
    return ', '.join(out)


def find(pat, code):
    """Matches of pat (which ends in an opening parenthesis) with the text up to the closing one."""
    for m in re.finditer(pat, code):
        depth, i = 1, m.end()
        while depth:
            depth += {'(': 1, ')': -1}.get(code[i], 0)
            i += 1
        yield m, code[m.end():i - 1]


def plain(function, code):
    """Whether the threads of a kernel never meet, so that they can run one after the other without fibers."""
    at = code.index('{', code.index(')', re.search(r'\bkernel\s+void\s+' + function + r'\s*\(', code).end()))
    depth, i = 1, at + 1
    while depth:
        depth += {'{': 1, '}': -1}.get(code[i], 0)
        i += 1
    return not re.search(r'barrier|simd|MSL_TG_VAR', code[at:i])


src = re.sub(r'#include\s*<metal_[a-z_]+>', '', open(path).read())
code = re.sub(r'//[^\n]*|/\*.*?\*/', blank, src, flags=re.S)
code = threadgroup_variables(code)
thunks = []
for m, params in find(r'(?<![\w\]] )\bkernel\s+void\s+(\w+)\s*\(', code):
    if not re.search(r'template\s*(<[^;{}]*>|\[\[[^;{}]*\]\])\s*$', code[:m.start()]):
        thunks.append((m.group(1), m.group(1), bind(params, code, m.start())))
for m, params in find(r'template\s*\[\[\s*host_name\("(\w+)"\)\s*\]\]\s*kernel\s+void\s+(\w+)\s*(<[^()]*>)?\s*\(', code):
    thunks.append((m.group(1), m.group(2) + (m.group(3) or ''), bind(params, code, m.start())))
templates = {m.group(1): (m.start(), params) for m, params in find(r'\bkernel\s+void\s+(\w+)\s*\(', code)}
for m in re.finditer(r'template\s*\[\[\s*host_name\("(\w+)"\)\s*\]\]\s*kernel\s+decltype\((\w+)<[^()]*>\)\s*(\w+<[^();]*>)\s*;', code):
    name, function, call = m.groups()
    if function not in templates:
        fail(code, m.start(), f'no kernel {function} to instantiate')
    at, params = templates[function]
    thunks.append((name, call, bind(params, code, at, True)))
code = re.sub(r'template\s*\[\[\s*host_name\("\w+"\)\s*\]\]', 'template', code)
code = re.sub(r'\[\[[^\[\]]*\]\]', blank, code)

print(f'#include "{"msl_check.h" if check else "msl_cpu.h"}"')
print(f'#define MSL_T(...) __VA_ARGS__\n#line 1 "{path}"')
print(code)
if not check:
    print('#line 1 "thunks"')
    for i, (name, call, args) in enumerate(thunks):
        print(f'static void msl_thunk{i}(msl::Group& g) {{ msl::Fiber& f = *msl::cur; (void)f; {call}({args}); }} '
              f'static msl::Entry msl_e{i}("{name}", msl_thunk{i}, {str(plain(re.match("[a-z_A-Z0-9]+", call)[0], code)).lower()});')
