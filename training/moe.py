"""Mixture of experts with a shared expert, the block coreset and a balance loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import NanoConfig
from layout import CHUNK, View
from quant import fake_q4tp


class MoE(nn.Module):
    """Experts run as grouped matrix products on CUDA and as dense ones elsewhere."""

    def __init__(self, cfg: NanoConfig):
        super().__init__()
        self.cfg = cfg
        H, E, I, S = cfg.hidden, cfg.experts, cfg.expert_width, cfg.shared_width
        self.gate = nn.Linear(H, E, bias=False)
        self.gate_up_proj = nn.Parameter(torch.randn(E, 2 * I, H) * H ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(E, H, I) * I ** -0.5)
        self.shared_gate_proj = nn.Parameter(torch.randn(S, H) * H ** -0.5)
        self.shared_up_proj = nn.Parameter(torch.randn(S, H) * H ** -0.5)
        self.shared_down_proj = nn.Parameter(torch.randn(H, S) * S ** -0.5)
        self.shared_expert_gate = nn.Linear(H, 1, bias=False)
        self.grouped = True         # off: dense products even on CUDA
        self.quantise = False       # on: forward through the q4tp grid, gradient straight through

    def forward(self, x: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """x [R, T, H] -> output [R, T, H] and the balance loss (a scalar, 1 when even)."""
        probs = torch.softmax(self.gate(x).to(torch.promote_types(torch.float32, x.dtype)), -1)
        weight, index = self.route(probs, view)
        names = ("gate_up_proj", "down_proj", "shared_gate_proj", "shared_up_proj",
                 "shared_down_proj")
        tensors = [getattr(self, name) for name in names]
        if self.quantise:
            tensors = [fake_q4tp(t) for t in tensors]
        gate_up, down, s_gate, s_up, s_down = tensors
        if self.grouped and x.is_cuda:
            routed = grouped_experts(x, gate_up, down, weight, index)
        else:
            routed = dense_experts(x, gate_up, down, weight, index)
        shared = F.linear(F.silu(F.linear(x, s_gate)) * F.linear(x, s_up), s_down)
        out = routed + torch.sigmoid(self.shared_expert_gate(x)) * shared
        return out, self.balance(probs, index, view.live)

    def route(self, probs: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """Weights and expert numbers [R, T, k]; noisy rows keep to their block's coreset."""
        cfg = self.cfg
        allowed = probs.detach()
        if cfg.coreset and view.m:
            clean, noisy = allowed.split([view.n * CHUNK, view.m * CHUNK], dim=1)
            used = view.live[:, view.n * CHUNK:].unflatten(1, (view.m, CHUNK))
            keep = coreset(noisy.unflatten(1, (view.m, CHUNK)), used, cfg.top_k, cfg.coreset_top_p)
            keep = keep[:, :, None].expand(-1, -1, CHUNK, -1).flatten(1, 2)
            allowed = torch.cat([clean, noisy.masked_fill(~keep, -1.0)], dim=1)
        score, index = allowed.topk(cfg.top_k, dim=-1)
        # A coreset smaller than k leaves choices outside it: they get no weight.
        chosen = torch.gather(probs, -1, index) * (score >= 0)
        return chosen / chosen.sum(-1, keepdim=True), index

    def balance(self, probs: Tensor, index: Tensor, live: Tensor) -> Tensor:
        """E * sum_e (share of choices of e) * (mean probability of e)."""
        E = self.cfg.experts
        live = live[..., None].to(probs.dtype)
        rows = live.sum()
        hits = (index[..., None] == torch.arange(E, device=index.device)).sum(2)
        share = (hits * live).sum((0, 1)) / (rows * self.cfg.top_k)
        return E * (share * (probs * live).sum((0, 1)) / rows).sum()


def coreset(probs: Tensor, used: Tensor, top_k: int, top_p: float) -> Tensor:
    """probs [R, m, 32, E], used [R, m, 32] -> experts each block may use, bool [R, m, E]."""
    best, index = probs.topk(top_k, dim=-1)
    own = torch.zeros_like(probs).scatter(-1, index, best)
    total = (own * used[..., None]).sum(2)                                       # [R, m, E]
    mass, order = torch.sort(total, dim=-1, descending=True, stable=True)
    before = mass.cumsum(-1) - mass
    kept = before < top_p * mass.sum(-1, keepdim=True).clamp_min(1e-9)
    kept[..., 0] = True
    return torch.zeros_like(kept).scatter(-1, order, kept)


def dense_experts(x: Tensor, gate_up: Tensor, down: Tensor, weight: Tensor,
                  index: Tensor) -> Tensor:
    """Every expert on every row; unchosen ones have weight zero."""
    E = gate_up.shape[0]
    full = torch.zeros(*index.shape[:-1], E, dtype=weight.dtype, device=x.device)
    full = full.scatter(-1, index, weight)
    h = torch.einsum("rth,eih->rtei", x, gate_up.to(x.dtype))
    gate, up = h.chunk(2, dim=-1)
    h = F.silu(gate) * up * full[..., None].to(x.dtype)
    return torch.einsum("rtei,ehi->rth", h, down.to(h.dtype))


def grouped_experts(x: Tensor, gate_up: Tensor, down: Tensor, weight: Tensor,
                    index: Tensor) -> Tensor:
    """Rows sorted by expert, one grouped product per matrix, in bfloat16."""
    E, k = gate_up.shape[0], index.shape[-1]
    flat = index.reshape(-1)
    order = torch.argsort(flat, stable=True)
    place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
    hits = (flat[:, None] == torch.arange(E, device=x.device)).sum(0)
    ends = hits.cumsum(0).to(torch.int32)
    rows = Spread.apply(x.reshape(-1, x.shape[-1]).bfloat16(), order, place, k)
    h = torch._grouped_mm(rows, gate_up.bfloat16().transpose(1, 2), offs=ends)
    gate, up = h.chunk(2, dim=-1)
    y = torch._grouped_mm((F.silu(gate) * up).contiguous(), down.bfloat16().transpose(1, 2),
                          offs=ends)
    y = Permute.apply(y, place, order).view(*index.shape, -1)
    return (y * weight[..., None].to(y.dtype)).sum(-2)


class Spread(torch.autograd.Function):
    """Copy each row to its k sorted places.  The gradient gathers, where autograd would scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, place: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (place,) = ctx.saved_tensors
        return grad[place].view(-1, ctx.k, grad.shape[-1]).sum(1), None, None, None


class Permute(torch.autograd.Function):
    """x[index], with the inverse permutation known."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x[index]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (inverse,) = ctx.saved_tensors
        return grad[inverse], None, None
