"""Train clover-nano.

    python train.py --minutes 10 --out FOLDER [--resume FOLDER]

One CUDA device and a dozen CPU cores.  The schedule runs on wall-clock time: warm-up, constant
rate, then a linear decay to zero over the last part; expert weights pass through the q4tp grid
(straight through) during the last `--quantise` share.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import model as model_module
from checkpoint import config_for, from_format, to_format
from evaluate import evaluate, load_items, table
from model import CloverNano, losses
from optim import optimisers
from packing import Loader, Shape

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


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--minutes", type=float, required=True, help="training time, start-up excluded")
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--tokenizer", type=Path, default=Path("../models/clover-nano-hf"))
    ap.add_argument("--resume", type=Path)
    ap.add_argument("--items", type=Path, default=Path("../models/clover-nano.eval.jsonl"))
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rows", type=int, default=160)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.4, help="share of the time spent decaying")
    ap.add_argument("--quantise", type=float, default=0.15, help="share of the time with q4tp experts")
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--denoise-weight", type=float, default=1.0)
    ap.add_argument("--balance-weight", type=float, default=0.01)
    ap.add_argument("--no-coreset", action="store_true", help="ablation: train without the coreset")
    ap.add_argument("--dense-experts", action="store_true")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 6))
    ap.add_argument("--log-every", type=int, default=100)
    ap.add_argument("--save-every", type=float, default=120.0, help="seconds")
    ap.add_argument("--max-steps", type=int, default=10 ** 9)
    ap.add_argument("--thresholds", type=float, nargs="*", default=[0.7, 0.9, 0.95])
    a = ap.parse_args()

    began = time.time()
    loader = Loader(str(a.tokenizer / "tokenizer.json"), a.seed, Shape(rows=a.rows), a.workers)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    tok = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    model = CloverNano(config_for(tok, coreset=not a.no_coreset)).cuda()
    if a.resume:
        tensors = {}
        for part in sorted(a.resume.glob("*.safetensors")):
            tensors.update(load_file(part))
        from_format(model, tensors)
    for layer in model.layers:
        layer.mlp.grouped = not a.dense_experts
        if not a.no_compile:
            # Not `layer.compile()`: compiled as one graph, torch 2.11 gives gradients thousands of
            # times too large, while each part alone agrees with eager mode.
            layer.mixer.compile(dynamic=False)
            layer.mlp.compile(dynamic=False)
    if not a.no_compile:
        model_module.weighted_loss = torch.compile(model_module.weighted_loss, dynamic=False)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    opts = optimisers(model, a.muon_lr, a.adam_lr)
    base = [[g["lr"] for g in o.param_groups] for o in opts]

    batches = iter(loader)
    upcoming = next(batches).pin().to("cuda")
    start, last_log, last_save = None, time.time(), time.time()
    totals = torch.zeros(4, device="cuda")
    step = first = 0
    quantised = False
    while step < a.max_steps:
        if step < 3:                                      # compile every variant that will be used
            for layer in model.layers:
                layer.mlp.quantise = a.quantise >= 1 or (step == 0 and a.quantise > 0)
        if step == 3:                                     # compilation is not training time
            torch.cuda.synchronize()
            start, last_log = time.time(), time.time()
            print(f"compiled, {start - began:.0f} s after the start", flush=True)
        progress = (time.time() - start) / (60 * a.minutes) if start else 0.0
        if progress >= 1.0:
            break
        if not quantised and progress >= 1.0 - a.quantise:
            quantised = True
            print(f"step {step}: experts on the q4tp grid", flush=True)
            for layer in model.layers:
                layer.mlp.quantise = True
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * rate(progress, step, a.decay, a.warmup)
        batch = upcoming
        with torch.autocast("cuda", torch.bfloat16):
            causal, denoise, balance = losses(model, batch)
            loss = causal + a.denoise_weight * denoise + a.balance_weight * balance
        loss.backward()
        upcoming = next(batches).pin().to("cuda")         # made while the device works
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad()
        totals += torch.stack([causal.detach(), denoise.detach(), balance.detach(), norm])
        step += 1
        if step % a.log_every == 0:
            mean = (totals / (step - first)).tolist()
            now = time.time()
            print(f"step {step} causal {mean[0]:.4f} denoise {mean[1]:.4f} balance {mean[2]:.3f} "
                  f"norm {mean[3]:.2f} {1000 * (now - last_log) / (step - first):.1f} ms "
                  f"at {progress:.2f}", flush=True)
            totals.zero_()
            first, last_log = step, now
        if time.time() - last_save > a.save_every:
            save(model, a.out, a.tokenizer)
            last_save = time.time()
    torch.cuda.synchronize()
    print(f"trained {step} steps in {(time.time() - (start or began)) / 60:.2f} min, "
          f"peak {torch.cuda.max_memory_allocated() / 2 ** 30:.1f} GiB", flush=True)
    loader.close()
    save(model, a.out, a.tokenizer)
    if a.items and a.thresholds:
        score_final(a, tok)


def score_final(a, tok: Tokenizer) -> None:
    """Evaluate what was saved, uncompiled."""
    from evaluate import load_model

    began = time.time()
    model, _ = load_model(a.out, "cuda")
    scores = evaluate(model, tok, load_items(a.items), "cuda", True, a.thresholds)
    print(table(scores), flush=True)
    for s in scores[:2]:
        for name, text in s.wrong[:60]:
            print(s.mode, name, repr(text))
    print(f"evaluated in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
