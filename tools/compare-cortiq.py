#!/usr/bin/env python3
"""Compares shamrock with cortiq 0.8.54, both ways: each program verifies and runs files that the other
one wrote, and greedy answers must have the same tokens.

    cargo install cortiq-cli --version 0.8.54 --root DIR
    tools/compare-cortiq.py DIR/bin/cortiq target/release/shamrock            answers
    tools/compare-cortiq.py DIR/bin/cortiq target/release/shamrock --speed    times on clover-nano

For answers cortiq runs with float activations (CMF_SDOT=0 CMF_AVX2=0 CMF_AVX512=0), since its default
kernels round activations to int8, which changes tokens on models this small; shamrock runs its
reference executor for the same reason. For times both run as they do by default.

In causal mode cortiq tells the ids of its tokens. In denoise mode it tells only their text, token by
token, and the number of tokens, blocks and passes; all of that is compared, with --without settle, since
shamrock otherwise saves the passes that only rows behind the answer's end would need. Draft mode is not
compared: without a GPU cortiq denoises in its place.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NANO = ROOT / "models" / "clover-nano.cmf"
STORY = "Tell me a story about a bee, a lantern and a mountain."
FLOAT = {"CMF_SDOT": "0", "CMF_AVX2": "0", "CMF_AVX512": "0"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cortiq")
    parser.add_argument("shamrock")
    parser.add_argument("--speed", action="store_true", help="measure, instead of comparing answers")
    args = parser.parse_args()
    os.environ["CMF_GPU"] = "0"
    if args.speed:
        speed(args)
    else:
        sys.exit(answers(args))


def question(text):
    """As clover-nano's chat template puts it, without reasoning. The tail is not stripped by a shell."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ours(args, file, mode, prompt, tokens, flags=()):
    command = [args.shamrock, "run", file, "--raw", "-p", prompt, "-n", str(tokens), "--mode", mode, "--greedy"]
    out = subprocess.run([*command, "--json", *flags], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return json.loads(out.stdout)


def theirs(args, file, mode, prompt, tokens, env):
    command = [args.cortiq, "run", file, "--raw", "-p", prompt, "-n", str(tokens), "--greedy"]
    trace = ["--trace", "--trace-json"] if mode == "causal" and env else []
    env = {**os.environ, **env, "CMF_CLOVER_MODE": {"causal": "ar"}.get(mode, mode)}
    return subprocess.run([*command, *trace], check=True, capture_output=True, env=env, stdin=subprocess.DEVNULL)


def token_bytes(tokenizer):
    """The bytes of every token of a byte-level tokenizer."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in kept}
    alphabet |= {chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in kept)}
    record = json.loads(Path(tokenizer).read_text())
    pieces = {id: bytes(alphabet[c] for c in piece) for piece, id in record["model"]["vocab"].items()}
    added = {t["id"]: b"" if t["special"] else t["content"].encode() for t in record["added_tokens"]}
    return pieces | added


def compare(args, what, file, tokenizer, prompt, tokens):
    failed = False
    for mode in ["causal", "denoise"]:
        mine = ours(args, file, mode, prompt, tokens, ["--backend", "reference", "--without", "settle"])
        out = theirs(args, file, mode, prompt, tokens, FLOAT)
        if mode == "causal":
            rows = [json.loads(line) for line in out.stderr.decode().splitlines() if line.startswith("{")]
            pair = (mine["tokens"], [row["token_id"] for row in rows])
            shown = f"{len(mine['tokens'])} token ids"
        else:
            table = token_bytes(tokenizer)
            text = "".join(table.get(id, b"").decode(errors="replace") for id in mine["tokens"])
            stats = mine["stats"]
            found = re.search(r"Prompt: (.*)\n\[(\d+) tokens.*\n\[.*: (\d+) blocks · (\d+) passes", out.stdout.decode(), re.S)
            answer = found[1][len(prompt):].strip("\n")
            pair = (
                (text.strip("\n"), len(mine["tokens"]), stats["blocks"], stats["deciding"]),
                (answer, *map(int, found.groups()[1:])),
            )
            shown = f"text of {len(mine['tokens'])} tokens, {stats['blocks']} blocks, {stats['deciding']} passes"
        same = pair[0] == pair[1]
        failed |= not same
        print(f"{what}, {mode}: {'equal' if same else 'DIFFERENT'}, {shown}")
        if not same:
            print(f"  shamrock {pair[0]}\n  cortiq   {pair[1]}")
    return failed


def check(what, *command):
    result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    print(f"{what}: {'yes' if result.returncode == 0 else 'NO'}")
    if result.returncode:
        print(" ", result.stderr.decode().strip().splitlines()[-1:])
    return result.returncode != 0


def answers(args):
    failed = False
    prompt = "The river runs past the old mill. Count the boats:"
    with tempfile.TemporaryDirectory() as work:
        for folder in ["small", "awkward", "kernel"]:
            hf = ROOT / "fixtures" / folder / "hf"
            mine, other = f"{work}/{folder}.cmf", f"{work}/{folder}.cortiq.cmf"
            subprocess.run([args.shamrock, "convert", hf, mine], check=True, stdout=subprocess.DEVNULL)
            convert = [args.cortiq, "convert", "--model", hf, "--quant", "q4tp", "--output", other]
            subprocess.run(convert, check=True, capture_output=True)
            failed |= check(f"{folder}: cortiq verifies shamrock's file", args.cortiq, "verify", mine)
            failed |= check(f"{folder}: shamrock verifies cortiq's file", args.shamrock, "verify", other)
            for name, file in [("shamrock", mine), ("cortiq", other)]:
                failed |= compare(args, f"{folder}: {name}'s file", file, hf / "tokenizer.json", prompt, 40)
    failed |= check("clover-nano: cortiq verifies it", args.cortiq, "verify", NANO)
    tokenizer = NANO.with_name("clover-nano-hf") / "tokenizer.json"
    for text in [STORY, "How much is 12 plus 30?", "Sort these words: pear, apple, plum"]:
        failed |= compare(args, f"clover-nano: {text}", NANO, tokenizer, question(text), 64)
    return failed


def speed(args, rounds=9):
    """Whole runs, which load the file, read a prompt of 30 tokens and write an answer of 40."""

    def timed(run):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        run()
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    prompt = question(STORY)
    for mode in ["causal", "denoise"]:
        times = {"shamrock": [], "cortiq": []}
        for _ in range(rounds):
            times["shamrock"].append(timed(lambda: ours(args, NANO, mode, prompt, 128)))
            times["cortiq"].append(timed(lambda: theirs(args, NANO, mode, prompt, 128, {})))
        count = len(ours(args, NANO, mode, prompt, 128)["tokens"])
        other = re.search(rb"\[(\d+) tokens", theirs(args, NANO, mode, prompt, 128, {}).stdout)[1].decode()
        for program, tokens in [("shamrock", count), ("cortiq", other)]:
            wall, cpu = (statistics.median(column) for column in zip(*times[program]))
            print(f"{mode} {program}: {tokens} tokens, {wall:.2f} s wall, {cpu:.2f} s of processor time")


if __name__ == "__main__":
    main()
