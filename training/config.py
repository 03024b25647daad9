"""Geometry of clover-nano and its Hugging Face `config.json` form.

The sizes satisfy the limits of every Shamrock backend: dk = dv = 64, head width 128 with 64
rotary dimensions, every matrix axis a multiple of 32.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NanoConfig:
    """Field names follow section 1 of the architecture description, not `config.json`."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    full_every: int = 4          # every 4th layer is full attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rotary: int = 64
    theta: float = 10_000.0
    eps: float = 1e-6
    conv_kernel: int = 4
    lin_k_heads: int = 4
    lin_v_heads: int = 8
    lin_k_dim: int = 64
    lin_v_dim: int = 64
    experts: int = 32
    top_k: int = 4
    expert_width: int = 64
    shared_width: int = 64
    block: int = 32
    coreset: bool = True
    coreset_top_p: float = 0.9
    threshold: float = 0.9
    max_position: int = 4096
    special: dict = field(default_factory=dict)   # token text -> id, filled from the tokenizer

    @property
    def kinds(self) -> list[str]:
        return ["full_attention" if (i + 1) % self.full_every == 0 else "linear_attention"
                for i in range(self.layers)]

    @property
    def conv_channels(self) -> int:
        return 2 * self.lin_k_heads * self.lin_k_dim + self.lin_v_heads * self.lin_v_dim

    def to_hf(self) -> dict:
        """The `config.json` of the exported checkpoint."""
        return {
            "architectures": ["CloverMoeForCausalLM"],
            "model_type": "clover_moe",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "layer_types": self.kinds,
            "full_attention_interval": self.full_every,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attn_output_gate": True,
            "attention_bias": False,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.max_position,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta,
                                "partial_rotary_factor": self.rotary / self.head_dim},
            "linear_conv_kernel_dim": self.conv_kernel,
            "linear_key_head_dim": self.lin_k_dim,
            "linear_value_head_dim": self.lin_v_dim,
            "linear_num_key_heads": self.lin_k_heads,
            "linear_num_value_heads": self.lin_v_heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.expert_width,
            "shared_expert_intermediate_size": self.shared_width,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eos_token_id": self.special["<|im_end|>"],
            "pad_token_id": self.special["<|endoftext|>"],
            "block_size": self.block,
            "mask_token_id": self.special["<|mask|>"],
            "denoising_config": {"algorithm": "low_confidence", "threshold": self.threshold},
            "moe_block_coreset_enabled": self.coreset,
            "moe_block_coreset_top_p": self.coreset_top_p,
        }

    def generation(self) -> dict:
        """The `generation_config.json` of the exported checkpoint."""
        return {
            "eos_token_id": [self.special["<|im_end|>"], self.special["<|endoftext|>"]],
            "pad_token_id": self.special["<|endoftext|>"],
            "do_sample": False,
            "dllm_think_end_token_id": self.special["</think>"],
        }
