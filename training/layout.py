"""The tensor layout that one training step works on.

A row holds `n` clean chunks of 32 tokens followed by `m` noisy blocks of 32 tokens.

* A sample takes consecutive clean chunks: its prompt, padded on the LEFT to a whole number of
  chunks, then its answer, filled on the right with `<|endoftext|>`.  So every answer block starts
  at a chunk boundary and the recurrent state there falls out of the chunked delta rule.
* A noisy block is a partly masked copy of one answer chunk.  It is previewed over the clean
  prefix of its own sample.

Left padding must be inert: its raw convolution inputs and write strengths are zeroed, its keys
are invisible, and positions count from the first real token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 32


@dataclass
class Batch:
    """R rows, n clean chunks and m noisy blocks per row, T = 32 (n + m) positions."""

    tokens: Tensor          # [R, n*32] int64  clean ids, padding is any id
    position: Tensor        # [R, n*32] int64  position inside the sample, 0 on padding
    live: Tensor            # [R, n*32] bool   false on left padding and unused chunks
    segment: Tensor         # [R, n]    int64  sample number of a chunk within its row
    block_chunk: Tensor     # [R, m]    int64  the clean chunk that a noisy block copies
    noisy: Tensor           # [R, m, 32] int64 noisy ids
    width: Tensor           # [R, m]    int64  rows in use; a preview of `width` rows
    causal_weight: Tensor   # [R, m, 32] f32   loss weight of predicting row r from row r-1
    noisy_weight: Tensor    # [R, m, 32] f32   loss weight of predicting row r at row r

    def pin(self) -> "Batch":
        """Page-locked copies, so that `to` need not wait for the device."""
        return Batch(**{k: v.pin_memory() for k, v in vars(self).items()})

    def to(self, device) -> "Batch":
        """Move, with 16-bit ids widened to int64."""
        moved = {k: v.to(device, non_blocking=True) for k, v in vars(self).items()}
        return Batch(**{k: v.long() if v.dtype == torch.int16 else v for k, v in moved.items()})


@dataclass
class View:
    """What the layers need to know about a batch, derived once per step."""

    n: int                  # clean chunks per row
    m: int                  # noisy blocks per row
    live: Tensor            # [R, T] bool
    keep: Tensor            # [R, n] f32, 1 where the previous chunk belongs to the same sample
    block_chunk: Tensor     # [R, m]
    width: Tensor           # [R, m]
    cos: Tensor             # [R, T, 1, rotary/2]
    sin: Tensor
    visible: Tensor         # [R, 1, T, T] additive attention mask, 0 or -inf


def derive(batch: Batch, rotary: int, theta: float, dtype: torch.dtype) -> View:
    """Masks and rotations of a batch.  `dtype` is the one attention computes in."""
    R, n = batch.segment.shape
    m = batch.block_chunk.shape[1]
    dev = batch.tokens.device
    within = torch.arange(CHUNK, device=dev)
    first = batch.segment.new_full((R, 1), -1)
    before = torch.cat([first, batch.segment[:, :-1]], dim=1)
    keep = (batch.segment == before).float()

    block_row = within < batch.width[..., None]                                  # [R, m, 32]
    live = torch.cat([batch.live, block_row.reshape(R, m * CHUNK)], dim=1)

    chunk_position = batch.position.reshape(R, n, CHUNK)
    noisy_position = take_chunks(chunk_position, batch.block_chunk)
    position = torch.cat([batch.position, noisy_position.reshape(R, m * CHUNK)], dim=1)
    i = torch.arange(rotary // 2, device=dev, dtype=torch.float64)
    angle = position[..., None].double() * theta ** (-2.0 * i / rotary)
    out = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = angle.cos().to(out)[:, :, None], angle.sin().to(out)[:, :, None]

    # Each position is (segment, chunk, noisy block or -1); three visibility rules follow.
    clean_chunk = torch.arange(n, device=dev).repeat_interleave(CHUNK).expand(R, -1)
    noisy_chunk = batch.block_chunk.repeat_interleave(CHUNK, dim=1)
    chunk = torch.cat([clean_chunk, noisy_chunk], dim=1)
    segment = torch.gather(batch.segment, 1, chunk)
    block = torch.cat([torch.full_like(clean_chunk, -1),
                       torch.arange(m, device=dev).repeat_interleave(CHUNK).expand(R, -1)], dim=1)
    clean = block < 0
    index = torch.arange(live.shape[1], device=dev)
    q, k = (slice(None), slice(None), None), (slice(None), None, slice(None))
    same = (segment[q] == segment[k]) & live[k]
    causal = clean[q] & clean[k] & (index[:, None] >= index[None, :])
    prefix = ~clean[q] & clean[k] & (chunk[k] < chunk[q])
    own_block = ~clean[q] & (block[q] == block[k])
    itself = index[:, None] == index[None, :]      # padding rows still need one visible key
    see = (same & (causal | prefix | own_block)) | itself
    visible = torch.zeros(see.shape, device=dev, dtype=dtype).masked_fill(~see, float("-inf"))
    return View(n, m, live, keep, batch.block_chunk, batch.width, cos, sin, visible[:, None])


def take_chunks(x: Tensor, index: Tensor) -> Tensor:
    """x [R, n, ...], index [R, m] -> x[r, index[r, j]], shape [R, m, ...]."""
    tail = x.shape[2:]
    where = index.reshape(*index.shape, *([1] * len(tail))).expand(*index.shape, *tail)
    return torch.gather(x, 1, where)
