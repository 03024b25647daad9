"""Letters and words: case, spelling, counting, copying."""

from __future__ import annotations

import random

from data.sample import Sample, phrase, skill
from data.words import ADJECTIVES, ANIMALS, CITIES, COLORS, JOBS, NAMES, NOUNS, OBJECTS, PLACES

ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr pl st tr".split()
VOWELS = "a e i o u ai ee oo".split()
CODAS = ["", "", "", "n", "r", "s", "t", "l", "m", "k"]


def invented(rng: random.Random) -> str:
    """A pronounceable word that does not exist: spelling has to work beyond known words."""
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
                   for _ in range(rng.randint(1, 3)))


def any_word(rng: random.Random) -> str:
    return invented(rng) if rng.random() < 0.3 else rng.choice(NOUNS)


def sentence(rng: random.Random) -> str:
    return rng.choice([
        "The {a} {n} sleeps near the {p}.", "{N} has a {c} {o}.", "My {n} likes the {p}.",
        "{N} the {j} lives in {C}.", "The {o} is {c}.", "A {a} {n} found the {o}.",
        "We saw a {c} {n} by the {p}.", "{N} and {M} went to the {p}.",
        "There is a {o} under the {a} {n}.", "{N} gave {M} a {o}.",
    ]).format(a=rng.choice(ADJECTIVES), n=rng.choice(ANIMALS), p=rng.choice(PLACES),
              N=rng.choice(NAMES), M=rng.choice(NAMES), c=rng.choice(COLORS),
              o=rng.choice(OBJECTS), j=rng.choice(JOBS), C=rng.choice(CITIES))


def change_case(rng: random.Random, s: str) -> Sample:
    q, ans = phrase(rng, [
        ("Write this in uppercase: {s}", "{up}"),
        ("Write this in capital letters: {s}", "{up}"),
        ("Make this uppercase: {s}", "{up}"),
        ("Write this in lowercase: {s}", "{low}"),
        ("Make this lowercase: {u}", "{low}"),
        ("Capitalize every word: {s}", "{title}"),
    ], s=s, u=s.upper(), up=s.upper(), low=s.lower(),
        title=" ".join(w[:1].upper() + w[1:] for w in s.split(" ")))
    return Sample(q, ans, s, loose=False)


@skill("letter case", 4.0)
def letter_case(rng: random.Random) -> Sample:
    if rng.random() < 0.5:
        return change_case(rng, sentence(rng))
    return change_case(rng, " ".join(rng.choices(NOUNS, k=rng.randint(1, 4))))


@skill("letters", 2.0)
def letters(rng: random.Random) -> Sample:
    w = rng.choice(NOUNS)
    q, ans = phrase(rng, [
        ("List the letters of {w}.", "The letters of {w} are {there}."),
        ("Which letters are in the word {w}?", "The word {w} has the letters {there}."),
        ("List the letters of {w} from last to first.", "From last to first: {back}."),
        ("Write {w} with spaces between the letters.", "{spaced}"),
        ("What is the uppercase form of {w}?", "The uppercase form of {w} is {up}."),
    ], w=w, there=", ".join(w), back=", ".join(reversed(w)), spaced=" ".join(w), up=w.upper())
    return Sample(q, ans)


def spell(rng: random.Random, w: str) -> Sample:
    q, ans = phrase(rng, [
        ("Spell {w}.", "{spelled}"),
        ("Spell the word {w}.", "{w} is spelled {spelled}."),
        ("How do you spell {w}?", "You spell {w} like this: {spelled}."),
        ("Write {w} backwards.", "{w} backwards is {back}."),
        ("Reverse the word {w}.", "{back}"),
        ("What is the first letter of {w}?", "The first letter of {w} is {first}."),
        ("What is the last letter of {w}?", "The last letter of {w} is {last}."),
        ("Which word do these letters spell: {spelled}?", "They spell {w}."),
    ], w=w, spelled="-".join(w), back=w[::-1], first=w[0], last=w[-1])
    return Sample(q, ans, w)


