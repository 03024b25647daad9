"""Accuracy and speed of a CMF file on the held-out tasks, with the float32 oracle on the CPU.

    python evaluate_cmf.py ../models/clover-nano.cmf --modes causal denoise:0.9 draft draft-exact

The oracle is the definition of the model (`reference/clover_reference.py`), so these are the
numbers that any correct engine must give, up to float rounding.  Slow: minutes per mode.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import clover_reference as oracle  # noqa: E402
import cmf  # noqa: E402
from evaluate import load_items, score, table  # noqa: E402
from generate import Result  # noqa: E402
from tokenizer import render  # noqa: E402

MAX_TOKENS = 128
_loaded: dict = {}


def generate(path: str, coreset: bool, mode: str, prompt: list[int]) -> Result:
    """One answer; each process loads the file once."""
    if path not in _loaded:
        torch.set_num_threads(1)
        _loaded[path] = cmf.load(path).model(torch.float32)
    model = _loaded[path]
    model.cfg.coreset_enabled = coreset
    name, _, threshold = mode.partition(":")
    with torch.no_grad():
        if name == "causal":
            g = oracle.generate_causal(model, prompt, MAX_TOKENS)
            return Result(g.tokens, len(g.tokens), 0)
        if name == "denoise":
            controls = model.cfg.controls
            if threshold:
                controls = replace(controls, threshold=float(threshold))
            g = oracle.generate_denoise(model, prompt, MAX_TOKENS, controls)
            return Result(g.tokens, sum(len(b["passes"]) for b in g.trace), len(g.trace))
        # A draft round is one preview and one scored commit: two passes.
        g = oracle.generate_draft(model, prompt, MAX_TOKENS, exact=name == "draft-exact")
        return Result(g.tokens, 2 * len(g.trace), 0)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("file")
    ap.add_argument("--items", type=Path, default=Path("../models/clover-nano.eval.jsonl"))
    ap.add_argument("--modes", nargs="+", default=["causal", "denoise"])
    ap.add_argument("--limit", type=int, help="every n-th item so that about this many remain")
    ap.add_argument("--no-coreset", action="store_true")
    ap.add_argument("--processes", type=int, default=2)
    ap.add_argument("--json", type=Path, help="write the scores here too")
    a = ap.parse_args()
    items = load_items(a.items)
    if a.limit:
        items = items[:: max(1, len(items) // a.limit)]
    tok = Tokenizer.from_str(cmf.load(a.file).section("vocab").decode("utf-8"))
    prompts = [tok.encode(render(i["messages"], i["thinking"])).ids for i in items]
    scores = []
    with multiprocessing.get_context("spawn").Pool(a.processes) as pool:
        for mode in a.modes:
            jobs = [(a.file, not a.no_coreset, mode, p) for p in prompts]
            scores.append(score(mode, items, pool.starmap(generate, jobs, chunksize=4), tok))
            s = scores[-1]
            print(f"{mode}: {100 * s.accuracy:.1f}%, {s.tokens_per_pass:.2f} tokens per pass",
                  flush=True)
            if a.json:
                a.json.write_text(json.dumps([vars(s) for s in scores], indent=1) + "\n")
    print(table(scores))


if __name__ == "__main__":
    main()
