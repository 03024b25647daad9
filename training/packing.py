"""Samples -> training batches: tokenise, mask blocks, pack rows.  Runs in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import random
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from checkpoint import special_ids
from data.mixture import training_sample
from layout import CHUNK, Batch
from tokenizer import render, response

LATE = 8        # how far behind the stop token the first resolved fill row may lie


@dataclass(frozen=True)
class Shape:
    rows: int = 160
    chunks: int = 12
    blocks: int = 6


@dataclass
class Encoded:
    prompt: list[int]
    answer: list[int]       # ends with the stop token

    @property
    def prompt_chunks(self) -> int:
        return -(-len(self.prompt) // CHUNK)

    @property
    def answer_chunks(self) -> int:
        return -(-len(self.answer) // CHUNK)

    @property
    def chunks(self) -> int:
        return self.prompt_chunks + self.answer_chunks


class Packer:
    """Makes batch number i of a run from (seed, i) alone."""

    def __init__(self, tokenizer: str, seed: int, shape: Shape):
        self.tok = Tokenizer.from_file(tokenizer)
        self.ids = special_ids(self.tok)
        self.seed = seed
        self.shape = shape

    def batch(self, number: int) -> dict[str, np.ndarray]:
        rng = random.Random(f"{self.seed}/{number}")
        noise = np.random.default_rng([self.seed, number])
        samples = self.encode(rng)
        samples.sort(key=lambda s: -s.chunks)             # first-fit decreasing
        R, n, m = self.shape.rows, self.shape.chunks, self.shape.blocks
        fill, mask = self.ids["<|endoftext|>"], self.ids["<|mask|>"]
        out = {
            "tokens": np.full((R, n * CHUNK), fill, np.int16),
            "position": np.zeros((R, n * CHUNK), np.int16),
            "live": np.zeros((R, n * CHUNK), bool),
            "segment": np.full((R, n), -2, np.int16),
            "block_chunk": np.zeros((R, m), np.int16),
            "noisy": np.full((R, m, CHUNK), mask, np.int16),
            "width": np.full((R, m), CHUNK, np.int16),
            "causal_weight": np.zeros((R, m, CHUNK), np.float32),
            "noisy_weight": np.zeros((R, m, CHUNK), np.float32),
        }
        free = [[n, m] for _ in range(R)]                 # chunks and blocks left in each row
        blocks: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(R)]
        for s in samples:
            for r, (chunks, room) in enumerate(free):
                if s.chunks <= chunks and s.answer_chunks <= room:
                    self.place(out, blocks[r], r, n - chunks, s)
                    free[r] = [chunks - s.chunks, room - s.answer_chunks]
                    break
        for r in range(R):
            self.add_noise(out, r, blocks[r], noise)
        return out

    def encode(self, rng: random.Random) -> list[Encoded]:
        """About as many samples as fit; some begin in the middle of their answer, which is where
        self-speculation places its blocks."""
        R, n, m = self.shape.rows, self.shape.chunks, self.shape.blocks
        drawn = [training_sample(rng) for _ in range(R * n * 10 // 23)]
        prompts = self.tok.encode_batch_fast(
            [render(s.messages, s.think is not None) for s in drawn])
        answers = self.tok.encode_batch_fast([response(s.answer, s.think) for s in drawn])
        out = []
        for p, a in zip(prompts, answers):
            prompt, answer = p.ids, a.ids + [self.ids["<|im_end|>"]]
            if rng.random() < 0.3:
                cut = rng.randrange(len(answer))
                prompt, answer = prompt + answer[:cut], answer[cut:]
            e = Encoded(prompt, answer)
            if e.chunks <= n and e.answer_chunks <= m:
                out.append(e)
        return out

    @staticmethod
    def place(out: dict, blocks: list, r: int, chunk: int, s: Encoded) -> None:
        at = (chunk + s.prompt_chunks) * CHUNK
        start, end = at - len(s.prompt), (chunk + s.chunks) * CHUNK
        out["tokens"][r, start:at] = s.prompt
        out["tokens"][r, at: at + len(s.answer)] = s.answer
        out["live"][r, start:end] = True
        out["position"][r, start:end] = np.arange(end - start)
        out["segment"][r, chunk: chunk + s.chunks] = chunk
        for b in range(s.answer_chunks):
            real = np.arange(CHUNK) + b * CHUNK < len(s.answer)
            blocks.append((chunk + s.prompt_chunks + b, real))

    def add_noise(self, out: dict, r: int, blocks: list, noise: np.random.Generator) -> None:
        """Mask every answer block once; spare places take further drawings of the same blocks."""
        if not blocks:
            return
        mask = self.ids["<|mask|>"]
        m = self.shape.blocks
        extra = noise.integers(len(blocks), size=m - len(blocks))
        for j, pick in enumerate([*range(len(blocks)), *extra]):
            chunk, real = blocks[pick]
            clean = out["tokens"][r, chunk * CHUNK: (chunk + 1) * CHUNK]
            width, hidden = draw_mask(real, noise)
            used = np.arange(CHUNK) < width
            out["block_chunk"][r, j] = chunk
            out["width"][r, j] = width
            out["noisy"][r, j] = np.where(hidden | ~used, mask, clean)
            # Fill rows weigh as much as the others: with less, a row that may be either would lean
            # towards a word, and answers would come out too long.
            out["noisy_weight"][r, j] = hidden & used
            if j < len(blocks):
                out["causal_weight"][r, j] = real


def draw_mask(real: np.ndarray, noise: np.random.Generator) -> tuple[int, np.ndarray]:
    """Preview width and the hidden rows of one block.

    Generation starts from a fully masked block and resolves the fill from its far end, up to some
    row behind the stop token, together with easy or early rows; drafting shows row 0 and hides the
    15 others.
    """
    kind = noise.random()
    ratio = noise.random()
    hidden = noise.random(CHUNK) < max(ratio, 0.03)
    row = np.arange(CHUNK)
    # Were the first visible fill row always the one behind the stop token, it would give away where
    # the answer ends.
    unresolved = row < real.sum() + noise.integers(LATE + 1)
    if kind < 0.15:                                     # draft preview
        hidden |= noise.random() < 0.7
        hidden[0] = noise.random() < 0.2
        return 16, hidden
    if kind < 0.55:
        hidden[:] = True
    elif kind < 0.80:
        hidden &= unresolved
    elif kind < 0.90:
        hidden = unresolved & (row >= noise.integers(CHUNK))
    if not hidden.any():
        hidden |= real
    return CHUNK, hidden


def to_batch(arrays: dict[str, np.ndarray]) -> Batch:
    """Arrays as made by a worker, ids still int16: `Batch.to` widens them on the device."""
    return Batch(**{k: torch.from_numpy(v) for k, v in arrays.items()})


def _work(tokenizer: str, seed: int, shape: Shape, first: int, step: int, queue) -> None:
    packer = Packer(tokenizer, seed, shape)
    number = first
    while True:
        queue.put(packer.batch(number))
        number += step


class Loader:
    """Batches 0, 1, 2, … in order, made by `workers` processes."""

    def __init__(self, tokenizer: str, seed: int, shape: Shape, workers: int, ahead: int = 6):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(ahead) for _ in range(workers)]
        self.processes = [
            context.Process(target=_work, daemon=True,
                            args=(tokenizer, seed, shape, i, workers, self.queues[i]))
            for i in range(workers)]
        for p in self.processes:
            p.start()

    def __iter__(self):
        while True:
            for queue in self.queues:
                yield to_batch(queue.get())

    def close(self) -> None:
        for p in self.processes:
            p.terminate()
