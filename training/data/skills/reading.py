"""Answers from a given paragraph, and JSON from a sentence and back."""

from __future__ import annotations

import json
import random

from data.sample import Sample, phrase, skill
from data.words import (ADJECTIVES, CITIES, COLORS, FOODS, HOBBIES, JOBS, NAMES, OBJECTS, PETS,
                        PET_NAMES, PLACES, with_article)


def person(rng: random.Random, name: str) -> dict:
    return dict(name=name, job=rng.choice(JOBS), city=rng.choice(CITIES), age=rng.randint(18, 80),
                pet=rng.choice(PETS), pet_name=rng.choice(PET_NAMES), color=rng.choice(COLORS),
                hobby=rng.choice(HOBBIES), food=rng.choice(FOODS))


# fact kind -> (ways to state it, ways to ask, the answer)
FACTS = {
    "job": (["{name} is {a_job}.", "{name} works as {a_job}."],
            ["What is {name}'s job?", "What does {name} do?"], "{name} is {a_job}."),
    "city": (["{name} lives in {city}.", "The home of {name} is in {city}."],
             ["Where does {name} live?", "In which city does {name} live?"],
             "{name} lives in {city}."),
    "age": (["{name} is {age} years old.", "{name} turned {age} this year."],
            ["How old is {name}?", "What is the age of {name}?"], "{name} is {age} years old."),
    "pet": (["{name} has a {color} {pet} named {pet_name}.",
             "{name} owns a {color} {pet} called {pet_name}."],
            ["What is the name of {name}'s pet?", "What is {name}'s {pet} called?"],
            "{name}'s {pet} is called {pet_name}."),
    "animal": (["{name} has a {color} {pet} named {pet_name}."],
               ["What pet does {name} have?"], "{name} has a {color} {pet}."),
    "hobby": (["{name} loves {hobby}.", "On weekends {name} enjoys {hobby}."],
              ["What does {name} enjoy?", "What is {name}'s hobby?"], "{name} enjoys {hobby}."),
    "food": (["{name} likes to eat {food}.", "The favorite food of {name} is {food}."],
             ["What does {name} like to eat?", "What is {name}'s favorite food?"],
             "{name} likes to eat {food}."),
}


@skill("reading", 5.0)
def reading(rng: random.Random) -> Sample:
    people = [person(rng, n) for n in rng.sample(NAMES, rng.randint(1, 3))]
    kinds = rng.sample(sorted(set(FACTS) - {"animal"}), 2 if len(people) > 1 else 3)
    if "pet" in kinds and rng.random() < 0.4:
        kinds[kinds.index("pet")] = "animal"
    stated = [(p, kind) for p in people for kind in kinds]
    if rng.random() < 0.5:
        rng.shuffle(stated)
    who, kind = rng.choice(stated)

    def fill(text: str, p: dict) -> str:
        return text.format(**p, a_job=with_article(p["job"]))

    passage = " ".join(fill(rng.choice(FACTS[k][0]), p) for p, k in stated)
    question = fill(rng.choice(FACTS[kind][1]), who)
    shape = rng.choice(["{p}\n{q}", "Read this: {p} {q}", "{p} Question: {q}",
                        "Text: {p}\nQuestion: {q}"])
    return Sample(shape.format(p=passage, q=question), fill(FACTS[kind][2], who),
                  passage, loose=False)


def record(rng: random.Random) -> tuple[dict, list[str]]:
    """A record and the sentences that state it, the canonical one first."""
    kind = rng.randrange(5)
    if kind == 0:
        r = dict(name=rng.choice(NAMES), age=rng.randint(5, 90), city=rng.choice(CITIES))
        s = ["{name} is {age} years old and lives in {city}.",
             "{name} lives in {city} and is {age} years old.",
             "{name}, aged {age}, lives in {city}."]
    elif kind == 1:
        r = dict(item=rng.choice(OBJECTS), color=rng.choice(COLORS), price=rng.randint(1, 99))
        s = ["The {color} {item} costs {price} dollars.", "A {color} {item} for {price} dollars.",
             "For {price} dollars you can buy the {color} {item}."]
    elif kind == 2:
        r = dict(name=rng.choice(NAMES), job=rng.choice(JOBS))
        s = ["{name} works as " + with_article(r["job"]) + ".", "{name} is " + with_article(r["job"]) + "."]
    elif kind == 3:
        r = dict(pet=rng.choice(PETS), name=rng.choice(PET_NAMES), age=rng.randint(1, 15))
        s = ["The {pet} {name} is {age} years old.", "{name} is a {pet}, {age} years old."]
    else:
        r = dict(food=rng.choice(FOODS), count=rng.randint(2, 50), place=rng.choice(PLACES))
        s = ["There are {count} pieces of {food} at the {place}.",
             "At the {place} there are {count} pieces of {food}."]
    return r, [x.format(**r) for x in s]


@skill("json write", 1.6)
def json_write(rng: random.Random) -> Sample:
    r, sentences = record(rng)
    shape = rng.choice(["Write this as JSON: {s}", "Make JSON from this sentence: {s}",
                        "Convert to JSON: {s}", "{s} Give me that as JSON."])
    return Sample(shape.format(s=rng.choice(sentences)), json.dumps(r), json.dumps(r), loose=False)


@skill("json read", 1.4)
def json_read(rng: random.Random) -> Sample:
    r, sentences = record(rng)
    key = rng.choice(list(r))
    q, ans = phrase(rng, [
        ("Write this JSON as a sentence: {j}", "{s}"),
        ("Turn this JSON into a sentence: {j}", "{s}"),
        ("What is the {k} in this JSON? {j}", "The {k} is {v}."),
        ("Which keys does this JSON have? {j}", "The keys are {keys}."),
    ], j=json.dumps(r), s=sentences[0], k=key, v=r[key], keys=", ".join(r))
    return Sample(q, ans, json.dumps(r), loose=False)


@skill("extract", 1.0)
def extract(rng: random.Random) -> Sample:
    """Pull one kind of word out of a sentence."""
    n, m = rng.sample(NAMES, 2)
    c, o, p, a = rng.choice(COLORS), rng.choice(OBJECTS), rng.choice(PLACES), rng.choice(ADJECTIVES)
    k = rng.randint(2, 99)
    s = rng.choice(["{n} and {m} carried a {c} {o} to the {p} in {k} minutes.",
                    "In {k} minutes {n} took the {c} {o} from {m} to the {a} {p}.",
                    "{n} paid {m} {k} dollars for a {c} {o} near the {p}."])
    s = s.format(n=n, m=m, c=c, o=o, p=p, a=a, k=k)
    q, ans = phrase(rng, [
        ("Which color is named in this sentence? {s}", "The color is {c}."),
        ("Which number is in this sentence? {s}", "The number is {k}."),
        ("List the names in this sentence: {s}", "The names are {n} and {m}."),
        ("Which place is named in this sentence? {s}", "The place is the {p}."),
    ], s=s, c=c, k=k, n=n, m=m, p=p)
    return Sample(q, ans, s, loose=False)
