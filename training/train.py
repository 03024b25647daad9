"""Train clover-nano.

    python train.py --minutes 10 --out FOLDER [--resume FOLDER]

One CUDA device and a dozen CPU cores.  The schedule runs on wall-clock time: warm-up, constant
rate, then a linear decay to zero over the last part; expert weights pass through the q4tp grid
(straight through) during the last `--quantise` share.  With `--visits 2` every batch is trained on
twice, the second time with the masks that the model's own first pass leaves.  A checkpoint is
written every two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import model as model_module
from checkpoint import config_for, load_weights, to_format
from evaluate import evaluate, load_items, load_model, table
from layout import Batch
from model import CloverNano, losses
from optim import optimisers
from packing import Loader, Shape
from replay import advance

SHARD_BYTES = 15 << 20


def save(model: CloverNano, folder: Path, source: Path) -> None:
    """bfloat16 checkpoint in Hugging Face layout, in parts small enough to carry around."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if folder != source:
            shutil.copy(source / name, folder / name)
    for name, value in (("config.json", model.cfg.to_hf()),
                        ("generation_config.json", model.cfg.generation())):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    shards, size = [{}], 0
    for name, tensor in to_format(model).items():
        tensor = tensor.bfloat16().contiguous().cpu()
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    for i, shard in enumerate(shards, 1):
        save_file(shard, folder / f"model-{i:05}-of-{len(shards):05}.safetensors")


def rate(progress: float, step: int, decay: float, warmup: int) -> float:
    """Learning-rate factor: linear warm-up over steps, then constant, then linear to zero."""
    return min(1.0, (step + 1) / warmup) * min(1.0, max(0.0, (1.0 - progress) / decay))


def arguments() -> argparse.Namespace:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    length = ap.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float, help="training time, start-up excluded")
    length.add_argument("--until", type=float, metavar="SECONDS",
                        help="train until this Unix time, whatever start-up takes")
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--tokenizer", type=Path, default=Path("../models/clover-nano-hf"))
    ap.add_argument("--resume", type=Path, help="start from the weights of this checkpoint")
    ap.add_argument("--items", type=Path, default=Path("../models/clover-nano.eval.jsonl"))
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rows", type=int, default=192)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.35, help="share of the time spent decaying")
    ap.add_argument("--quantise", type=float, default=0.25,
                    help="share of the time with experts on the q4tp grid, at the end")
    ap.add_argument("--warmup", type=int, default=200, help="steps")
    ap.add_argument("--denoise-weight", type=float, default=4.0)
    ap.add_argument("--visits", type=int, default=1,
                    help="steps on each batch, all but the first with on-policy masks")
    ap.add_argument("--balance-weight", type=float, default=0.01)
    ap.add_argument("--no-coreset", action="store_true", help="ablation: train without the coreset")
    ap.add_argument("--dense-experts", action="store_true")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 6))
    ap.add_argument("--log-every", type=int, default=100, help="steps")
    ap.add_argument("--save-every", type=float, default=120.0, help="seconds")
    ap.add_argument("--max-steps", type=int, default=10 ** 9)
    ap.add_argument("--thresholds", type=float, nargs="*", default=[0.9, 0.98],
                    help="denoising thresholds to score at the end; none: no scoring")
    return ap.parse_args()


def build(a: argparse.Namespace, tok: Tokenizer) -> CloverNano:
    model = CloverNano(config_for(tok, coreset=not a.no_coreset)).to(a.device)
    if a.resume:
        load_weights(model, a.resume)
    for layer in model.layers:
        layer.mlp.grouped = not a.dense_experts
        if not a.no_compile:
            # Not `layer.compile()`: compiled as one graph, torch 2.11 gives gradients thousands of
            # times too large, while each part alone agrees with eager mode.
            layer.mixer.compile(dynamic=False)
            layer.mlp.compile(dynamic=False)
    if not a.no_compile:
        model_module.weighted_loss = torch.compile(model_module.weighted_loss, dynamic=False)
    return model


