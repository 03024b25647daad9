#!/usr/bin/env python3
"""Thresholds by position for `--rule positions:...`, from a model's own answers.

    tools/calibrate-positions.py [--shamrock PROGRAM] [--stretches N] [--precision P] [--skip N] MODEL

Denoises every task with one pass a block (threshold 0) and decodes it causally, and finds for each
stretch of the block the lowest threshold at which that share of the picks above it are what decoding
chose.  A block counts while all blocks before it came out as decoding had them.  With --skip N every
N-th task is left out, for an evaluation on tasks that were not calibrated on.  Needs nothing but Python.
"""

import argparse
import json
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def events(args, tasks, *flags):
    """Per task its events: a task begins with pass 0."""
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.jsonl")
        subprocess.run([args.shamrock, "eval", args.model, "--tasks", tasks, "--trace", trace, "--json", *flags],
                       check=True, stdout=subprocess.DEVNULL)
        answers = []
        with open(trace, encoding="utf-8") as lines:
            for event in map(json.loads, lines):
                if event["event"] == "pass" and event["pass"] == 0:
                    answers.append([])
                answers[-1].append(event)
    return answers


def picks(denoised, decoded):
    """(row, confidence, right) of the first passes over blocks whose past is decoding's."""
    want = [e["id"] for e in decoded if e["event"] == "token"]
    for e in denoised:
        if e.get("work") != "denoise":
            continue
        known = want[e["block"] * len(e["ids"]):]
        if not known:
            return
        yield from ((row, confidence, token == right)
                    for row, token, confidence, right in zip(e["rows"], e["tokens"], e["confidence"], known))
        if e["ids"] != known[:len(e["ids"])]:
            return


def threshold(stretch, precision):
    """The lowest confidence above which enough of the picks are right."""
    best, right = 1.0, 0
    for count, (confidence, hit) in enumerate(sorted(stretch, reverse=True), 1):
        right += hit
        if right >= precision * count:
            best = confidence
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--shamrock", default=os.path.join(ROOT, "target/release/shamrock"))
    parser.add_argument("--tasks", default=os.path.join(ROOT, "models/clover-nano.eval.jsonl"))
    parser.add_argument("--stretches", type=int, default=4)
    parser.add_argument("--precision", type=float, default=0.98)
    parser.add_argument("--skip", type=int, default=0)
    args = parser.parse_args()
    with open(args.tasks, encoding="utf-8") as f:
        tasks = [line for i, line in enumerate(f) if not args.skip or (i + 1) % args.skip]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as kept:
        kept.writelines(tasks)
        kept.flush()
        denoised = events(args, kept.name, "--threshold", "0")
        decoded = events(args, kept.name, "--mode", "causal")
    rows = max(len(e["ids"]) for answer in denoised for e in answer if e.get("work") == "denoise")
    stretches = [[] for _ in range(args.stretches)]
    for row, confidence, right in (p for pair in zip(denoised, decoded) for p in picks(*pair)):
        stretches[row * args.stretches // rows].append((confidence, right))
    # Rounded down: a confidence must exceed its threshold.
    found = [int(1e4 * threshold(stretch, args.precision)) / 1e4 for stretch in stretches]
    print("positions:" + ",".join(f"{t:g}" for t in found))


if __name__ == "__main__":
    main()
