"""Straight-through q4tp rounding for the last part of training.

The grid is the one the CMF encoder would choose (per-row ladder of 32 scales, one scale and 32
signed nibbles per group), computed for all groups at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
SMALLEST = 2.0 ** -14       # the encoder's floor for a group scale


@torch.no_grad()
def q4tp_grid(w: Tensor) -> Tensor:
    """w [..., cols] float32 -> the values a q4tp file would hold for it."""
    shape = w.shape
    g = w.float().reshape(-1, shape[-1] // GROUP, GROUP)                        # [rows, G, 32]
    peak = g.abs().amax(-1)
    level = (peak / 7).half().float().clamp_min(SMALLEST).log2()
    dead = peak == 0
    low = level.masked_fill(dead, float("inf")).amin(-1, keepdim=True)
    low = torch.where(low.isinf(), level[:, :1], low).half().float()
    high = torch.where(dead, low, level).amax(-1, keepdim=True)
    half = ((high - low).clamp_min(0) / 31).half()
    # Rounding may leave the top rung just below the peak: then the next larger half reaches it.
    above = (half.view(torch.int16) + 1).view(torch.half)
    step = torch.where(low + 31 * half.float() < high, above, half).float()
    nominal = torch.where(step > 0, ((level - low) / step).round().clamp(0, 31), 0)
    best = torch.full_like(peak, float("inf"))
    value = torch.zeros_like(g)
    for shift in (-2, -1, 0, 1):
        code = (nominal + shift).clamp(0, 31)
        scale = (low + code * step).exp2()[..., None]
        y = (g / scale).round().clamp(-8, 7) * scale
        error = (y - g).square().sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        value = torch.where(better[..., None], y, value)
    return value.reshape(shape)


def fake_q4tp(w: Tensor) -> Tensor:
    """Quantised value, identity gradient."""
    return w + (q4tp_grid(w) - w).detach()
