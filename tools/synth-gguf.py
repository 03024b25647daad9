#!/usr/bin/env python3
"""Writes a GGUF file with the trunk of the 35B-A3B geometry and made-up weights, for timing llama.cpp beside
shamrock: the same matrices at about the same widths (Q8_0 for dense ones, Q4_0 for experts).

    pip install gguf numpy
    tools/synth-gguf.py OUT.gguf [LAYERS]        4 layers are three Gated DeltaNet and one attention
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

ARCH = "qwen35moe"
VOCAB, HIDDEN, INTERVAL = 248_320, 2048, 4
HEADS, KV_HEADS, HEAD_DIM, ROTARY = 16, 2, 256, 64
KEY_HEADS, VALUE_HEADS, GDN_DIM, CONV = 16, 32, 128, 4
EXPERTS, TOP_K, WIDTH = 256, 8, 512
VALUES = VALUE_HEADS * GDN_DIM
CHANNELS = 2 * KEY_HEADS * GDN_DIM + VALUES

# Bytes of a block of 32 weights: a half-precision scale, then the integers.
BLOCK = {Type.Q8_0: 2 + 32, Type.Q4_0: 2 + 16}
# Scales that give random integers a deviation of 0.02.
SCALE = {Type.Q8_0: 0.02 / 73.9, Type.Q4_0: 0.02 / 4.6}


def layer_tensors(layer):
    """Names, shapes (rows first) and types of a layer's tensors."""
    tensors = {
        "attn_norm.weight": ((HIDDEN,), Type.F32),
        "post_attention_norm.weight": ((HIDDEN,), Type.F32),
        "ffn_gate_inp.weight": ((EXPERTS, HIDDEN), Type.F32),
        "ffn_gate_inp_shexp.weight": ((HIDDEN,), Type.F32),
        "ffn_gate_exps.weight": ((EXPERTS, WIDTH, HIDDEN), Type.Q4_0),
        "ffn_up_exps.weight": ((EXPERTS, WIDTH, HIDDEN), Type.Q4_0),
        "ffn_down_exps.weight": ((EXPERTS, HIDDEN, WIDTH), Type.Q4_0),
        "ffn_gate_shexp.weight": ((WIDTH, HIDDEN), Type.Q8_0),
        "ffn_up_shexp.weight": ((WIDTH, HIDDEN), Type.Q8_0),
        "ffn_down_shexp.weight": ((HIDDEN, WIDTH), Type.Q8_0),
    }
    if layer % INTERVAL == INTERVAL - 1:
        tensors |= {
            "attn_q.weight": ((2 * HEADS * HEAD_DIM, HIDDEN), Type.Q8_0),
            "attn_k.weight": ((KV_HEADS * HEAD_DIM, HIDDEN), Type.Q8_0),
            "attn_v.weight": ((KV_HEADS * HEAD_DIM, HIDDEN), Type.Q8_0),
            "attn_output.weight": ((HIDDEN, HEADS * HEAD_DIM), Type.Q8_0),
            "attn_q_norm.weight": ((HEAD_DIM,), Type.F32),
            "attn_k_norm.weight": ((HEAD_DIM,), Type.F32),
        }
    else:
        tensors |= {
            "attn_qkv.weight": ((CHANNELS, HIDDEN), Type.Q8_0),
            "attn_gate.weight": ((VALUES, HIDDEN), Type.Q8_0),
            "ssm_conv1d.weight": ((CHANNELS, CONV), Type.F32),
            "ssm_dt.bias": ((VALUE_HEADS,), Type.F32),
            "ssm_a": ((VALUE_HEADS,), Type.F32),
            "ssm_beta.weight": ((VALUE_HEADS, HIDDEN), Type.Q8_0),
            "ssm_alpha.weight": ((VALUE_HEADS, HIDDEN), Type.Q8_0),
            "ssm_norm.weight": ((GDN_DIM,), Type.F32),
            "ssm_out.weight": ((HIDDEN, VALUES), Type.Q8_0),
        }
    return {f"blk.{layer}.{name}": tensor for name, tensor in tensors.items()}


def values(rng, name, shape, kind):
    """Made-up contents, as the file stores them."""
    if kind == Type.F32:
        if "norm" in name:
            return np.ones(shape, np.float32)
        if name.endswith("ssm_a"):
            return -np.ones(shape, np.float32)
        return rng.normal(0, 0.02, shape).astype(np.float32)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // 32, BLOCK[kind]), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(SCALE[kind]).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    layers = int(sys.argv[2]) if len(sys.argv) == 3 else 4
    out = GGUFWriter(sys.argv[1], ARCH)
    out.add_block_count(layers)
    out.add_context_length(262_144)
    out.add_embedding_length(HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD_DIM)
    out.add_value_length(HEAD_DIM)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_expert_count(EXPERTS)
    out.add_expert_used_count(TOP_K)
    out.add_expert_feed_forward_length(WIDTH)
    out.add_expert_shared_feed_forward_length(WIDTH)
    out.add_rope_dimension_count(ROTARY)
    out.add_rope_dimension_sections([11, 11, 10, 0])
    out.add_rope_freq_base(1e7)
    out.add_ssm_conv_kernel(CONV)
    out.add_ssm_state_size(GDN_DIM)
    out.add_ssm_group_count(KEY_HEADS)
    out.add_ssm_time_step_rank(VALUE_HEADS)
    out.add_ssm_inner_size(VALUES)
    out.add_uint32(f"{ARCH}.full_attention_interval", INTERVAL)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("none")
    tensors = {
        "token_embd.weight": ((VOCAB, HIDDEN), Type.Q8_0),
        "output.weight": ((VOCAB, HIDDEN), Type.Q8_0),
        "output_norm.weight": ((HIDDEN,), Type.F32),
    }
    for layer in range(layers):
        tensors |= layer_tensors(layer)
    for name, (shape, kind) in tensors.items():
        count = int(np.prod(shape))
        bytes_ = 4 * count if kind == Type.F32 else count // 32 * BLOCK[kind]
        stored = shape if kind == Type.F32 else (*shape[:-1], shape[-1] // 32 * BLOCK[kind])
        dtype = np.dtype(np.float32 if kind == Type.F32 else np.uint8)
        out.add_tensor_info(name, stored, dtype, bytes_, None if kind == Type.F32 else kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for name, (shape, kind) in tensors.items():
        out.write_tensor_data(values(rng, name, shape, kind))
    out.close()


if __name__ == "__main__":
    main()
