"""A small stock of general knowledge, split by wording: the facts themselves are in training."""

from __future__ import annotations

import random

from data.sample import Sample, phrase, skill
from data.words import (ANIMALS, BABIES, CAPITALS, COLORS, FOODS, JOBS, OPPOSITES, PAST,
                        PLURALS, SOUNDS)


@skill("capitals", 2.2)
def capitals(rng: random.Random) -> Sample:
    country = rng.choice(list(CAPITALS))
    q, ans = phrase(rng, [
        ("What is the capital of {x}?", "The capital of {x} is {y}."),
        ("Name the capital of {x}.", "The capital of {x} is {y}."),
        ("Which city is the capital of {x}?", "{y} is the capital of {x}."),
        ("Tell me the capital of {x}.", "The capital of {x} is {y}."),
        ("Capital of {x}?", "The capital of {x} is {y}."),
        ("{y} is the capital of which country?", "{y} is the capital of {x}."),
    ], x=country, y=CAPITALS[country])
    return Sample(q, ans)


def plural(noun: str) -> str:
    if noun in PLURALS:
        return PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


@skill("language", 1.4)
def language(rng: random.Random) -> Sample:
    kind = rng.randrange(3)
    if kind == 0:
        a = rng.choice(list(OPPOSITES))
        q, ans = phrase(rng, [
            ("What is the opposite of {a}?", "The opposite of {a} is {b}."),
            ("Give me the opposite of {a}.", "The opposite of {a} is {b}."),
            ("Opposite of {a}?", "The opposite of {a} is {b}."),
        ], a=a, b=OPPOSITES[a])
    elif kind == 1:
        n = rng.choice(list(PLURALS)) if rng.random() < 0.5 else rng.choice(ANIMALS + FOODS + JOBS)
        q, ans = phrase(rng, [
            ("What is the plural of {n}?", "The plural of {n} is {p}."),
            ("Give me the plural of {n}.", "The plural of {n} is {p}."),
            ("What do you call more than one {n}?", "More than one {n} is called {p}."),
        ], n=n, p=plural(n))
    else:
        v = rng.choice(list(PAST))
        q, ans = phrase(rng, [
            ("What is the past tense of {v}?", "The past tense of {v} is {p}."),
            ("Give me the past tense of {v}.", "The past tense of {v} is {p}."),
            ("Put this in the past tense: I {v}.", "I {p}."),
        ], v=v, p=PAST[v])
    return Sample(q, ans)


GROUPS = {"animal": ANIMALS, "color": COLORS, "food": FOODS, "job": JOBS}


@skill("world", 1.0)
def world(rng: random.Random) -> Sample:
    kind = rng.randrange(3)
    if kind == 0:
        a = rng.choice(list(BABIES))
        q, ans = phrase(rng, [
            ("What is a baby {a} called?", "A baby {a} is called a {b}."),
            ("What do you call a young {a}?", "A young {a} is called a {b}."),
        ], a=a, b=BABIES[a])
    elif kind == 1:
        a = rng.choice(list(SOUNDS))
        q, ans = phrase(rng, [
            ("What sound does a {a} make?", "A {a} says {b}."),
            ("What does a {a} say?", "A {a} says {b}."),
        ], a=a, b=SOUNDS[a])
    else:
        group = rng.choice(list(GROUPS))
        word = rng.choice(GROUPS[group])
        others = [w for g, ws in GROUPS.items() if g != group for w in ws if w not in GROUPS[group]]
        trio = rng.sample(others, 2) + [word]
        rng.shuffle(trio)
        q, ans = phrase(rng, [
            ("Is {w} an animal, a color, a food or a job?", "{w} is {g}."),
            ("Which of these is {g}: {trio}?", "{w} is {g}."),
        ], w=word, g=("an " if group == "animal" else "a ") + group, trio=", ".join(trio))
    return Sample(q, ans, loose=False)


@skill("definitions", 0.4)
def definitions(rng: random.Random) -> Sample:
    term = rng.choice(list(TERMS))
    q, ans = phrase(rng, [
        ("What is {t}?", "{d}"), ("Explain {t}.", "{d}"), ("Tell me about {t}.", "{d}"),
        ("What does {t} mean?", "{d}"), ("Can you explain {t}?", "{d}"),
    ], t=term, d=TERMS[term])
    return Sample(q, ans)


TERMS = {
    "block diffusion": "Block diffusion is a way to write text in blocks. A block starts as masks, "
                       "and the model fills in the words it is sure of, many at a time, until none "
                       "is left.",
    "a mask token": "A mask token marks a place in a block that has no word yet. The model replaces "
                    "it once it is sure of the word.",
    "a denoising pass": "A denoising pass looks at the whole block at once and fixes every word the "
                        "model is sure of.",
    "a language model": "A language model is a program that has learned which words are likely to "
                        "come next in a text.",
    "a token": "A token is a small piece of text, such as a word or a part of a word.",
    "a mixture of experts": "A mixture of experts is a network with many small parts, of which only "
                            "a few work on each token.",
    "quantization": "Quantization stores the numbers of a model with fewer bits, so that the file is "
                    "smaller and faster to read.",
    "a triangle": "A triangle is a shape with three sides and three corners.",
    "a square": "A square is a shape with four equal sides and four right angles.",
    "a prime number": "A prime number is a whole number above one that only one and itself divide.",
    "an even number": "An even number is a whole number that can be divided by two.",
    "a verb": "A verb is a word for an action or a state, such as run or be.",
    "a noun": "A noun is a word for a person, a place or a thing.",
    "a leap year": "A leap year is a year with 366 days, because February has 29 days.",
    "the moon": "The moon is the round body that goes around the earth once a month.",
    "rain": "Rain is water that falls from the clouds in drops.",
    "a forest": "A forest is a large area of land that is covered with trees.",
    "a library": "A library is a place where many books are kept and can be borrowed.",
}
