"""The training mixture: skills by weight, with the small disorder of real prompts."""

from __future__ import annotations

import random

import data.skills  # noqa: F401  registers the skills
from data.sample import SKILLS, Sample, draw

SYSTEM = ["You are a helpful assistant.", "You are clover-nano, a small and friendly model.",
          "Answer briefly.", "You are a helpful AI assistant. Answer the user's questions."]
PLAIN_THOUGHT = "This is simple. I can answer it directly."
NAMES = list(SKILLS)
WEIGHTS = [SKILLS[name][0] for name in NAMES]


def training_sample(rng: random.Random) -> Sample:
    """One sample of the training side of the split."""
    sample = draw(rng.choices(NAMES, WEIGHTS)[0], rng, want_held_out=False)
    if sample.think is None and rng.random() < 0.06:
        sample.think = PLAIN_THOUGHT
    if not sample.history and rng.random() < 0.10:
        sample.history = [(s.prompt, s.answer) for s in (
            draw(rng.choices(NAMES, WEIGHTS)[0], rng, want_held_out=False)
            for _ in range(rng.randint(1, 4))) if not s.history]
    if rng.random() < 0.06:
        sample.system = rng.choice(SYSTEM)
    if sample.loose:
        sample.prompt = sloppy(sample.prompt, rng)
    return sample


def sloppy(prompt: str, rng: random.Random) -> str:
    """Lower-case starts, missing punctuation and a polite word, as people type."""
    if rng.random() < 0.12:
        prompt = prompt[0].lower() + prompt[1:]
    if rng.random() < 0.15:
        prompt = prompt.rstrip(".?!")
    if rng.random() < 0.04:
        prompt = "Please " + prompt[0].lower() + prompt[1:]
    return prompt
