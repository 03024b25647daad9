"""Is a row that may be a word or fill judged rightly?  First previews of training-side samples.

    python calibration.py FOLDER [--samples 36]

Every answer that fits into one block is previewed fully masked.  For each range of the probability
given to fill, prints how often the row was fill.  Leaning towards words makes answers too long.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor
import torch.nn.functional as F

import data.skills  # noqa: F401  registers the skills
from data.sample import draw
from evaluate import load_model
from generate import Runner
from layout import CHUNK
from tokenizer import render, response

SKILLS = ("letter case", "spelling", "invented words", "capitals", "count letters", "small talk",
          "think: count letter", "weekdays")         # where the length of an answer is uncertain
EDGES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
LONGEST_PROMPT = 3 * CHUNK


@torch.no_grad()
def first_previews(folder: Path, samples: int, device: str) -> tuple[Tensor, Tensor]:
    """Probability of fill [N, 32] and whether the row is fill."""
    model, tok = load_model(folder, device)
    fill, stop = (model.cfg.special[t] for t in ("<|endoftext|>", "<|im_end|>"))
    rng = random.Random(5)
    prompts, answers = [], []
    for name in SKILLS:
        for s in (draw(name, rng, want_held_out=False) for _ in range(samples)):
            prompt = tok.encode(render(s.messages, s.think is not None)).ids
            answer = tok.encode(response(s.answer, s.think)).ids + [stop]
            if len(prompt) <= LONGEST_PROMPT and len(answer) <= CHUNK:
                prompts.append(prompt)
                answers.append(answer + [fill] * (CHUNK - len(answer)))
    runner = Runner(model.eval(), device, autocast=False)
    tokens, start = runner.layout(prompts, CHUNK)
    work = torch.full((len(prompts), CHUNK), runner.mask, device=device)
    _, noisy = runner.hidden(tokens, prompts, start, start // CHUNK, work)
    logits = F.linear(noisy, model.lm_head)
    logits[..., runner.mask] = float("-inf")
    return logits.softmax(-1)[..., fill].cpu(), torch.tensor(answers) == fill


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("checkpoint", type=Path)
    ap.add_argument("--samples", type=int, default=36, help="of each skill")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    probability, is_fill = first_previews(a.checkpoint, a.samples, a.device)
    print("| p(fill) | rows | mean p | were fill |\n|---|---|---|---|")
    for low, high in zip(EDGES, EDGES[1:]):
        here = (probability > low) & (probability <= high)
        if here.any():
            print(f"| {low}–{high} | {here.sum()} | {probability[here].mean():.2f} | "
                  f"{is_fill[here].float().mean():.2f} |")


if __name__ == "__main__":
    main()
