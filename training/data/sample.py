"""What a skill produces, the registry of skills, and the held-out split."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Callable


@dataclass
class Sample:
    """One conversation that ends with a user turn, and the answer to it.

    `key` names the problem itself (not its wording), so that a held-out problem is never seen in
    another phrasing.
    """

    prompt: str
    answer: str
    key: str = ""
    think: str | None = None                   # a thinking sample, with this reasoning
    history: list[tuple[str, str]] = field(default_factory=list)   # earlier (user, assistant) turns
    system: str | None = None
    match: str = "exact"
    words: tuple[str, ...] = ()                # match "story": words the answer must contain
    loose: bool = True                         # the wording may be made sloppy
    skill: str = ""
    split: str = ""                            # skill whose held-out problems this one shares

    @property
    def messages(self) -> list[dict]:
        out = [{"role": "system", "content": self.system}] if self.system else []
        for user, assistant in self.history:
            out += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        return out + [{"role": "user", "content": self.prompt}]


Generator = Callable[[random.Random], Sample]
SKILLS: dict[str, tuple[float, Generator]] = {}


def skill(name: str, weight: float):
    """Register a generator under `name`; `weight` is its share of the training mixture."""

    def register(make: Generator) -> Generator:
        SKILLS[name] = (weight, make)
        return make

    return register


def held_out(key: str) -> bool:
    """One problem in 32 never occurs in training."""
    return hashlib.sha256(key.lower().encode()).digest()[0] < 8


def draw(name: str, rng: random.Random, want_held_out: bool) -> Sample:
    """A sample of the skill on the wanted side of the split."""
    make = SKILLS[name][1]
    while True:
        sample = make(rng)
        sample.skill = name
        sample.key = f"{sample.split or name}|{sample.key or sample.prompt}"
        if held_out(sample.key) == want_held_out:
            return sample


def phrase(rng: random.Random, pairs: list[tuple[str, str]], **values) -> tuple[str, str]:
    """Pick a (question, answer) wording.  The answer's form follows from the question's, which is
    what lets a denoiser resolve many positions at once."""
    question, answer = rng.choice(pairs)
    return question.format(**values), answer.format(**values)
