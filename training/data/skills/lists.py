"""Sorting, reversing, picking from and counting lists."""

from __future__ import annotations

import random

from data.sample import Sample, phrase, skill
from data.words import ANIMALS, COLORS, FOODS, NAMES, NOUNS, OBJECTS

POOLS = (ANIMALS, OBJECTS, FOODS, COLORS, NAMES, NOUNS)


def words(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.sample(rng.choice(POOLS), rng.randint(low, high))


def numbers(rng: random.Random, low: int, high: int) -> list[str]:
    top = rng.choice((20, 100, 100, 500))
    return [str(x) for x in rng.sample(range(top), rng.randint(low, min(high, 5) if top > 100 else high))]


@skill("sort numbers", 2.6)
def sort_numbers(rng: random.Random) -> Sample:
    xs = numbers(rng, 3, 7)
    up = sorted(xs, key=int)
    q, ans = phrase(rng, [
        ("Sort these numbers: {xs}", "{up}"),
        ("Sort {xs} from small to large.", "{up}"),
        ("Put these numbers in ascending order: {xs}", "In ascending order: {up}"),
        ("Sort these numbers in descending order: {xs}", "In descending order: {down}"),
        ("Sort {xs} from large to small.", "{down}"),
    ], xs=", ".join(xs), up=", ".join(up), down=", ".join(reversed(up)))
    return Sample(q, ans, ",".join(xs))


@skill("sort words", 1.6)
def sort_words(rng: random.Random) -> Sample:
    xs = words(rng, 3, 6)
    up = sorted(xs, key=str.lower)
    q, ans = phrase(rng, [
        ("Sort these words: {xs}", "{up}"),
        ("Sort these words alphabetically: {xs}", "{up}"),
        ("Put these words in alphabetical order: {xs}", "In alphabetical order: {up}"),
        ("Which word comes first in the alphabet: {xs}?", "{first} comes first in the alphabet."),
    ], xs=", ".join(xs), up=", ".join(up), first=up[0])
    return Sample(q, ans, ",".join(xs))


@skill("reverse list", 1.4)
def reverse_list(rng: random.Random) -> Sample:
    xs = words(rng, 3, 7) if rng.random() < 0.6 else numbers(rng, 3, 7)
    q, ans = phrase(rng, [
        ("Reverse this list: {xs}", "{back}"),
        ("Write this list backwards: {xs}", "{back}"),
        ("Reverse the order of {xs}.", "In reverse order: {back}"),
        ("Turn this list around: {xs}", "{back}"),
    ], xs=", ".join(xs), back=", ".join(reversed(xs)))
    return Sample(q, ans, ",".join(xs))


ORDINALS = "first second third fourth fifth".split()


@skill("pick item", 1.0)
def pick_item(rng: random.Random) -> Sample:
    xs = words(rng, 4, 7)
    i = rng.randrange(min(len(xs), 5))
    out = rng.choice(xs)
    rest = [x for x in xs if x != out]
    q, ans = phrase(rng, [
        ("What is the {nth} item in this list: {xs}?", "The {nth} item is {x}."),
        ("Which word is {nth} in the list {xs}?", "The {nth} word is {x}."),
        ("What is the last item in this list: {xs}?", "The last item is {last}."),
        ("Remove {out} from this list: {xs}", "{rest}"),
        ("Make a bullet list of {xs}.", "{bullets}"),
        ("Make a numbered list of {xs}.", "{numbered}"),
    ], xs=", ".join(xs), nth=ORDINALS[i], x=xs[i], last=xs[-1], out=out, rest=", ".join(rest),
        bullets="\n".join(f"- {x}" for x in xs),
        numbered="\n".join(f"{j}. {x}" for j, x in enumerate(xs, 1)))
    return Sample(q, ans, ",".join(xs))


@skill("count items", 3.6)
def count_items(rng: random.Random) -> Sample:
    xs = words(rng, 2, 9) if rng.random() < 0.7 else numbers(rng, 2, 9)
    pool = rng.choice(POOLS)
    few = rng.sample(pool, 3)
    many = [rng.choice(few) for _ in range(rng.randint(4, 8))]
    target = rng.choice(many)
    times = many.count(target)
    q, ans = phrase(rng, [
        ("How many items are in this list: {xs}?", "The list has {n} items."),
        ("Count the items: {xs}", "There are {n} items."),
        ("How many times does {t} appear in {many}?", "{t} appears {k} time{s}."),
    ], xs=", ".join(xs), n=len(xs), t=target, many=", ".join(many), k=times,
        s="" if times == 1 else "s")
    return Sample(q, ans)
