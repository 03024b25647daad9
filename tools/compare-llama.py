#!/usr/bin/env python3
"""Processor time of llama.cpp and shamrock for the same causal work, one thread each, runs interleaved: wall times
mean little on a machine that does other work. docs/comparison.md says where llama-bench comes from.

    tools/synth-gguf.py x4.gguf
    shamrock synth x4.cmf --geometry clover-35b-a3b --layers 4
    tools/compare-llama.py LLAMA_BENCH x4.gguf SHAMROCK x4.cmf [ROUNDS]
"""

import json
import resource
import statistics
import subprocess
import sys

PROMPT, TOKENS = 256, 16


def spent(command):
    """Processor seconds of a command and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def llama(bench, model, work):
    """Milliseconds of one run: what three runs take more than one, so that loading does not count."""
    command = [bench, "-m", model, "-t", "1", *work, "-o", "json", "-r"]
    return (spent([*command, "3"])[0] - spent([*command, "1"])[0]) / 2 * 1e3


def shamrock(program, model):
    """Milliseconds of a decoded token and of a prompt."""
    command = [program, "bench", model, "--backend", "cpu", "--threads", "1", "--rows", "1"]
    lines = spent([*command, "--commit", str(PROMPT), "--repeat", "3", "--json"])[1].splitlines()
    times = {m["work"]: m["processor_ms"] for m in map(json.loads, lines)}
    return times["decode"], times["commit"]


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    bench, gguf, program, cmf = sys.argv[1:5]
    rows = []
    for _ in range(int(sys.argv[5]) if len(sys.argv) == 6 else 3):
        decode, prompt = shamrock(program, cmf)
        theirs_decode = llama(bench, gguf, ["-p", "0", "-n", str(TOKENS)]) / TOKENS
        theirs_prompt = llama(bench, gguf, ["-p", str(PROMPT), "-n", "0"])
        rows.append((decode, theirs_decode, prompt, theirs_prompt))
        print("  ".join(f"{ms:8.1f}" for ms in rows[-1]), flush=True)
    ours, theirs, our_prompt, their_prompt = (statistics.median(column) for column in zip(*rows))
    print(f"a token: shamrock {ours:.0f} ms, llama.cpp {theirs:.0f} ms, {theirs / ours:.2f}x")
    print(f"{PROMPT} rows: shamrock {our_prompt:.0f} ms, llama.cpp {their_prompt:.0f} ms, {their_prompt / our_prompt:.2f}x")


if __name__ == "__main__":
    main()
