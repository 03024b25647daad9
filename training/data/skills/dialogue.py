"""Follow-up questions that need the earlier turns."""

from __future__ import annotations

import random

from data.sample import SKILLS, Sample, draw, skill
from data.skills.lists import ORDINALS, numbers, words
from data.skills.text import sentence
from data.words import CITIES, COLORS, FOODS, JOBS, NAMES, PETS, PET_NAMES


@skill("follow-up: numbers", 1.4)
def follow_numbers(rng: random.Random) -> Sample:
    a, b, c = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 50)
    if rng.random() < 0.7:
        first, total = (f"What is {a} + {b}?", f"{a} + {b} = {a + b}"), a + b
    else:
        a, b = max(a, b), min(a, b)
        first, total = (f"What is {a} - {b}?", f"{a} - {b} = {a - b}"), a - b
    asks = [("Now add {c}.", "{t} + {c} = {plus}"), ("Add {c} to that.", "{t} + {c} = {plus}"),
            ("And plus {c}?", "{t} + {c} = {plus}"), ("Double it.", "{t} * 2 = {twice}"),
            ("Now double that.", "{t} * 2 = {twice}"), ("Is that even or odd?", "{t} is {parity}.")]
    if total >= c:
        asks += [("Now subtract {c}.", "{t} - {c} = {minus}"), ("And minus {c}?", "{t} - {c} = {minus}")]
    q, ans = rng.choice(asks)
    values = dict(c=c, t=total, plus=total + c, twice=2 * total, minus=total - c,
                  parity="even" if total % 2 == 0 else "odd")
    sample = Sample(q.format(**values), ans.format(**values), f"{first}|{c}|{q}", history=[first])
    if "plus" in ans:
        sample.key, sample.split = f"{min(total, c)}+{max(total, c)}", "addition"
    elif "minus" in ans:
        sample.key, sample.split = f"{total}-{c}", "subtraction"
    return sample


@skill("follow-up: lists", 1.4)
def follow_lists(rng: random.Random) -> Sample:
    if rng.random() < 0.5:
        xs = words(rng, 3, 5)
        first = (f"Sort these words: {', '.join(xs)}", ", ".join(sorted(xs, key=str.lower)))
        ys = sorted(xs, key=str.lower)
    else:
        xs = numbers(rng, 3, 5)
        ys = sorted(xs, key=int)
        first = (f"Sort these numbers: {', '.join(xs)}", ", ".join(ys))
    i = rng.randrange(len(ys))
    q, ans = rng.choice([
        ("Now reverse it.", ", ".join(reversed(ys))),
        ("Now the other way around.", ", ".join(reversed(ys))),
        ("Which one is last?", f"The last one is {ys[-1]}."),
        ("How many are there?", f"There are {len(ys)}."),
        (f"Which one is {ORDINALS[i]}?", f"The {ORDINALS[i]} one is {ys[i]}."),
        (f"Remove {ys[i]}.", ", ".join(y for y in ys if y != ys[i])),
        ("Make a bullet list.", "\n".join(f"- {y}" for y in ys)),
    ])
    return Sample(q, ans, f"{first}|{q}", history=[first])


MEMORIES = [
    ("My name is {v}.", "Nice to meet you, {v}!", "What is my name?", "Your name is {v}.", NAMES),
    ("Hi, I am {v}.", "Nice to meet you, {v}!", "Who am I?", "You are {v}.", NAMES),
    ("I live in {v}.", "{v} sounds like a nice place.", "Where do I live?", "You live in {v}.", CITIES),
    ("My favorite color is {v}.", "I will remember that you like {v}.",
     "What is my favorite color?", "Your favorite color is {v}.", COLORS),
    ("I like to eat {v}.", "I will remember that you like {v}.", "What do I like to eat?",
     "You like to eat {v}.", FOODS),
    ("I work as a {v}.", "That sounds like an interesting job.", "What is my job?",
     "You work as a {v}.", JOBS),
    ("My pet is a {v}.", "How nice! I like animals.", "What pet do I have?", "Your pet is a {v}.", PETS),
    ("My pet is called {v}.", "{v} is a lovely name.", "What is my pet called?",
     "Your pet is called {v}.", PET_NAMES),
    ("Remember the number {v}.", "I will remember the number {v}.", "Which number did I tell you?",
     "You told me the number {v}.", [str(n) for n in range(100)]),
]


@skill("follow-up: memory", 1.4)
def follow_memory(rng: random.Random) -> Sample:
    (tell, reply, ask, answer, pool), other = rng.sample(MEMORIES, 2)
    v, w = rng.choice(pool), rng.choice(other[4])
    history = [(tell.format(v=v), reply.format(v=v))]
    if rng.random() < 0.5:
        history.insert(rng.randint(0, 1), (other[0].format(v=w), other[1].format(v=w)))
    return Sample(ask, answer.format(v=v), f"{history}", history=history)


@skill("follow-up: text", 1.0)
def follow_text(rng: random.Random) -> Sample:
    s = sentence(rng)
    first = rng.choice([(f"Repeat after me: {s}", s), (f"Copy this sentence: {s}", s)])
    q, ans = rng.choice([
        ("Now in uppercase.", s.upper()), ("Now in lowercase.", s.lower()),
        ("Once more.", s), ("Say that again.", s),
        ("How many words are that?", f"That are {len(s.split())} words."),
    ])
    return Sample(q, ans, f"{s}|{q}", history=[first])


SHORT = ("addition", "subtraction", "multiplication", "compare", "capitals", "language", "small talk",
         "units", "weekdays", "spelling", "out of reach", "sort words", "world")


@skill("change of topic", 1.4)
def change_of_topic(rng: random.Random) -> Sample:
    """An unrelated earlier exchange must not disturb the answer."""
    before = draw(rng.choice(SHORT), rng, want_held_out=False)
    name = rng.choice(SHORT)
    sample = SKILLS[name][1](rng)
    sample.split = name
    sample.history = [(before.prompt, before.answer)]
    return sample