@skill("spelling", 3.2)
def spelling(rng: random.Random) -> Sample:
    return spell(rng, rng.choice(NOUNS))


@skill("invented words", 4.0)
def invented_words(rng: random.Random) -> Sample:
    """Spelling and case of words that were made up: the hard variant of the skills above."""
    w = invented(rng)
    spelled = rng.random() < 0.6
    sample = spell(rng, w) if spelled else change_case(rng, w)
    sample.split = "spelling" if spelled else "letter case"
    return sample


@skill("count letters", 1.8)
def count_letters(rng: random.Random) -> Sample:
    w = any_word(rng)
    letter = rng.choice(w) if rng.random() < 0.8 else rng.choice("aeioust")
    times = w.count(letter)
    q, ans = phrase(rng, [
        ("How many letters are in the word {w}?", "The word {w} has {n} letters."),
        ("How many letters does {w} have?", "{w} has {n} letters."),
        ("Count the letters in {w}.", "{w} has {n} letters."),
        ("How many times does the letter {x} appear in {w}?",
         "The letter {x} appears {k} time{s} in {w}."),
        ("Does the word {w} contain the letter {x}?", "{yes}, {w} {does} the letter {x}."),
    ], w=w, n=len(w), x=letter, k=times, s="" if times == 1 else "s",
        yes="Yes" if times else "No", does="contains" if times else "does not contain")
    return Sample(q, ans, w)


@skill("count words", 1.0)
def count_words(rng: random.Random) -> Sample:
    s = sentence(rng)
    parts = s.rstrip(".").split(" ")
    q, ans = phrase(rng, [
        ("How many words are in this sentence? {s}", "The sentence has {n} words."),
        ("Count the words: {s}", "There are {n} words."),
        ("What is the last word of this sentence? {s}", "The last word is {last}."),
        ("What is the first word of this sentence? {s}", "The first word is {first}."),
    ], s=s, n=len(parts), last=parts[-1], first=parts[0])
    return Sample(q, ans, s, loose=False)


@skill("repeat", 1.0)
def repeat(rng: random.Random) -> Sample:
    s = sentence(rng)
    w = any_word(rng)
    n = rng.randint(2, 6)
    q, ans = phrase(rng, [
        ("Repeat after me: {s}", "{s}"),
        ("Say this again: {s}", "{s}"),
        ("Copy this sentence: {s}", "{s}"),
        ("Say {w}.", "{w}"),
        ("Write {w} {n} times.", "{many}"),
    ], s=s, w=w, n=n, many=" ".join([w] * n))
    return Sample(q, ans, loose=False)


@skill("rewrite", 1.0)
def rewrite(rng: random.Random) -> Sample:
    """Replace one word of a sentence, or change its subject."""
    a, b = rng.sample(ANIMALS, 2)
    c, d = rng.sample(COLORS, 2)
    o, p = rng.choice(OBJECTS), rng.choice(PLACES)
    n = rng.choice(NAMES)
    s = rng.choice(["The {c} {a} is near the {p}.", "{n} drew a {c} {a} with a {o}.",
                    "A {a} found a {c} {o}.", "{n} saw the {c} {a} at the {p}."])
    old = s.format(a=a, c=c, o=o, p=p, n=n)
    q, ans = phrase(rng, [
        ("Replace {a} with {b}: {old}", "{new_animal}"),
        ("Replace {c} with {d}: {old}", "{new_color}"),
        ("Change {a} to {b} in this sentence: {old}", "{new_animal}"),
    ], a=a, b=b, c=c, d=d, old=old, new_animal=s.format(a=b, c=c, o=o, p=p, n=n),
        new_color=s.format(a=a, c=d, o=o, p=p, n=n))
    return Sample(q, ans, loose=False)
