"""Accuracy and speed of a checkpoint on the held-out tasks.

    python evaluate.py --checkpoint FOLDER --items ../models/clover-nano.eval.jsonl

Prints one row per mode and threshold, then accuracy per skill.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from checkpoint import config_for, load_weights
from generate import Result, Runner
from model import CloverNano
from tokenizer import render


def answer_of(text: str) -> str:
    """What is left of a response after its think block."""
    return text.split("</think>")[-1].strip()


def correct(item: dict, text: str) -> bool:
    got = answer_of(text)
    if item["match"] == "exact":
        return got == item["answer"]
    lower = got.lower()
    return all(w in lower for w in item["words"]) and got.endswith(".")


@dataclass
class Score:
    mode: str
    accuracy: float
    tokens_per_pass: float
    passes_per_block: float
    skills: dict[str, float]
    wrong: list[tuple[str, str]]       # (item id, what was answered)


def score(mode: str, items: list[dict], results: list[Result], tok: Tokenizer) -> Score:
    right, count, wrong = defaultdict(int), defaultdict(int), []
    for item, r in zip(items, results):
        text = tok.decode(r.tokens, skip_special_tokens=True)
        count[item["skill"]] += 1
        if correct(item, text):
            right[item["skill"]] += 1
        else:
            wrong.append((item["id"], text))
    passes = sum(r.passes for r in results)
    blocks = sum(r.blocks for r in results)
    return Score(mode, sum(right.values()) / len(items),
                 sum(len(r.tokens) for r in results) / passes,
                 passes / blocks if blocks else 0.0,
                 {s: right[s] / count[s] for s in count}, wrong)


def evaluate(model: CloverNano, tok: Tokenizer, items: list[dict], device: str, autocast: bool,
             thresholds: list[float], causal: bool = True, max_tokens: int = 128) -> list[Score]:
    prompts = [tok.encode(render(i["messages"], i["thinking"])).ids for i in items]
    runner = Runner(model.eval(), device, autocast)
    out = []
    if causal:
        out.append(score("causal", items, runner.causal(prompts, max_tokens), tok))
    for t in thresholds:
        out.append(score(f"denoise {t}", items, runner.denoise(prompts, max_tokens, t), tok))
    model.train()
    return out


def table(scores: list[Score]) -> str:
    lines = ["| mode | accuracy | tokens per pass | passes per block |", "|---|---|---|---|"]
    lines += [f"| {s.mode} | {100 * s.accuracy:.1f}% | {s.tokens_per_pass:.2f} | "
              f"{s.passes_per_block:.2f} |" for s in scores]
    lines += ["", "| skill | " + " | ".join(s.mode for s in scores) + " |",
              "|---" * (len(scores) + 1) + "|"]
    for skill in sorted(scores[0].skills):
        lines.append(f"| {skill} | " + " | ".join(f"{100 * s.skills[skill]:.0f}%" for s in scores)
                     + " |")
    return "\n".join(lines)


def load_items(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load_model(folder: Path, device: str) -> tuple[CloverNano, Tokenizer]:
    """A checkpoint folder in Hugging Face layout, one or several safetensors files."""
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    model = CloverNano(config_for(tok, coreset=config["moe_block_coreset_enabled"],
                                  coreset_top_p=config["moe_block_coreset_top_p"])).to(device)
    load_weights(model, folder)
    return model, tok


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--checkpoint", type=Path, required=True)
    ap.add_argument("--items", type=Path, required=True)
    ap.add_argument("--thresholds", type=float, nargs="*", default=[0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
    ap.add_argument("--limit", type=int)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--bf16", action="store_true", help="autocast to bfloat16 (CUDA)")
    a = ap.parse_args()
    model, tok = load_model(a.checkpoint, a.device)
    scores = evaluate(model, tok, load_items(a.items)[: a.limit], a.device, a.bf16, a.thresholds)
    print(table(scores))
    for name, text in scores[0].wrong[:20]:
        print(name, repr(text))


if __name__ == "__main__":
    main()
