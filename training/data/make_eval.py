"""Write the held-out tasks.

    python -m data.make_eval ../models/clover-nano.eval.jsonl [--per-skill 10] [--seed 7]

One JSON object per line: id, skill, messages, answer, match ("exact" or "story"), words (story
only), thinking.  No problem in it occurs in training (see `data.sample.held_out`).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import data.skills  # noqa: F401  registers the skills
from data.sample import SKILLS, draw

TRIES = 2000     # a skill with few problems may hold out fewer than asked for


def items(per_skill: int, seed: int):
    for name in SKILLS:
        rng = random.Random(f"{seed}/{name}")
        seen: set[str] = set()
        for _ in range(TRIES):
            if len(seen) == per_skill:
                break
            s = draw(name, rng, want_held_out=True)
            if json.dumps(s.messages) in seen:
                continue
            seen.add(json.dumps(s.messages))
            item = {"id": f"{name.replace(': ', '-').replace(' ', '-')}-{len(seen):02}",
                    "skill": name, "messages": s.messages, "answer": s.answer, "match": s.match,
                    "thinking": s.think is not None}
            if s.match == "story":
                item["words"] = list(s.words)
            yield item


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out", type=Path)
    ap.add_argument("--per-skill", type=int, default=11)
    ap.add_argument("--seed", type=int, default=7)
    a = ap.parse_args()
    lines = [json.dumps(i, ensure_ascii=False) for i in items(a.per_skill, a.seed)]
    a.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} items over {len(SKILLS)} skills")


if __name__ == "__main__":
    main()
