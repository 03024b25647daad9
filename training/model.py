"""The clover-nano network for training: clean and noisy rows side by side.

`forward` computes, in one pass, what an engine does with two verbs: the clean rows are `commit`,
the noisy blocks are `preview` over the state that the clean rows leave at each block's start.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import GatedAttention
from config import NanoConfig
from gdn import GatedDeltaNet, rms
from layout import CHUNK, Batch, View, derive, take_chunks
from moe import MoE


class Layer(nn.Module):
    def __init__(self, cfg: NanoConfig, kind: str):
        super().__init__()
        self.cfg = cfg
        self.input_layernorm = nn.Parameter(torch.zeros(cfg.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.zeros(cfg.hidden))
        self.mixer = GatedDeltaNet(cfg) if kind == "linear_attention" else GatedAttention(cfg)
        self.mlp = MoE(cfg)

    def forward(self, h: Tensor, view: View) -> tuple[Tensor, Tensor]:
        x = rms(h, self.cfg.eps) * (1 + self.input_layernorm)
        h = h + self.mixer(x, view)
        x = rms(h, self.cfg.eps) * (1 + self.post_attention_layernorm)
        y, balance = self.mlp(x, view)
        return h + y, balance


class CloverNano(nn.Module):
    def __init__(self, cfg: NanoConfig):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Parameter(0.5 * torch.randn(cfg.vocab, cfg.hidden))
        self.lm_head = nn.Parameter(0.02 * torch.randn(cfg.vocab, cfg.hidden))
        self.norm = nn.Parameter(torch.zeros(cfg.hidden))
        self.layers = nn.ModuleList(Layer(cfg, kind) for kind in cfg.kinds)
        # Residual writers start small so that depth does not blow up the stream.
        with torch.no_grad():
            for layer in self.layers:
                out = getattr(layer.mixer, "out_proj", None) or layer.mixer.o_proj
                for w in (out.weight, layer.mlp.down_proj, layer.mlp.shared_down_proj):
                    w.mul_(0.3)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Final normed rows, clean [R, n*32, H] and noisy [R, m, 32, H], and the mean balance loss."""
        cfg = self.cfg
        R, m = batch.block_chunk.shape
        compute = (torch.bfloat16 if torch.is_autocast_enabled(batch.tokens.device.type)
                   else self.embed_tokens.dtype)
        view = derive(batch, cfg.rotary, cfg.theta, compute)
        ids = torch.cat([batch.tokens, batch.noisy.reshape(R, m * CHUNK)], dim=1)
        h = F.embedding(ids, self.embed_tokens)
        balance = h.new_zeros(())
        for layer in self.layers:
            h, extra = layer(h, view)
            balance = balance + extra / cfg.layers
        h = rms(h, cfg.eps) * (1 + self.norm)
        clean, noisy = h.split([batch.tokens.shape[1], m * CHUNK], dim=1)
        return clean, noisy.unflatten(1, (m, CHUNK)), balance


def losses(model: CloverNano, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal, denoising and balance loss of a batch, each a weighted mean, and the final noisy rows
    [R, m, 32, H]."""
    clean, noisy, balance = model(batch)
    R, m = batch.block_chunk.shape
    target = take_chunks(batch.tokens.unflatten(1, (-1, CHUNK)), batch.block_chunk)
    # Block row r is predicted causally by the clean row just before it.
    rows = batch.block_chunk[..., None] * CHUNK - 1 + torch.arange(CHUNK, device=target.device)
    rows = rows.clamp_min(0).reshape(R, m * CHUNK, 1).expand(-1, -1, clean.shape[-1])
    before = torch.gather(clean, 1, rows).reshape(noisy.shape)

    causal = weighted_loss(model.lm_head, before, target, batch.causal_weight)
    denoise = weighted_loss(model.lm_head, noisy, target, batch.noisy_weight)
    return causal, denoise, balance, noisy


def weighted_loss(head: Tensor, h: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(h, head).float().flatten(0, -2)
    loss = F.cross_entropy(logits, target.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum().clamp_min(1.0)


def greedy(head: Tensor, h: Tensor, mask: int) -> tuple[Tensor, Tensor]:
    """Most probable token of each row of h [..., H] and its probability, the mask token forbidden."""
    logits = F.linear(h.to(head.dtype), head)
    logits[..., mask] = float("-inf")
    confidence, token = torch.softmax(logits, -1).max(-1)
    return token, confidence
