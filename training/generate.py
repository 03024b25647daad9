"""Batched greedy generation with the training forward: no cache, every pass recomputes the prefix.

That wastes arithmetic, but a GPU does hundreds of conversations at once, and what is measured is
the very function that was trained.  The rules are those of sections 9 and 11 of the architecture
description, without penalties and ramps (clover-nano ships none).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layout import CHUNK, Batch
from model import CloverNano, greedy


@dataclass
class Result:
    tokens: list[int]       # emitted ids, the stop id included
    passes: int             # previews (denoise) or decode steps (causal)
    blocks: int             # denoised blocks, 0 for causal


class Runner:
    def __init__(self, model: CloverNano, device: str, autocast: bool):
        self.model = model
        self.device = device
        self.autocast = autocast
        special = model.cfg.special
        self.mask = special["<|mask|>"]
        self.stops = torch.tensor([special["<|im_end|>"], special["<|endoftext|>"]], device=device)

    @torch.no_grad()
    def denoise(self, prompts: list[list[int]], max_tokens: int, threshold: float) -> list[Result]:
        """LowConfidence generation of all prompts together."""
        tokens, start = self.layout(prompts, max_tokens)
        N = len(prompts)
        rows = torch.arange(N, device=self.device)
        results = [Result([], 0, 1) for _ in prompts]
        block = torch.zeros(N, dtype=torch.long, device=self.device)
        work = torch.full((N, CHUNK), self.mask, device=self.device)
        active = torch.ones(N, dtype=torch.bool, device=self.device)
        while active.any():
            chunk = start // CHUNK + block
            _, noisy = self.hidden(tokens, prompts, start, chunk, work)
            token, confidence = greedy(self.model.lm_head, noisy, self.mask)
            pending = (work == self.mask) & active[:, None]
            work = torch.where(resolved(pending, confidence, threshold), token, work)
            for i in rows[active].tolist():
                results[i].passes += 1
            for i in rows[active & ~(work == self.mask).any(1)].tolist():
                r = results[i]
                new = work[i][: max_tokens - len(r.tokens)].tolist()
                stop = next((j for j, t in enumerate(new) if t in self.stops), None)
                r.tokens += new if stop is None else new[: stop + 1]
                if stop is not None or len(r.tokens) == max_tokens:
                    active[i] = False
                    continue
                at = int(chunk[i]) * CHUNK
                tokens[i, at: at + CHUNK] = work[i]
                work[i] = self.mask
                block[i] += 1
                r.blocks += 1
        return results

    @torch.no_grad()
    def causal(self, prompts: list[list[int]], max_tokens: int) -> list[Result]:
        """Ordinary greedy decoding of all prompts together."""
        tokens, start = self.layout(prompts, max_tokens)
        N = len(prompts)
        rows = torch.arange(N, device=self.device)
        active = torch.ones(N, dtype=torch.bool, device=self.device)
        out = torch.zeros(N, max_tokens, dtype=torch.long, device=self.device)
        length = torch.zeros(N, dtype=torch.long, device=self.device)
        for step in range(max_tokens):
            clean, _ = self.hidden(tokens, prompts, start, None, None)
            token, _ = greedy(self.model.lm_head, clean[rows, start + step - 1], self.mask)
            out[active, step] = token[active]
            tokens[rows, start + step] = torch.where(active, token, tokens[rows, start + step])
            length += active
            active &= ~torch.isin(token, self.stops)
            if not active.any():
                break
        return [Result(o[:n].tolist(), int(n), 0) for o, n in zip(out, length)]

    def layout(self, prompts: list[list[int]], max_tokens: int) -> tuple[Tensor, Tensor]:
        """Left-padded prompts with room for the answers; the column where each answer starts."""
        start = [-(-len(p) // CHUNK) * CHUNK for p in prompts]
        width = max(start) + -(-max_tokens // CHUNK) * CHUNK
        tokens = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, p in enumerate(prompts):
            tokens[i, start[i] - len(p): start[i]] = torch.tensor(p)
        return tokens.to(self.device), torch.tensor(start, device=self.device)

    def hidden(self, tokens: Tensor, prompts, start: Tensor, chunk, work):
        """One forward: rows of the clean stream and of one noisy block per conversation."""
        N, width = tokens.shape
        dev = self.device
        first = start - torch.tensor([len(p) for p in prompts], device=dev)
        column = torch.arange(width, device=dev)
        position = (column - first[:, None]).clamp_min(0)
        m = 0 if chunk is None else 1
        empty = torch.zeros(N, m, CHUNK, device=dev)
        batch = Batch(
            tokens=tokens, position=position, live=column >= first[:, None],
            segment=torch.zeros(N, width // CHUNK, dtype=torch.long, device=dev),
            block_chunk=chunk[:, None] if m else empty[..., 0].long(),
            noisy=work[:, None] if m else empty.long(),
            width=torch.full((N, m), CHUNK, device=dev),
            causal_weight=empty, noisy_weight=empty)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocast):
            clean, noisy, _ = self.model(batch)
        return clean, noisy[:, 0] if m else None


def resolved(pending: Tensor, confidence: Tensor, threshold: Tensor | float) -> Tensor:
    """The pending rows [..., 32] that one pass fixes: those above the threshold, or else the best."""
    confidence = torch.where(pending, confidence, -1.0)
    fixed = confidence > threshold
    best = torch.zeros_like(fixed).scatter(-1, confidence.argmax(-1, keepdim=True), True)
    return torch.where(fixed.any(-1, keepdim=True), fixed, best) & pending
