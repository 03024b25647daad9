"""Gated DeltaNet: the chunked causal recurrence and the block preview operator.

Shapes: R rows, n chunks (or m blocks) of 32 positions, h value heads, widths dk and dv.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import NanoConfig
from layout import CHUNK, View, take_chunks


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + a)^-1 for strictly lower triangular `a` [..., 32, 32].

    Merges inverted diagonal blocks of 1, 2, 4, 8 and 16 rows.  Unlike a product of powers of `a`,
    no intermediate outgrows the result, so float32 is enough even when all keys are alike.
    """
    with torch.no_grad():
        i = torch.arange(CHUNK, device=a.device)
        inv = torch.eye(CHUNK, device=a.device, dtype=a.dtype)
        size = 1
        while size < CHUNK:
            pair = (i // (2 * size))[:, None] == (i // (2 * size))[None, :]
            off = pair & ((i // size)[:, None] > (i // size)[None, :])
            inv = inv - inv @ (a * off) @ inv
            size *= 2
    # Zero in value; its derivative is that of the inverse: -inv da inv.
    return inv - inv @ (a - a.detach()) @ inv


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
                       keep: Tensor) -> tuple[Tensor, Tensor]:
    """Causal gated delta rule over chunks.

    q, k [R, n, h, 32, dk] (q already scaled), v [R, n, h, 32, dv], log decay g and write strength
    beta [R, n, h, 32], keep [R, n]: 0 where a chunk starts a new sample.
    Returns outputs [R, n, h, 32, dv] and the state at each chunk's start [R, n, h, dk, dv].
    """
    low = torch.promote_types(torch.float32, g.dtype)
    total = g.to(low).cumsum(-1)                                    # log decay up to a row
    i = torch.arange(CHUNK, device=g.device)
    causal = i[:, None] >= i[None, :]
    ratio = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    strict = (i[:, None] > i[None, :])
    a = (k @ kt).to(low) * ratio * beta[..., None] * strict
    solve = unit_lower_inverse(a)
    u = solve @ (beta[..., None] * v)                               # writes if the state were zero
    w = solve @ (beta * total.exp())[..., None].mul(k)              # how the state reduces them
    end = total[..., -1:]
    k_end = (k * (end - total).exp()[..., None]).transpose(-1, -2)
    with torch.autocast(q.device.type, enabled=False):
        add = k_end.to(low) @ u.to(low)                             # [R, n, h, dk, dv]
        mix = k_end.to(low) @ w.to(low)                             # [R, n, h, dk, dk]
        decay = end.exp()[..., None]
        state = torch.zeros_like(add[:, 0])
        starts = []
        for c in range(add.shape[1]):
            state = state * keep[:, c, None, None, None].to(low)
            starts.append(state)
            state = decay[:, c] * state + add[:, c] - mix[:, c] @ state
        start = torch.stack(starts, dim=1)
    u = u - w @ start
    out = (total.exp()[..., None] * q) @ start + ((q @ kt) * ratio) @ u
    return out, start


def preview_operator(q: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor, scale: Tensor,
                     bias: Tensor, slope: Tensor, width: Tensor) -> Tensor:
    """Block softmax with one history slot.

    q, k [R, m, h, 32, dk] (unit vectors), v [R, m, h, 32, dv], g [R, m, h, 32], state at the
    block's start [R, m, h, dk, dv], per-head scale/bias/slope [h], width [R, m].
    Rows at or after `width` are invisible.  Returns [R, m, h, 32, dv].
    """
    dk = q.shape[-1]
    sims = (q @ k.transpose(-1, -2)) * scale[:, None, None]
    used = torch.arange(CHUNK, device=q.device) < width[..., None]              # [R, m, 32]
    sims = sims.masked_fill(~used[:, :, None, None, :], float("-inf"))
    history = bias + slope * torch.log(width.to(bias.dtype)[..., None] / 32.0)  # [R, m, h]
    history = history[..., None, None].expand(*sims.shape[:-1], 1)
    p = torch.softmax(torch.cat([sims.to(history.dtype), history], dim=-1), dim=-1)
    read = (q / math.sqrt(dk)) @ start.to(q.dtype)
    return p[..., :CHUNK].to(v.dtype) @ v + read * (p[..., CHUNK:] * g.exp()[..., None])


class GatedDeltaNet(nn.Module):
    """One linear-attention mixer with both operators; parameter names are those of the format."""

    def __init__(self, cfg: NanoConfig):
        super().__init__()
        self.cfg = cfg
        H, C, hv = cfg.hidden, cfg.conv_channels, cfg.lin_v_heads
        inner = hv * cfg.lin_v_dim
        self.in_proj_qkv = nn.Linear(H, C, bias=False)
        self.in_proj_z = nn.Linear(H, inner, bias=False)
        self.in_proj_a = nn.Linear(H, hv, bias=False)
        self.in_proj_b = nn.Linear(H, hv, bias=False)
        self.out_proj = nn.Linear(inner, H, bias=False)
        self.conv1d = nn.Parameter(0.2 * torch.randn(C, cfg.conv_kernel))
        self.conv_right_weight = nn.Parameter(0.2 * torch.randn(C, cfg.conv_kernel - 1))
        self.A_log = nn.Parameter(torch.log(torch.empty(hv).uniform_(0.5, 4.0)))
        step = torch.exp(torch.empty(hv).uniform_(math.log(0.005), math.log(0.1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))   # softplus^-1(step)
        self.norm = nn.Parameter(torch.ones(cfg.lin_v_dim))
        self.bd_softmax_logit_scale = nn.Parameter(torch.linspace(3.0, 8.0, hv))
        self.bd_softmax_history_bias = nn.Parameter(torch.linspace(2.0, 5.0, hv))
        self.bd_softmax_history_c = nn.Parameter(torch.zeros(hv))
        with torch.no_grad():
            self.conv1d[:, -1] += 0.6

    def forward(self, x: Tensor, view: View) -> Tensor:
        """x [R, T, H] -> [R, T, H]."""
        cfg = self.cfg
        R, n, m = x.shape[0], view.n, view.m
        K, C = cfg.conv_kernel, cfg.conv_channels
        live = view.live[..., None]
        raw = (self.in_proj_qkv(x) * live).reshape(R, n + m, CHUNK, C)
        clean, noisy = raw[:, :n], raw[:, n:]
        tails = torch.cat([clean.new_zeros(R, 1, K - 1, C), clean[:, :-1, 1 - K:]], dim=1)
        ring = tails * view.keep[:, :, None, None].to(raw.dtype)
        mixed = left_conv(torch.cat([ring, clean], dim=2), self.conv1d)
        if m:
            tape = torch.cat([take_chunks(ring, view.block_chunk), noisy], dim=2)
            seen = left_conv(tape, self.conv1d) + right_conv(noisy, self.conv_right_weight)
            mixed = torch.cat([mixed, seen], dim=1)
        q, k, v = self.split(F.silu(mixed))                           # [R, n+m, h, 32, d]

        decay = F.softplus(self.in_proj_a(x).to(self.dt_bias.dtype) + self.dt_bias)
        g = (-self.A_log.exp() * decay).reshape(R, n + m, CHUNK, -1).transpose(2, 3)
        beta = torch.sigmoid(self.in_proj_b(x)) * live
        beta = beta.reshape(R, n + m, CHUNK, -1).transpose(2, 3)[:, :n]
        out, start = chunked_delta_rule(q[:, :n] / math.sqrt(cfg.lin_k_dim), k[:, :n], v[:, :n],
                                        g[:, :n], beta, view.keep)
        if m:
            block = preview_operator(
                q[:, n:], k[:, n:], v[:, n:], g[:, n:], take_chunks(start, view.block_chunk),
                self.bd_softmax_logit_scale, self.bd_softmax_history_bias,
                self.bd_softmax_history_c, view.width)
            out = torch.cat([out, block.to(out.dtype)], dim=1)
        out = out.transpose(2, 3).reshape(R, x.shape[1], cfg.lin_v_heads, cfg.lin_v_dim)
        z = self.in_proj_z(x).reshape(out.shape)
        out = rms(out, cfg.eps) * self.norm * F.silu(z)
        return self.out_proj(out.flatten(2))

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, c, 32, C] -> unit q, k and v, each [R, c, h, 32, d]."""
        cfg = self.cfg
        per = cfg.lin_v_heads // cfg.lin_k_heads
        width = cfg.lin_k_heads * cfg.lin_k_dim
        q, k, v = mixed.split([width, width, mixed.shape[-1] - 2 * width], dim=-1)

        def heads(x: Tensor, count: int) -> Tensor:
            return x.unflatten(-1, (count, -1)).transpose(2, 3)

        q, k = heads(q, cfg.lin_k_heads), heads(k, cfg.lin_k_heads)
        q, k = (l2_unit(t).to(mixed.dtype).repeat_interleave(per, dim=2) for t in (q, k))
        return q, k, heads(v, cfg.lin_v_heads)


def left_conv(tape: Tensor, weight: Tensor) -> Tensor:
    """tape [R, c, K-1+32, C], weight [C, K] -> [R, c, 32, C]; tap K-1 is the row itself."""
    return sum(tape[:, :, j: j + CHUNK] * weight[:, j].to(tape.dtype)
               for j in range(weight.shape[1]))


def right_conv(noisy: Tensor, weight: Tensor) -> Tensor:
    """Taps on the rows after each row: noisy [R, m, 32, C], weight [C, K-1]."""
    return sum(F.pad(noisy[:, :, d:], (0, 0, 0, d)) * weight[:, d - 1].to(noisy.dtype)
               for d in range(1, weight.shape[1] + 1))


def rms(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.promote_types(torch.float32, x.dtype))
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def l2_unit(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6); the constant is part of the format."""
    x = x.to(torch.promote_types(torch.float32, x.dtype))
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)
