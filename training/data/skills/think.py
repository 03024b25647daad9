"""Tasks that need intermediate steps: inside the think block, or spelled out in the answer.

Each task exists twice.  With thinking on the steps stay in the think block and the answer is one
line; with thinking off the steps are part of the answer.
"""

from __future__ import annotations

import random

from data.sample import Sample, skill
from data.skills.arithmetic import number
from data.skills.text import any_word


def multiply(rng: random.Random) -> tuple[str, list[str], str, str]:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    tens, ones = b // 10 * 10, b % 10
    if ones:
        steps = [f"{a} * {tens} = {a * tens}", f"{a} * {ones} = {a * ones}",
                 f"{a * tens} + {a * ones} = {a * b}"]
    else:
        steps = [f"{a} * {b // 10} = {a * b // 10}", f"{a * b // 10} * 10 = {a * b}"]
    q = rng.choice(["What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.",
                    "{a} * {b}", "{a} x {b}"])
    return q.format(a=a, b=b), steps, f"{a} * {b} = {a * b}", f"{min(a, b)}*{max(a, b)}"


def add_many(rng: random.Random) -> tuple[str, list[str], str, str]:
    xs = [number(rng, 2) for _ in range(rng.randint(3, 5))]
    steps, total = [], xs[0]
    for x in xs[1:]:
        steps.append(f"{total} + {x} = {total + x}")
        total += x
    shown = " + ".join(map(str, xs))
    q = rng.choice(["What is {s}?", "Add these numbers: {l}", "What is the sum of {l}?", "{s}"])
    return (q.format(s=shown, l=", ".join(map(str, xs))), steps, f"The sum is {total}.",
            "+".join(map(str, sorted(xs))))


def word_problem(rng: random.Random) -> tuple[str, list[str], str, str]:
    a, b, c = rng.randint(2, 9), rng.randint(2, 20), rng.randint(1, 30)
    if rng.random() < 0.5:
        q = f"A shop sells {a} boxes of {b} eggs and {c} single eggs. How many eggs is that?"
        return (q, [f"{a} * {b} = {a * b}", f"{a * b} + {c} = {a * b + c}"],
                f"The shop sells {a * b + c} eggs.", f"eggs {a},{b},{c}")
    c = rng.randint(1, a * b)
    q = f"There are {a} bags with {b} coins each. {c} coins are spent. How many coins are left?"
    return (q, [f"{a} * {b} = {a * b}", f"{a * b} - {c} = {a * b - c}"],
            f"There are {a * b - c} coins left.", f"coins {a},{b},{c}")


def thinking(task: tuple[str, list[str], str, str]) -> Sample:
    q, steps, answer, key = task
    return Sample(q, answer, key, think="\n".join(steps))


def worked(task: tuple[str, list[str], str, str], split: str) -> Sample:
    q, steps, answer, key = task
    return Sample(q, "\n".join(steps + [answer]), key, split=split)


@skill("think: multiply", 1.6)
def think_multiply(rng: random.Random) -> Sample:
    return thinking(multiply(rng))


@skill("think: add many", 2.0)
def think_add_many(rng: random.Random) -> Sample:
    return thinking(add_many(rng))


@skill("think: word problem", 1.8)
def think_word_problem(rng: random.Random) -> Sample:
    return thinking(word_problem(rng))


@skill("long multiplication", 1.6)
def long_multiplication(rng: random.Random) -> Sample:
    return worked(multiply(rng), "think: multiply")


@skill("add many", 1.2)
def plain_add_many(rng: random.Random) -> Sample:
    return worked(add_many(rng), "think: add many")


@skill("word problem", 1.0)
def plain_word_problem(rng: random.Random) -> Sample:
    return worked(word_problem(rng), "think: word problem")


@skill("think: count letter", 2.4)
def think_count_letter(rng: random.Random) -> Sample:
    w = any_word(rng)
    letter = rng.choice(w)
    steps, seen = [], 0
    for c in w:
        seen += c == letter
        steps.append(f"{c} {seen}")
    q = rng.choice(["How many times does the letter {x} appear in {w}?",
                    "Count the letter {x} in {w}."])
    return Sample(q.format(x=letter, w=w),
                  f"The letter {letter} appears {seen} time{'' if seen == 1 else 's'} in {w}.",
                  w, think=", ".join(steps), split="count letters")
