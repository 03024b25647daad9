"""Checkpoint in Hugging Face layout -> CMF container.

    python export.py CHECKPOINT OUT.cmf [--profile q4tp|f16]

Profile q4tp is the converter's: experts q4tp, other projections and tables q8_2f, the rest small
floats.  Profile f16 keeps every matrix in half precision (for measuring what quantisation costs).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import cmf  # noqa: E402  the container reader and writer live beside the oracle

KINDS = {"linear_attention": "LinearAttention", "full_attention": "FullAttention"}


def split_experts(name: str, t: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Packed expert tensors become one matrix per expert and projection."""
    stem, kind = name.rsplit(".", 1)
    if kind == "gate_up_proj" and stem.endswith("experts"):
        half = t.shape[1] // 2
        return [(f"{stem}.{e}.{part}_proj.weight", w) for e in range(t.shape[0])
                for part, w in (("gate", t[e, :half]), ("up", t[e, half:]))]
    if kind == "down_proj" and stem.endswith("experts"):
        return [(f"{stem}.{e}.down_proj.weight", t[e]) for e in range(t.shape[0])]
    return [(name, t)]


def encoding(name: str, t: torch.Tensor, profile: str) -> str:
    """Which tensor gets what: the table of section 12."""
    if "conv_right_weight" in name or "bd_softmax" in name:
        return "f32"
    small = (".mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "conv1d")
    if t.dim() != 2 or any(part in name for part in small) or profile == "f16":
        return "f16"
    return "q4tp" if ".mlp." in name else "q8_2f"


def header(config: dict, generation: dict, template: str, profile: str) -> dict:
    eos = generation["eos_token_id"]
    rope = config["rope_parameters"]
    return {
        "format": "cmf", "version": 2,
        "arch": {
            "arch_name": "qwen3_5_moe_text",
            "hidden_size": config["hidden_size"],
            "intermediate_size": config["intermediate_size"],
            "num_layers": config["num_hidden_layers"],
            "num_attention_heads": config["num_attention_heads"],
            "num_kv_heads": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
            "vocab_size": config["vocab_size"],
            "layer_types": [KINDS[k] for k in config["layer_types"]],
            "rms_norm_eps": config["rms_norm_eps"],
            "norm_style": "gemma",
            "rope_theta": rope["rope_theta"],
            "tie_word_embeddings": config["tie_word_embeddings"],
            "partial_rotary_factor": rope["partial_rotary_factor"],
            "attention_sink": False,
            "moe": {
                "num_experts": config["num_experts"],
                "top_k": config["num_experts_per_tok"],
                "moe_intermediate_size": config["moe_intermediate_size"],
                "norm_topk_prob": config["norm_topk_prob"],
                "shared_expert_intermediate_size": config["shared_expert_intermediate_size"],
            },
            "block_diffusion": {
                "algorithm": config["denoising_config"]["algorithm"],
                "block_size": config["block_size"],
                "mask_token_id": config["mask_token_id"],
                "threshold": config["denoising_config"]["threshold"],
                "coreset_enabled": config["moe_block_coreset_enabled"],
                "coreset_top_p": config["moe_block_coreset_top_p"],
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
                "length_penalty": 0.0, "length_penalty_start": 8192,
                "length_penalty_window": 8192,
                "think_end_bias": 0.0, "think_end_start": 4096, "think_end_window": 4096,
                "think_end_token_id": generation["dllm_think_end_token_id"],
                "stop_token_ids": sorted(eos),
            },
            "linear_core": {"kind": "gated_delta_net",
                            "num_heads": config["linear_num_value_heads"],
                            "value_head_dim": config["linear_value_head_dim"]},
            "max_position_embeddings": config["max_position_embeddings"],
            **{k: config[k] for k in (
                "linear_conv_kernel_dim", "linear_num_key_heads", "linear_num_value_heads",
                "linear_key_head_dim", "linear_value_head_dim")},
        },
        "quant_type": "Q4_BLOCK" if profile == "q4tp" else "F16",
        "provenance": {"tool": "shamrock training/export.py", "source_model": "clover-nano",
                       "weight_quant": profile},
        "tokenizer_config": {"chat_template": template, "eos_token_ids": eos,
                             "pad_token_id": generation["pad_token_id"]},
    }


def export(checkpoint: Path, out: Path, profile: str) -> int:
    """Write the container; returns its size in bytes."""
    def parsed(name: str) -> dict:
        return json.loads((checkpoint / name).read_text(encoding="utf-8"))

    tensors = []
    for part in sorted(checkpoint.glob("*.safetensors")):
        for packed, value in load_file(part).items():
            for name, t in split_experts(packed, value):
                kind = encoding(name, t, profile)
                array = np.ascontiguousarray(t.float().numpy())
                tensors.append((name, kind, tuple(t.shape), cmf.encode(kind, array)))
    tensors.sort(key=lambda t: t[0])
    template = parsed("tokenizer_config.json")["chat_template"]
    head = header(parsed("config.json"), parsed("generation_config.json"), template, profile)
    cmf.write(str(out), head, tensors, (checkpoint / "tokenizer.json").read_bytes())
    return out.stat().st_size


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("checkpoint", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--profile", choices=("q4tp", "f16"), default="q4tp")
    a = ap.parse_args()
    size = export(a.checkpoint, a.out, a.profile)
    problems = cmf.load(str(a.out)).check()
    print(f"{a.out}: {size} bytes, problems: {problems or 'none'}")


if __name__ == "__main__":
    main()
