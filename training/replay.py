"""On-policy masks: the blocks of a batch after one pass of generation by the model being trained."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from generate import resolved
from layout import CHUNK, Batch, take_chunks
from model import greedy

THRESHOLDS = (0.7, 0.98)        # each block draws its own, around the default of generation


@torch.no_grad()
def advance(batch: Batch, noisy: Tensor, head: Tensor, mask: int) -> Batch:
    """The batch with every block one pass further: rows that generation would fix are shown.

    `noisy` [R, m, 32, H] are the final rows of the model on `batch`, `head` [V, H] its output
    matrix.  Only right choices are shown, since behind a wrong one there is nothing to learn; wrong
    ones stay hidden.  A finished block starts again, fully masked (a draft keeps its row 0).
    """
    row = torch.arange(CHUNK, device=noisy.device)
    target = take_chunks(batch.tokens.unflatten(1, (-1, CHUNK)), batch.block_chunk)
    width = batch.width[..., None]
    used = row < width
    pending = (batch.noisy == mask) & used
    token, confidence = greedy(head, noisy, mask)
    low, high = THRESHOLDS
    threshold = low + (high - low) * torch.rand(width.shape, device=noisy.device)
    pending &= ~(resolved(pending, confidence, threshold) & (token == target))
    start = used & ((row > 0) | (width == CHUNK))
    pending = torch.where(pending.any(-1, keepdim=True), pending, start)
    occupied = batch.noisy_weight.any(-1, keepdim=True)
    return dataclasses.replace(batch, noisy=torch.where(pending | ~used, mask, target),
                               noisy_weight=(pending & occupied).float())
