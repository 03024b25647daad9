"""Units, dates and clock times."""

from __future__ import annotations

import random

from data.sample import Sample, phrase, skill
from data.words import DAYS, MONTH_DAYS, MONTHS

# (large unit, small unit, factor, largest count asked for)
UNITS = [
    ("kilometers", "meters", 1000, 99), ("meters", "centimeters", 100, 99),
    ("centimeters", "millimeters", 10, 99), ("kilograms", "grams", 1000, 99),
    ("liters", "milliliters", 1000, 99), ("hours", "minutes", 60, 24),
    ("minutes", "seconds", 60, 24), ("days", "hours", 24, 12), ("weeks", "days", 7, 30),
    ("years", "months", 12, 12), ("feet", "inches", 12, 12), ("dollars", "cents", 100, 99),
    ("tons", "kilograms", 1000, 99), ("yards", "feet", 3, 50), ("dozens", "pieces", 12, 12),
]


def named(count: int, unit: str) -> str:
    if count != 1:
        return f"{count} {unit}"
    return f"{count} " + {"feet": "foot", "inches": "inch"}.get(unit, unit.removesuffix("s"))


@skill("units", 1.6)
def units(rng: random.Random) -> Sample:
    large, small, factor, top = rng.choice(UNITS)
    n = rng.randint(1, top)
    q, ans = phrase(rng, [
        ("How many {small} are in {a}?", "There are {b} in {a}."),
        ("Convert {a} to {small}.", "{a} = {b}"),
        ("Convert {b} to {large}.", "{b} = {a}"),
        ("What is {a} in {small}?", "{a} is {b}."),
        ("What is {b} in {large}?", "{b} is {a}."),
    ], small=small, large=large, a=named(n, large), b=named(n * factor, small))
    return Sample(q, ans)


@skill("weekdays", 4.0)
def weekdays(rng: random.Random) -> Sample:
    i, n = rng.randrange(7), rng.randint(1, 14)
    m, k = rng.randrange(12), rng.randint(1, 12)
    s = "" if n == 1 else "s"
    ks = "" if k == 1 else "s"
    q, ans = phrase(rng, [
        ("What day comes after {d}?", "The day after {d} is {next}."),
        ("What day comes before {d}?", "The day before {d} is {prev}."),
        ("Today is {d}. What day is it in {n} day{s}?", "In {n} day{s} it is {later}."),
        ("Today is {d}. What day was it {n} day{s} ago?", "{n} day{s} ago it was {ago}."),
        ("What day is {n} day{s} after {d}?", "{n} day{s} after {d} is {later}."),
        ("What day is {n} day{s} before {d}?", "{n} day{s} before {d} is {ago}."),
        ("If today is {d}, what day is tomorrow?", "Tomorrow is {next}."),
        ("What month comes after {m}?", "The month after {m} is {mnext}."),
        ("What month comes before {m}?", "The month before {m} is {mprev}."),
        ("Which month is {k} month{ks} after {m}?", "{k} month{ks} after {m} is {mlater}."),
        ("What is month number {i}?", "Month number {i} is {m}."),
        ("How many days does {m} have?", "{m} has {days} days."),
    ], d=DAYS[i], n=n, s=s, next=DAYS[(i + 1) % 7], prev=DAYS[i - 1], later=DAYS[(i + n) % 7],
        ago=DAYS[(i - n) % 7], m=MONTHS[m], mnext=MONTHS[(m + 1) % 12], mprev=MONTHS[m - 1],
        k=k, ks=ks, mlater=MONTHS[(m + k) % 12], i=m + 1, days=MONTH_DAYS[m])
    return Sample(q, ans)


@skill("date formats", 1.2)
def date_formats(rng: random.Random) -> Sample:
    m = rng.randrange(12)
    d, y = rng.randint(1, MONTH_DAYS[m]), rng.randint(1900, 2035)
    q, ans = phrase(rng, [
        ("Write {iso} as a long date.", "{long}"),
        ("Which date is {iso}?", "{iso} is {long}."),
        ("Write {long} in ISO format.", "{iso}"),
        ("Convert {long} to YYYY-MM-DD.", "{iso}"),
        ("Write {us} as a long date.", "{long}"),
        ("What year is in the date {iso}?", "The year is {y}."),
        ("What month is in the date {iso}?", "The month is {month}."),
    ], iso=f"{y}-{m + 1:02}-{d:02}", long=f"{d} {MONTHS[m]} {y}", us=f"{MONTHS[m]} {d}, {y}",
        y=y, month=MONTHS[m])
    return Sample(q, ans, f"{y}-{m + 1}-{d}", loose=False)


@skill("clock", 1.6)
def clock(rng: random.Random) -> Sample:
    h, m = rng.randrange(24), rng.randrange(60)
    half = f"{(h - 1) % 12 + 1}:{m:02} {'am' if h < 12 else 'pm'}"
    more = rng.choice((5, 10, 15, 20, 30, 45, 60))
    t = (h * 60 + m + more) % 1440
    q, ans = phrase(rng, [
        ("Write {full} in 12-hour time.", "{full} is {half}."),
        ("Convert {half} to 24-hour time.", "{half} is {full}."),
        ("What is {full} on a 12-hour clock?", "It is {half}."),
        ("It is {full}. What time is it in {more} minutes?", "In {more} minutes it is {later}."),
    ], full=f"{h:02}:{m:02}", half=half, more=more, later=f"{t // 60:02}:{t % 60:02}")
    return Sample(q, ans, f"{h}:{m}", loose=False)
