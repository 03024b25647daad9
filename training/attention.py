"""Gated full attention over the combined clean and noisy rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import NanoConfig
from gdn import rms
from layout import View


class GatedAttention(nn.Module):
    def __init__(self, cfg: NanoConfig):
        super().__init__()
        self.cfg = cfg
        H, hd = cfg.hidden, cfg.head_dim
        self.q_proj = nn.Linear(H, 2 * cfg.heads * hd, bias=False)   # per head: query, then gate
        self.k_proj = nn.Linear(H, cfg.kv_heads * hd, bias=False)
        self.v_proj = nn.Linear(H, cfg.kv_heads * hd, bias=False)
        self.o_proj = nn.Linear(cfg.heads * hd, H, bias=False)
        self.q_norm = nn.Parameter(torch.zeros(hd))
        self.k_norm = nn.Parameter(torch.zeros(hd))

    def forward(self, x: Tensor, view: View) -> Tensor:
        """x [R, T, H] -> [R, T, H]."""
        cfg = self.cfg
        q, gate = self.q_proj(x).unflatten(-1, (cfg.heads, -1)).chunk(2, dim=-1)
        k = self.k_proj(x).unflatten(-1, (cfg.kv_heads, -1))
        v = self.v_proj(x).unflatten(-1, (cfg.kv_heads, -1))
        q = self.rotate(rms(q, cfg.eps) * (1 + self.q_norm), view).to(v.dtype)
        k = self.rotate(rms(k, cfg.eps) * (1 + self.k_norm), view).to(v.dtype)
        per = cfg.heads // cfg.kv_heads
        k, v = (t.repeat_interleave(per, dim=2) for t in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2),
                                             v.transpose(1, 2), attn_mask=view.visible)
        return self.o_proj((out.transpose(1, 2) * torch.sigmoid(gate)).flatten(2))

    def rotate(self, x: Tensor, view: View) -> Tensor:
        """Half-split rotation of the leading `rotary` dimensions of x [R, T, heads, hd]."""
        half = self.cfg.rotary // 2
        a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
        return torch.cat([a * view.cos - b * view.sin, b * view.cos + a * view.sin, rest], dim=-1)