class Clock:
    """Progress 0..1 of the allotted time.  The first steps compile and do not count."""

    WARM = 3

    def __init__(self, minutes: float | None, until: float | None):
        self.minutes, self.until = minutes, until
        self.start: float | None = None

    def progress(self, step: int) -> float:
        now = time.time()
        if step < self.WARM:
            return 0.0
        if self.start is None:
            self.start = now
            self.until = self.until or now + 60 * self.minutes
            print(f"compiled; {self.until - now:.0f} s to train", flush=True)
        return (now - self.start) / max(self.until - self.start, 1e-3)


class Log:
    """Running means on the device, printed now and then."""

    def __init__(self, device: str, every: int):
        self.totals = torch.zeros(4, device=device)
        self.every = every
        self.count, self.since = 0, time.time()

    def add(self, step: int, progress: float, *values) -> None:
        self.totals += torch.stack([v.detach() for v in values])
        self.count += 1
        if step % self.every:
            return
        causal, denoise, balance, norm = (self.totals / self.count).tolist()
        took = 1000 * (time.time() - self.since) / self.count
        print(f"step {step} causal {causal:.4f} denoise {denoise:.4f} balance {balance:.3f} "
              f"norm {norm:.2f} {took:.1f} ms at {progress:.2f}", flush=True)
        self.totals.zero_()
        self.count, self.since = 0, time.time()


def train(a: argparse.Namespace, model: CloverNano, loader: Loader) -> int:
    """Run the schedule; returns the number of steps."""
    def next_batch() -> Batch:
        batch = next(batches)
        return (batch.pin() if a.device == "cuda" else batch).to(a.device)

    def set_quantise(on: bool) -> None:
        for layer in model.layers:
            layer.mlp.quantise = on

    mask = model.cfg.special["<|mask|>"]
    opts = optimisers(model, a.muon_lr, a.adam_lr)
    base = [[g["lr"] for g in o.param_groups] for o in opts]
    clock, log = Clock(a.minutes, a.until), Log(a.device, a.log_every)
    batches = iter(loader)
    upcoming, last_save, step = next_batch(), time.time(), 0
    while step < a.max_steps and (progress := clock.progress(step)) < 1.0:
        # Step 0 compiles the quantised experts, step 1 the plain ones, so neither waits later.
        first = step == 0 and a.quantise > 0
        set_quantise(first or progress >= 1.0 - a.quantise)
        for o, rates in zip(opts, base):
            for g, lr in zip(o.param_groups, rates):
                g["lr"] = lr * rate(progress, step, a.decay, a.warmup)
        batch = upcoming
        with torch.autocast(a.device, torch.bfloat16, enabled=a.device == "cuda"):
            causal, denoise, balance, noisy = losses(model, batch)
            loss = causal + a.denoise_weight * denoise + a.balance_weight * balance
        loss.backward()
        if (step + 1) % a.visits:
            upcoming = advance(batch, noisy, model.lm_head, mask)
        else:
            upcoming = next_batch()                           # while the device works
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad()
        step += 1
        log.add(step, progress, causal, denoise, balance, norm)
        if time.time() - last_save > a.save_every:
            save(model, a.out, a.tokenizer)
            last_save = time.time()
    return step


def main() -> None:
    a = arguments()
    # Workers are forked before the GPU is touched.
    loader = Loader(str(a.tokenizer / "tokenizer.json"), a.seed, Shape(rows=a.rows), a.workers)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    tok = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    model = build(a, tok)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    began = time.time()
    steps = train(a, model, loader)
    loader.close()
    save(model, a.out, a.tokenizer)
    print(f"{steps} steps in {(time.time() - began) / 60:.2f} min, start-up included", flush=True)
    if a.thresholds:
        saved, _ = load_model(a.out, a.device)
        scores = evaluate(saved, tok, load_items(a.items), a.device, a.device == "cuda", a.thresholds)
        print(table(scores))


if __name__ == "__main__":
    main()
