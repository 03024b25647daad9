"""Small Python functions from a description."""

from __future__ import annotations

import random

from data.sample import Sample, skill
from data.words import NOUNS, VERBS

# (description, parameters, body lines); {n} a small number, {w} a word, {x} a letter
FAMILIES = [
    ("adds {n} to a number", "x", ["return x + {n}"]),
    ("subtracts {n} from a number", "x", ["return x - {n}"]),
    ("multiplies a number by {n}", "x", ["return x * {n}"]),
    ("divides a number by {n}", "x", ["return x / {n}"]),
    ("returns the sum of two numbers", "a, b", ["return a + b"]),
    ("returns the difference of two numbers", "a, b", ["return a - b"]),
    ("returns the product of two numbers", "a, b", ["return a * b"]),
    ("returns the larger of two numbers", "a, b", ["return max(a, b)"]),
    ("returns the smaller of two numbers", "a, b", ["return min(a, b)"]),
    ("returns the square of a number", "x", ["return x * x"]),
    ("returns the sum of a list", "items", ["return sum(items)"]),
    ("returns the average of a list", "items", ["return sum(items) / len(items)"]),
    ("returns the largest item of a list", "items", ["return max(items)"]),
    ("returns the smallest item of a list", "items", ["return min(items)"]),
    ("returns the number of items in a list", "items", ["return len(items)"]),
    ("returns the last item of a list", "items", ["return items[-1]"]),
    ("returns the first {n} items of a list", "items", ["return items[:{n}]"]),
    ("returns the last {n} items of a list", "items", ["return items[-{n}:]"]),
    ("sorts a list", "items", ["return sorted(items)"]),
    ("sorts a list in descending order", "items", ["return sorted(items, reverse=True)"]),
    ("reverses a list", "items", ["return items[::-1]"]),
    ("removes duplicates from a list", "items", ["return list(set(items))"]),
    ("keeps the even numbers of a list", "items", ["return [x for x in items if x % 2 == 0]"]),
    ("keeps the odd numbers of a list", "items", ["return [x for x in items if x % 2 == 1]"]),
    ("keeps the numbers greater than {n}", "items", ["return [x for x in items if x > {n}]"]),
    ("keeps the numbers smaller than {n}", "items", ["return [x for x in items if x < {n}]"]),
    ("squares every number of a list", "items", ["return [x * x for x in items]"]),
    ("adds {n} to every number of a list", "items", ["return [x + {n} for x in items]"]),
    ("checks if a number is even", "x", ["return x % 2 == 0"]),
    ("checks if a number is odd", "x", ["return x % 2 == 1"]),
    ("checks if a number is divisible by {n}", "x", ["return x % {n} == 0"]),
    ("checks if a word is a palindrome", "word", ["return word == word[::-1]"]),
    ("checks if a list contains {n}", "items", ["return {n} in items"]),
    ("reverses a string", "text", ["return text[::-1]"]),
    ("makes a string uppercase", "text", ["return text.upper()"]),
    ("makes a string lowercase", "text", ["return text.lower()"]),
    ("counts the letter {x} in a string", "text", ['return text.count("{x}")']),
    ("counts the words in a string", "text", ["return len(text.split())"]),
    ("repeats a string {n} times", "text", ["return text * {n}"]),
    ("checks if a string starts with {x}", "text", ['return text.startswith("{x}")']),
    ("checks if a string ends with {x}", "text", ['return text.endswith("{x}")']),
    ("greets a person by name", "name", ['return f"Hello, {{name}}!"']),
    ("says {w}", "", ['print("{w}")']),
    ("prints {w} {n} times", "", ["for _ in range({n}):", '    print("{w}")']),
    ("prints the numbers from 1 to {n}", "", ["for i in range(1, {m}):", "    print(i)"]),
    ("returns the factorial of n", "n", ["result = 1", "for i in range(2, n + 1):",
                                         "    result *= i", "return result"]),
    ("returns the n-th Fibonacci number", "n", ["a, b = 0, 1", "for _ in range(n):",
                                                "    a, b = b, a + b", "return a"]),
    ("adds up the numbers from 1 to n", "n", ["return n * (n + 1) // 2"]),
    ("returns the absolute value of a number", "x", ["return x if x >= 0 else -x"]),
    ("converts Celsius to Fahrenheit", "c", ["return c * 9 / 5 + 32"]),
    ("returns the area of a rectangle", "width, height", ["return width * height"]),
]


@skill("python", 2.0)
def python(rng: random.Random) -> Sample:
    what, params, body = rng.choice(FAMILIES)
    n = rng.randint(2, 20)
    values = dict(n=n, m=n + 1, w=rng.choice(NOUNS), x=rng.choice("abcdefghiklmnoprstuw"))
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}" if rng.random() < 0.5 else rng.choice(NOUNS)
    what = what.format(**values)
    named, plain = rng.choice([
        ("Write a Python function called {f} that {d}.", "Write a Python function that {d}."),
        ("Write a function {f} in Python that {d}.", "Write a function in Python that {d}."),
        ("Give me a Python function {f} that {d}.", "Give me a Python function that {d}."),
    ])
    has_name = rng.random() < 0.7
    name = name if has_name else "solve"
    lines = [f"def {name}({params}):"] + ["    " + line.format(**values) for line in body]
    return Sample((named if has_name else plain).format(f=name, d=what),
                  "```python\n" + "\n".join(lines) + "\n```", f"{name}|{what}", loose=False)


@skill("python read", 1.4)
def python_read(rng: random.Random) -> Sample:
    a, b = rng.randint(0, 20), rng.randint(2, 12)
    w = rng.choice(NOUNS)
    code, value = rng.choice([
        (f"print({a} + {b})", a + b), (f"print({a + b} - {b})", a), (f"print({b} * 2)", 2 * b),
        (f'print("{w}")', w), (f'print("{w}".upper())', w.upper()), (f'print(len("{w}"))', len(w)),
        (f"print(max({a}, {b}))", max(a, b)), (f"print(min({a}, {b}))", min(a, b)),
        (f"x = {a}\nprint(x + {b})", a + b), (f"x = {a}\ny = {b}\nprint(x + y)", a + b),
    ])
    q = rng.choice(["What does this Python code print?\n{c}", "What is the output of this code?\n{c}"])
    return Sample(q.format(c=code), f"It prints {value}.", code, loose=False)


