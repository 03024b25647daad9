"""The training forward against the float64 oracle, on random weights.

Tolerance 1e-9 on float64 logits of order one: the chunked form reorders sums of a few hundred
terms, which costs some 1e-13; a wrong mask, tap or decay costs 1e-3 or more.
"""

import pytest
import torch
import torch.nn.functional as F

from checkpoint import to_format
from clover_reference import (CloverConfig, CloverModel, Controls, generate_causal,
                              generate_denoise)
from config import NanoConfig
from gdn import unit_lower_inverse
from generate import Runner
from layout import CHUNK, Batch
from model import CloverNano, losses

SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|mask|>": 3,
           "<think>": 4, "</think>": 5}
TOLERANCE = 1e-9


def build(coreset: bool, top_p: float = 0.6) -> tuple[CloverNano, CloverModel]:
    torch.manual_seed(3)
    cfg = NanoConfig(vocab=160, hidden=64, layers=4, lin_k_heads=2, lin_v_heads=4, lin_k_dim=32,
                     lin_v_dim=32, heads=2, kv_heads=1, head_dim=64, rotary=32, experts=12,
                     expert_width=32, shared_width=32, coreset=coreset, coreset_top_p=top_p,
                     special=SPECIAL)
    model = CloverNano(cfg).double()
    with torch.no_grad():                       # norms and slopes start at neutral values
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p))
        model.lm_head.mul_(30)
        for layer in model.layers:
            layer.mlp.gate.weight.mul_(8)
    oracle = CloverModel(CloverConfig.from_json(cfg.to_hf(), cfg.generation()), to_format(model))
    return model, oracle


def packed(seed: int) -> tuple[Batch, list]:
    """Two rows: (37 + 61 tokens) and (5 + 20, then 32 + 40): pads of 27, 27 and 0 tokens."""
    g = torch.Generator().manual_seed(seed)
    rows = [[(37, 61)], [(5, 20), (32, 40)]]
    n, m = 6, 3
    tokens = torch.full((2, n * CHUNK), 7)
    position = torch.zeros(2, n * CHUNK, dtype=torch.long)
    live = torch.zeros(2, n * CHUNK, dtype=torch.bool)
    segment = torch.full((2, n), -2)
    block_chunk = torch.zeros(2, m, dtype=torch.long)
    noisy = torch.full((2, m, CHUNK), 3)
    width = torch.tensor([[32, 16, 32], [32, 32, 16]])
    cases = []
    for r, samples in enumerate(rows):
        chunk = block = 0
        for s, (prompt, answer) in enumerate(samples):
            ids = torch.randint(6, 160, (prompt + answer,), generator=g)
            prompt_chunks = -(-prompt // CHUNK)
            pad = prompt_chunks * CHUNK - prompt
            chunks = prompt_chunks + -(-answer // CHUNK)
            at = chunk * CHUNK + pad
            tokens[r, at: at + len(ids)] = ids
            live[r, at: (chunk + chunks) * CHUNK] = True
            position[r, at: (chunk + chunks) * CHUNK] = torch.arange(chunks * CHUNK - pad)
            segment[r, chunk: chunk + chunks] = s
            for b in range(-(-answer // CHUNK)):
                if block == m:
                    break
                block_chunk[r, block] = chunk + prompt_chunks + b
                row = torch.randint(6, 160, (CHUNK,), generator=g)
                row[torch.rand(CHUNK, generator=g) < 0.6] = 3
                noisy[r, block] = row
                cases.append((r, block, at, len(ids), ids, prompt + b * CHUNK))
                block += 1
            chunk += chunks
    one = torch.ones(2, m, CHUNK)
    return Batch(tokens, position, live, segment, block_chunk, noisy, width, one, one), cases


@pytest.mark.parametrize("coreset", [False, True])
def test_both_streams_equal_the_oracle(coreset):
    model, oracle = build(coreset)
    batch, cases = packed(11)
    clean, noisy, _ = model(batch)
    clean, noisy = F.linear(clean, model.lm_head), F.linear(noisy, model.lm_head)
    narrowed = False
    for r, block, at, length, ids, prefix in cases:
        state = oracle.new_state()
        want = oracle.commit(state, ids.tolist())
        assert (clean[r, at: at + length] - want).abs().max() < TOLERANCE
        state = oracle.new_state()
        oracle.commit(state, ids[:prefix].tolist())
        b = int(batch.width[r, block])
        trace = {}
        want = oracle.preview(state, batch.noisy[r, block, :b].tolist(), trace)
        assert (noisy[r, block, :b] - want).abs().max() < TOLERANCE
        narrowed |= any(len(kept) < 12 for kept in trace.get("coreset", {}).values())
    assert narrowed == coreset, "the coreset case must leave experts out"


def test_coreset_smaller_than_top_k():
    model, oracle = build(True, top_p=0.2)
    batch, cases = packed(5)
    _, noisy, _ = model(batch)
    r, block, _, _, ids, prefix = cases[0]
    state = oracle.new_state()
    oracle.commit(state, ids[:prefix].tolist())
    trace = {}
    want = oracle.preview(state, batch.noisy[r, block].tolist(), trace)
    assert min(len(kept) for kept in trace["coreset"].values()) < 4
    assert (F.linear(noisy, model.lm_head)[r, block] - want).abs().max() < TOLERANCE


def test_inverse_holds_for_equal_keys_and_has_its_gradient():
    ones = torch.ones(CHUNK, CHUNK).tril(-1)
    got = unit_lower_inverse(ones)
    assert torch.equal(got @ (torch.eye(CHUNK) + ones), torch.eye(CHUNK))
    a = (0.3 * torch.randn(CHUNK, CHUNK, dtype=torch.double)).tril(-1).requires_grad_()
    weight = torch.randn(CHUNK, CHUNK, dtype=torch.double)
    (mine,) = torch.autograd.grad((unit_lower_inverse(a) * weight).sum(), a)
    eye = torch.eye(CHUNK, dtype=torch.double)
    (true,) = torch.autograd.grad((torch.linalg.inv(eye + a) * weight).sum(), a)
    assert (mine - true).abs().max() < 1e-9 * true.abs().max()


def test_losses_reach_every_parameter():
    model, _ = build(True)
    batch, _ = packed(2)
    sum(losses(model, batch)[:3]).backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_batched_generation_equals_the_oracle():
    """Same tokens and passes, several conversations of different lengths in one batch."""
    model, oracle = build(True)
    g = torch.Generator().manual_seed(4)
    prompts = [torch.randint(6, 160, (n,), generator=g).tolist() for n in (3, 32, 45)]
    runner = Runner(model, "cpu", autocast=False)
    stops = (SPECIAL["<|im_end|>"], SPECIAL["<|endoftext|>"])
    controls = Controls(threshold=0.4, stop_token_ids=stops)
    with torch.no_grad():
        for prompt, got in zip(prompts, runner.denoise(prompts, 40, 0.4)):
            want = generate_denoise(oracle, prompt, 40, controls)
            assert got.tokens == want.tokens
            assert got.passes == sum(len(b["passes"]) for b in want.trace)
            assert got.blocks == len(want.trace)
        for prompt, got in zip(prompts, runner.causal(prompts, 12)):
            assert got.tokens == generate_causal(oracle, prompt, 12, controls).tokens
