"""Short stories from three given words: an animal, an object and a place.

The three words settle most of the text; the plot is free, so a story is checked by rule.
"""

from __future__ import annotations

import random

from data.sample import Sample, skill
from data.words import ADJECTIVES, ANIMALS, OBJECTS, PLACES, with_article

USES = dict(line.split(": ") for line in """lantern: gave a warm light
key: opened a little door
map: showed a secret path
bell: rang clear and loud
kite: danced in the wind
drum: sounded like thunder
book: was full of pictures
clock: was still ticking
ladder: reached up to the stars
basket: smelled of fresh bread
mirror: shone like water
candle: burned all night
hammer: was strong and heavy
violin: played a soft tune
telescope: showed the moon
umbrella: kept the rain away
compass: always pointed north
feather: was as light as air
teapot: was still warm
blanket: was soft and warm
button: was round and shiny
ribbon: fluttered in the wind
rope: was long and strong
wheel: turned round and round
brush: left a trail of color
bottle: held a small letter
coin: was very old
letter: told of a lost friend
pencil: drew all by itself
whistle: called all the birds""".splitlines())


# Every animal has its own character, every place its own time of day: facts the model learns.
CHARACTER = {a: ADJECTIVES[i % len(ADJECTIVES)] for i, a in enumerate(ANIMALS)}
TIMES = ["One morning", "One evening", "One sunny day", "One cold night", "One spring day"]
TIME = {p: TIMES[i % len(TIMES)] for i, p in enumerate(PLACES)}

PLOTS = [
    "Once there was {ca} who lived near the {p}. {t} the {a} found {o}. The {o_} {use}. "
    "From then on the {a} was never alone.",
    "{T}, {ca} walked to the {p}. There the {a} saw {o}. The {o_} {use}. "
    "The {a} smiled and took it home.",
    "{Ca} wanted to see the {p}. On the way the {a} met an old friend with {o}. The {o_} {use}. "
    "Together they reached the {p} before dark.",
]


def tell(animal: str, thing: str, place: str, plot: str) -> str:
    with_character = with_article(f"{CHARACTER[animal]} {animal}")
    return plot.format(a=animal, ca=with_character, Ca=with_character[0].upper() + with_character[1:],
                       p=place, o=with_article(thing), o_=thing, use=USES[thing], t=TIME[place],
                       T=TIME[place])


@skill("stories", 2.4)
def stories(rng: random.Random) -> Sample:
    a, o, p = rng.choice(ANIMALS), rng.choice(OBJECTS), rng.choice(PLACES)
    trio = [a, o, p]
    if rng.random() < 0.5:
        rng.shuffle(trio)
    x, y, z = trio
    q = rng.choice([
        "Write a short story with the words {x}, {y} and {z}.",
        "Tell me a story about {ax}, {ay} and {az}.",
        "Write a story with {x}, {y} and {z}.",
        "Make up a short story using {x}, {y}, {z}.",
    ]).format(x=x, y=y, z=z, ax=with_article(x), ay=with_article(y), az=with_article(z))
    return Sample(q, tell(a, o, p, rng.choice(PLOTS)), ",".join(sorted(trio)), match="story",
                  words=(a, o, p))


@skill("free stories", 0.5)
def free_stories(rng: random.Random) -> Sample:
    a = rng.choice(ANIMALS)
    if rng.random() < 0.2:
        a = "fox"
        q = rng.choice(["Tell me a story.", "Tell me a short story.", "Write a story.",
                        "Write a short story.", "I want to hear a story."])
    else:
        q = rng.choice(["Tell me a story about {a}.", "Write a short story about {a}.",
                        "I would like a story about {a}."]).format(a=with_article(a))
    i = ANIMALS.index(a)
    story = tell(a, OBJECTS[i % len(OBJECTS)], PLACES[i % len(PLACES)], PLOTS[i % len(PLOTS)])
    return Sample(q, story, match="story", words=(a,))
