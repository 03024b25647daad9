"""Data, tokenizer and packing: what the numbers in the README rest on."""

import json
import random

import jinja2
import numpy as np
import torch

from conftest import TRAINING
from tokenizers import Tokenizer

from checkpoint import special_ids
from data.make_eval import items
from data.mixture import training_sample
from data.sample import SKILLS, draw, held_out
from evaluate import correct
from layout import CHUNK
from packing import Packer, Shape
from quant import q4tp_grid
from tokenizer import render, response
import cmf

HF = TRAINING.parent / "models" / "clover-nano-hf"
EVAL = TRAINING.parent / "models" / "clover-nano.eval.jsonl"


def test_split_is_disjoint_by_problem():
    rng = random.Random(0)
    for name in SKILLS:
        assert not any(held_out(draw(name, rng, False).key) for _ in range(20))
        assert all(held_out(draw(name, rng, True).key) for _ in range(3))


def test_training_never_asks_a_shipped_task():
    """The mixture as it is really drawn, wrappers included."""
    asked = {json.dumps(json.loads(line)["messages"])
             for line in EVAL.read_text(encoding="utf-8").splitlines()}
    rng = random.Random(1)
    for _ in range(5000):
        assert json.dumps(training_sample(rng).messages) not in asked


def test_shipped_tasks_are_reproducible_and_their_answers_pass():
    shipped = [json.loads(line) for line in EVAL.read_text(encoding="utf-8").splitlines()]
    assert shipped == json.loads(json.dumps(list(items(per_skill=11, seed=7))))
    for item in shipped:
        assert correct(item, item["answer"])
        assert not correct(item, "something else")


def test_chat_template_equals_render():
    template = json.loads((HF / "tokenizer_config.json").read_text())["chat_template"]
    compiled = jinja2.Environment().from_string(template)
    rng = random.Random(2)
    for _ in range(50):
        m = training_sample(rng).messages
        for thinking in (False, True):
            got = compiled.render(messages=m, add_generation_prompt=True, enable_thinking=thinking)
            assert got == render(m, thinking)
    plain = compiled.render(messages=m, add_generation_prompt=True)
    assert plain == render(m, False), "thinking is off by default"
    past = [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "<think>\nx\n</think>\n\nb"}]
    assert "x" not in compiled.render(messages=past, add_generation_prompt=True)


def test_tokenizer_round_trips_and_splits_digits():
    tok = Tokenizer.from_file(str(HF / "tokenizer.json"))
    rng = random.Random(3)
    for _ in range(200):
        s = training_sample(rng)
        text = response(s.answer, s.think)
        assert tok.decode(tok.encode(text).ids) == text
    assert len(tok.encode("8247").ids) == 4


def test_packed_batch_is_consistent():
    packer = Packer(str(HF / "tokenizer.json"), seed=5, shape=Shape(rows=6))
    batch, again = packer.batch(3), packer.batch(3)
    assert all(np.array_equal(batch[k], again[k]) for k in batch)
    mask = special_ids(packer.tok)["<|mask|>"]
    assert mask not in batch["tokens"]
    rows, blocks = batch["width"].shape
    for r in range(rows):
        for j in range(blocks):
            c = batch["block_chunk"][r, j]
            clean = batch["tokens"][r, c * CHUNK: (c + 1) * CHUNK]
            noisy, width = batch["noisy"][r, j], batch["width"][r, j]
            hidden = noisy == mask
            assert np.array_equal(noisy[~hidden], clean[~hidden])
            assert hidden[width:].all() and hidden[:width].any()
            assert not batch["noisy_weight"][r, j][~hidden | (np.arange(CHUNK) >= width)].any()
            assert batch["segment"][r, c] == batch["segment"][r, c - 1], "a block has a prefix"


def test_straight_through_grid_is_the_encoders():
    """All but a few groups agree; those few sit on a rounding tie of scale or nibble."""
    torch.manual_seed(0)
    w = torch.randn(64, 256) * torch.rand(64, 1)
    file = cmf.decode("q4tp", tuple(w.shape), cmf.encode("q4tp", w.numpy()))
    grid = q4tp_grid(w).numpy()
    assert (np.abs(file - grid) > 1e-4 * np.abs(w.numpy()).max()).mean() < 0.01
    assert np.abs(grid - w.numpy()).mean() < 1.02 * np.abs(file - w.numpy()).mean()
