"""Names and shapes of the Hugging Face layout, and files that hold it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from config import NanoConfig
from model import CloverNano

# path inside a layer of `CloverNano` -> path in the format, where they differ
RENAMED = {
    "mlp.gate_up_proj": "mlp.experts.gate_up_proj",
    "mlp.down_proj": "mlp.experts.down_proj",
    "mlp.shared_gate_proj": "mlp.shared_expert.gate_proj.weight",
    "mlp.shared_up_proj": "mlp.shared_expert.up_proj.weight",
    "mlp.shared_down_proj": "mlp.shared_expert.down_proj.weight",
    "mlp.shared_expert_gate.weight": "mlp.shared_expert_gate.weight",
    "mlp.gate.weight": "mlp.gate.weight",
    "input_layernorm": "input_layernorm.weight",
    "post_attention_layernorm": "post_attention_layernorm.weight",
    "mixer.norm": "linear_attn.norm.weight",
    "mixer.conv1d": "linear_attn.conv1d.weight",
    "mixer.q_norm": "self_attn.q_norm.weight",
    "mixer.k_norm": "self_attn.k_norm.weight",
}
TOP = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight",
       "norm": "model.norm.weight"}


def format_name(name: str, kinds: list[str]) -> str:
    """Parameter name of `CloverNano` -> tensor name of the checkpoint format."""
    if name in TOP:
        return TOP[name]
    _, i, rest = name.split(".", 2)
    mixer = "linear_attn" if kinds[int(i)] == "linear_attention" else "self_attn"
    rest = RENAMED.get(rest, rest.replace("mixer", mixer))
    return f"model.layers.{i}.{rest}"


def to_format(model: CloverNano) -> dict[str, Tensor]:
    """All tensors under their format names, float32."""
    out = {}
    for name, value in model.named_parameters():
        value = value.detach()
        if name.endswith("mixer.conv1d"):
            value = value[:, None, :]
        out[format_name(name, model.cfg.kinds)] = value
    return out


def from_format(model: CloverNano, tensors: dict[str, Tensor]) -> None:
    """Load tensors saved by `to_format` in any float type."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(tensors[format_name(name, model.cfg.kinds)].reshape(value.shape))


def load_weights(model: CloverNano, folder: Path) -> None:
    """All safetensors files of a checkpoint folder."""
    tensors: dict[str, Tensor] = {}
    for part in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(part))
    from_format(model, tensors)


def special_ids(tokenizer) -> dict[str, int]:
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<think>", "</think>")
    return {name: tokenizer.token_to_id(name) for name in names}


def config_for(tokenizer, **changes) -> NanoConfig:
    return NanoConfig(vocab=4096, special=special_ids(tokenizer), **changes)
