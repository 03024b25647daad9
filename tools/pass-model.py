#!/usr/bin/env python3
"""The cost model of docs/when-diffusion-pays.md: fitted to measured passes, and what follows from it.

    shamrock bench MODEL --json ... > passes.jsonl
    tools/pass-model.py --geometry clover-nano passes.jsonl        fit, compare, break-even
    tools/pass-model.py --geometry clover-35b-a3b --machine FIXED_US,GB_S,GMAC_S
                                                                   predict for a machine

A pass takes fixed + bytes / bandwidth + multiply-adds / peak. Rows that are committed together have a peak of their own: they
choose experts freely, so that each expert has few of them.  Needs nothing but Python.
"""

import argparse
import json
import math

GEOMETRIES = {
    "clover-35b-a3b": dict(vocab=248320, hidden=2048, layers=40, full=4, heads=16, kv=2, dim=256, keys=16,
                           values=32, key=128, value=128, experts=256, top=8, width=512, shared=512,
                           block=32, coreset=0.9),
    "clover-nano": dict(vocab=4096, hidden=256, layers=8, full=4, heads=4, kv=2, dim=128, keys=4, values=8,
                        key=64, value=64, experts=32, top=4, width=64, shared=64, block=32, coreset=0.9),
}
# Bytes a weight: q8_2f with its scales, q4tp with its scales.
DENSE, EXPERT = 1.07, 0.53


def sizes(g):
    """Multiply-adds a row through all layers and a scored row through the head; bytes read once a pass,
    and of one expert of one layer."""
    h = g["hidden"]
    full = g["layers"] // g["full"]
    linear = g["layers"] - full
    keys, values = g["keys"] * g["key"], g["values"] * g["value"]
    gdn = h * (2 * keys + 3 * values + 2 * g["values"])
    attention = h * g["dim"] * (3 * g["heads"] + 2 * g["kv"])
    ffn = h * (g["experts"] + 3 * g["shared"])
    expert = 3 * h * g["width"]
    recurrence = 3 * g["values"] * g["key"] * g["value"]
    dense = linear * gdn + full * attention + g["layers"] * ffn
    row = dense + linear * recurrence + g["layers"] * g["top"] * expert
    head = g["vocab"] * h
    return row, head, DENSE * dense, DENSE * head, EXPERT * expert


def experts(g, commit, preview):
    """Distinct experts a layer if rows chose freely, which is the most there can be; a preview keeps to
    its coreset, about the experts of a few rows."""
    free = g["experts"] * (1 - (1 - g["top"] / g["experts"]) ** commit)
    core = min(g["experts"], 1.1 * g["top"]) if preview else 0
    return free + core * (1 - free / g["experts"])


def work(g, commit, preview, scored, distinct=None):
    """What a pass takes: one pass, bytes read, multiply-adds, and what of those is rows committed together with others."""
    row, head, dense, head_bytes, expert = sizes(g)
    if distinct is None:
        distinct = g["layers"] * experts(g, commit, preview)
    read = dense + (head_bytes if scored else 0) + distinct * expert
    return 1, read, (commit + preview) * row + scored * head, max(commit - 1, 0) * row


def seconds(machine, taken):
    return sum(m * t for m, t in zip(machine, taken))


def fit(samples):
    """Seconds for each of what `work` returns: non-negative least squares on relative errors, over all sets of terms
    that are not zero."""
    best = None
    count = len(samples[0][0])
    for kept in range(1, 1 << count):
        terms = [i for i in range(count) if kept >> i & 1]
        rows = [[taken[i] / t for i in terms] for taken, t in samples]
        n = len(terms)
        a = [[sum(r[i] * r[j] for r in rows) for j in range(n)] + [sum(r[i] for r in rows)] for i in range(n)]
        for i in range(n):
            largest = max(range(i, n), key=lambda j: abs(a[j][i]))
            a[i], a[largest] = a[largest], a[i]
            if abs(a[i][i]) < 1e-300:
                break
            for j in range(n):
                if j != i:
                    factor = a[j][i] / a[i][i]
                    a[j] = [x - factor * y for x, y in zip(a[j], a[i])]
        x = [a[i][n] / a[i][i] if a[i][i] else -1 for i in range(n)]
        if min(x) < 0:
            continue
        error = sum((sum(c * v for c, v in zip(r, x)) - 1) ** 2 for r in rows)
        if best is None or error < best[0]:
            whole = [0.0] * count
            for i, value in zip(terms, x):
                whole[i] = value
            best = (error, whole)
    return best[1]


def conclude(g, machine):
    def time(commit, preview, scored):
        return seconds(machine, work(g, commit, preview, scored))

    block = g["block"]
    decode, turn, preview = time(1, 0, 1), time(block, block, block), time(0, block, block // 2)
    propose, verify = time(1, 15, 16), time(15, 0, 15)
    print(f"\ncausal step {decode * 1e3:.2f} ms, {1 / decode:.0f} tok/s")
    print("tokens a preview   denoise tok/s   against causal")
    for tokens in (2, 4, 6, 8, 12, 16, 32):
        spent = turn + (block / tokens - 1) * preview
        print(f"{tokens:>16} {block / spent:>15.0f} {block / spent * decode:>16.2f}")
    previews = 1 + (block * decode - turn) / preview
    print(f"denoising breaks even at {block / previews:.1f} tokens a preview" if previews >= 1 else
          "denoising never breaks even")
    print("right guesses      draft tok/s   against causal")
    for right in (0.5, 0.7, 0.8, 0.9, 0.95):
        rate = (1 + right * sum(right ** i for i in range(15))) / (propose + right * verify)
        print(f"{right:>13} {rate:>16.0f} {rate * decode:>16.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("passes", nargs="?", help="lines of `shamrock bench --json`")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="clover-nano")
    parser.add_argument("--machine", help="FIXED_US,GB_S,GMAC_S, and GMAC_S of commits if it differs")
    args = parser.parse_args()
    g = GEOMETRIES[args.geometry]
    if args.machine:
        fixed, bandwidth, peak, *commits = map(float, args.machine.split(","))
        more = 1e-9 / commits[0] - 1e-9 / peak if commits else 0.0
        return conclude(g, (fixed * 1e-6, 1e-9 / bandwidth, 1e-9 / peak, more))
    samples = []
    with open(args.passes, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if "work" not in line:
                continue
            preview = line["rows"] if line["work"] == "preview" else 0
            commit = line["rows"] - preview
            taken = work(g, commit, preview, preview or 1, line["distinct_experts"])
            samples.append((line["work"], line["rows"], taken, line["median_ms"] / 1e3))
    machine = fit([s[2:] for s in samples])
    fixed, byte, mac, more = machine
    rates = [1e-9 / m if m else math.inf for m in (byte, mac, mac + more)]
    print("fixed {:.0f} us, {:.1f} GB/s, {:.1f} G multiply-adds/s, commits {:.1f} G".format(fixed * 1e6, *rates))
    print("pass            bytes  multiply-adds   measured   predicted    off")
    for name, rows, taken, time in samples:
        predicted = seconds(machine, taken)
        print(f"{name:<8} {rows:>4} {taken[1] / 1e6:>7.1f}M {taken[2] / 1e6:>12.0f}M "
              f"{time * 1e3:>7.2f} ms {predicted * 1e3:>8.2f} ms {100 * (predicted / time - 1):>+5.0f}%")
    conclude(g, machine)


if __name__ == "__main__":
    main()
