"""Muon for matrices, AdamW for everything else, behind one small interface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)      # quintic of Jordan et al. 2024


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate U Vᵀ of each matrix of g [..., rows, cols], in bfloat16 on CUDA."""
    a, b, c = NEWTON_SCHULZ
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is orthogonalised.  Equal shapes are stacked into one product."""

    def __init__(self, params, lr: float, momentum: float = 0.95, decay: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = group["params"]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in params]
            torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
            directions = torch._foreach_lerp(grads, momenta, group["momentum"])
            updates = list(directions)
            shapes: dict[tuple, list[int]] = {}
            for i, p in enumerate(params):
                shapes.setdefault(tuple(p.shape[-2:]), []).append(i)
            for (rows, cols), members in shapes.items():
                stack = [directions[i].reshape(-1, rows, cols) for i in members]
                update = orthogonalise(torch.cat(stack)).float() * max(1.0, rows / cols) ** 0.5
                for i, u in zip(members, update.split([len(s) for s in stack])):
                    updates[i] = u.reshape(params[i].shape)
            torch._foreach_mul_(params, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])


def optimisers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon: projections and experts.  AdamW: embeddings, head, router, convolutions, vectors."""
    matrices, tables, small = [], [], []
    for name, p in model.named_parameters():
        if name in ("embed_tokens", "lm_head"):
            tables.append(p)
        elif p.dim() < 2 or min(p.shape[-2:]) < 32 or "mlp.gate." in name:
            small.append(p)
        else:
            matrices.append(p)
    adam = torch.optim.AdamW([{"params": tables}, {"params": small, "lr": adam_lr * 0.5}],
                             lr=adam_lr, betas=(0.9, 0.97), weight_decay=0.0, fused=True)
    return [Muon(matrices, muon_lr, decay=0.1), adam]
