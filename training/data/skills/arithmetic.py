"""Sums, differences, products, comparisons, number names and Roman numerals."""

from __future__ import annotations

import random

from data.sample import Sample, phrase, skill
from data.words import NAMES, THINGS


def number(rng: random.Random, digits: int = 3) -> int:
    """Uniform in length first, so that short numbers are not rare."""
    return rng.randrange(10 ** rng.randint(1, digits))


@skill("addition", 2.0)
def addition(rng: random.Random) -> Sample:
    a, b = number(rng), number(rng)
    q, ans = phrase(rng, [
        ("What is {a} + {b}?", "{a} + {b} = {c}"),
        ("{a} + {b}", "{a} + {b} = {c}"),
        ("{a}+{b}=", "{a} + {b} = {c}"),
        ("What is the sum of {a} and {b}?", "The sum of {a} and {b} is {c}."),
        ("Add {a} and {b}.", "{a} plus {b} is {c}."),
        ("How much is {a} plus {b}?", "{a} plus {b} is {c}."),
        ("Calculate {a} + {b}.", "{a} + {b} = {c}"),
        ("{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
         "{n} has {c} {t} now, because {a} + {b} = {c}."),
    ], a=a, b=b, c=a + b, n=rng.choice(NAMES), t=rng.choice(THINGS))
    return Sample(q, ans, f"{min(a, b)}+{max(a, b)}")


@skill("subtraction", 1.6)
def subtraction(rng: random.Random) -> Sample:
    a, b = sorted((number(rng), number(rng)), reverse=True)
    q, ans = phrase(rng, [
        ("What is {a} - {b}?", "{a} - {b} = {c}"),
        ("{a} - {b}", "{a} - {b} = {c}"),
        ("{a}-{b}=", "{a} - {b} = {c}"),
        ("What is the difference between {a} and {b}?",
         "The difference between {a} and {b} is {c}."),
        ("Subtract {b} from {a}.", "{a} minus {b} is {c}."),
        ("How much is {a} minus {b}?", "{a} minus {b} is {c}."),
        ("{n} has {a} {t} and gives away {b}. How many {t} are left?",
         "{n} has {c} {t} left, because {a} - {b} = {c}."),
    ], a=a, b=b, c=a - b, n=rng.choice(NAMES), t=rng.choice(THINGS))
    return Sample(q, ans, f"{a}-{b}")


@skill("multiplication", 1.6)
def multiplication(rng: random.Random) -> Sample:
    a, b = rng.randint(2, 12), rng.randint(2, 12) if rng.random() < 0.4 else rng.randint(10, 99)
    if b > 12:
        a = rng.randint(2, 9)
    if rng.random() < 0.5:
        a, b = b, a
    q, ans = phrase(rng, [
        ("What is {a} * {b}?", "{a} * {b} = {c}"),
        ("{a} * {b}", "{a} * {b} = {c}"),
        ("{a} x {b}", "{a} * {b} = {c}"),
        ("What is {a} times {b}?", "{a} times {b} is {c}."),
        ("Multiply {a} by {b}.", "{a} times {b} is {c}."),
        ("What is the product of {a} and {b}?", "The product of {a} and {b} is {c}."),
        ("There are {a} boxes with {b} {t} each. How many {t} are there?",
         "There are {c} {t}, because {a} * {b} = {c}."),
    ], a=a, b=b, c=a * b, t=rng.choice(THINGS))
    # Tables up to 12 are facts to know, so they are split by wording; larger ones by problem.
    return Sample(q, ans, "" if max(a, b) <= 12 else f"{min(a, b)}*{max(a, b)}")


@skill("compare", 1.6)
def compare(rng: random.Random) -> Sample:
    kind = rng.randrange(4)
    if kind == 0:
        a, b = number(rng), number(rng)
        while a == b:
            b = number(rng)
        q, ans = phrase(rng, [
            ("Which is larger, {a} or {b}?", "{hi} is larger than {lo}."),
            ("Which number is bigger: {a} or {b}?", "{hi} is bigger than {lo}."),
            ("Which is smaller, {a} or {b}?", "{lo} is smaller than {hi}."),
            ("Is {a} greater than {b}?", "{yes}, {a} is {rel} than {b}."),
        ], a=a, b=b, hi=max(a, b), lo=min(a, b), yes="Yes" if a > b else "No",
            rel="greater" if a > b else "smaller")
    elif kind == 1:
        a = number(rng)
        even = a % 2 == 0
        q, ans = phrase(rng, [
            ("Is {a} even or odd?", "{a} is {p}."),
            ("Is {a} an even number?", "{yes}, {a} is {p}."),
            ("Is the number {a} odd?", "{no}, {a} is {p}."),
        ], a=a, p="even" if even else "odd", yes="Yes" if even else "No",
            no="No" if even else "Yes")
    else:
        xs = rng.sample(range(100), rng.randint(3, 6))
        q, ans = phrase(rng, [
            ("What is the largest number in {xs}?", "The largest number is {hi}."),
            ("What is the smallest number in {xs}?", "The smallest number is {lo}."),
            ("Find the maximum of {xs}.", "The maximum is {hi}."),
            ("Find the minimum of {xs}.", "The minimum is {lo}."),
        ], xs=", ".join(map(str, xs)), hi=max(xs), lo=min(xs))
    return Sample(q, ans)


@skill("sequences", 1.6)
def sequences(rng: random.Random) -> Sample:
    start, step = rng.randint(0, 60), rng.randint(1, 12)
    xs = [start + step * i for i in range(5)]
    if rng.random() < 0.4:
        xs.reverse()
        step = -step
    shown = ", ".join(map(str, xs[:4]))
    q, ans = phrase(rng, [
        ("What comes next: {s}?", "The next number is {n}, because each step {verb} {d}."),
        ("Continue the sequence {s}.", "{s}, {n}"),
        ("What is the next number in {s}?", "The next number is {n}."),
    ], s=shown, n=xs[4], d=abs(step), verb="adds" if step > 0 else "subtracts")
    return Sample(q, ans, shown)


ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return ONES[n // 100] + " hundred" + (" and " + in_words(n % 100) if n % 100 else "")


@skill("number names", 1.0)
def number_names(rng: random.Random) -> Sample:
    n = number(rng)
    q, ans = phrase(rng, [
        ("Write {n} in words.", "{n} in words is {w}."),
        ("How do you say {n} in words?", "You say {w}."),
        ("Write {w} as a number.", "{n}"),
        ("Which number is {w}?", "The number is {n}."),
    ], n=n, w=in_words(n))
    return Sample(q, ans, str(n))


ROMAN = [(90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def roman(n: int) -> str:
    out = ""
    for value, text in ROMAN:
        out += text * (n // value)
        n %= value
    return out


@skill("roman numerals", 0.5)
def roman_numerals(rng: random.Random) -> Sample:
    n = rng.randint(1, 89)
    q, ans = phrase(rng, [
        ("Write {n} as a Roman numeral.", "{n} as a Roman numeral is {r}."),
        ("What is {n} in Roman numerals?", "{n} in Roman numerals is {r}."),
        ("What number is the Roman numeral {r}?", "{r} is {n}."),
    ], n=n, r=roman(n))
    return Sample(q, ans, loose=False)
