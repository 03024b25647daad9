#!/usr/bin/env python3
"""Accuracy and tokens per pass of a model: a table and a plot.

    tools/eval-curves.py [--shamrock PROGRAM] [--backend NAME] [--limit N] [--rules [RULE ...]]
                         MODEL [MODEL ...]

Runs `shamrock eval --json` for every model in causal mode, in draft mode and in denoise mode at
several thresholds, and writes docs/evaluation.md and docs/evaluation.svg.  With --rules it runs denoise
mode with every rule for fixing rows at several parameters (and the RULEs given, say from
calibrate-positions.py), and writes docs/rules.md and docs/rules.svg.  Needs nothing but Python.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess

THRESHOLDS = [0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
RULES = {
    "threshold": ["0.5", "0.7", "0.9", "0.99"],
    "margin": ["0.3", "0.6", "0.9", "0.98"],
    "entropy": ["3", "1", "0.3", "0.03"],
    "budget": ["2", "0.7", "0.2", "0.02"],
    "left": ["0.5,0.9", "0.5,0.7", "0.5,0.4", "0.8,0.4"],
    "remask": ["0.3,0.7", "0.3,0.9", "0.5,0.99", "0.9,0.99"],
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLOURS = ["#2a7f4f", "#b5542c", "#3465a4", "#75507b", "#c4a000", "#555753", "#cc2277"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 400, 64, 36, 52


def evaluate(args, model, mode, threshold=None, rule=None):
    command = [args.shamrock, "eval", model, "--mode", mode, "--json"]
    command += ["--threshold", str(threshold)] if threshold is not None else []
    command += ["--rule", rule] if rule else []
    command += ["--limit", str(args.limit)] if args.limit else []
    command += ["--tasks", args.tasks, "--backend", args.backend]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    name, _, parameters = (rule or "").partition(":")
    return {"model": os.path.basename(model), "mode": mode, "threshold": threshold, "rule": name,
            "parameters": parameters, **result}


def rule_row(r):
    cells = [r["rule"], r["parameters"].replace(",", ", "), f"{100 * r['accuracy']:.1f}%",
             f"{r['tokens_per_pass']:.2f}", f"{r['passes_per_block']:.2f}"]
    return "| " + " | ".join(cells) + " |"


def row(r):
    cells = [r["model"], r["mode"], "" if r["threshold"] is None else f"{r['threshold']}",
             f"{100 * r['accuracy']:.1f}%", f"{r['tokens_per_pass']:.2f}",
             f"{r['passes_per_block']:.2f}" if r["mode"] == "denoise" else ""]
    return "| " + " | ".join(cells) + " |"


def plot(results, series="model"):
    """Accuracy (up) against tokens per pass (right); denoise as a line over its parameters."""
    right = max(r["tokens_per_pass"] for r in results) * 1.08
    low = min(r["accuracy"] for r in results) - 0.02

    def at(r):
        x = LEFT + r["tokens_per_pass"] / right * (WIDTH - LEFT - 24)
        y = TOP + (1 - (r["accuracy"] - low) / (1 - low)) * (HEIGHT - TOP - BOTTOM)
        return x, y

    def label(x, y, s, anchor="start", fill="#333"):
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{fill}">{s}</text>'

    out = ['<rect width="100%" height="100%" fill="#fff"/>']
    for i in range(5):
        value = low + (1 - low) * i / 4
        y = TOP + (1 - i / 4) * (HEIGHT - TOP - BOTTOM)
        out.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - 24}" stroke="#e4e4e4"/>')
        out.append(label(LEFT - 6, y + 4, f"{100 * value:.1f}%", "end"))
    for tokens in range(0, int(right) + 1, 2):
        x = LEFT + tokens / right * (WIDTH - LEFT - 24)
        out.append(label(x, HEIGHT - BOTTOM + 18, str(tokens), "middle"))
    out.append(label(WIDTH / 2, HEIGHT - 12, "tokens per pass", "middle"))
    out.append(label(LEFT - 50, 20, "right answers"))
    for i, name in enumerate(dict.fromkeys(r[series] for r in results)):
        own = [r for r in results if r[series] == name]
        line = [at(r) for r in own if r["mode"] == "denoise"]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
        out.append(f'<path d="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>')
        out.append(label(LEFT + 24, TOP + 120 + 18 * i, name, "start", COLOURS[i]))
        for r in own:
            x, y = at(r)
            point = r["mode"] if r["threshold"] is None else f"{r['threshold']}"
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[i]}"/>')
            if i == 0:
                out.append(label(x + 6, y - 8, r["parameters"] or point))
    style = "<style>text{font:12px system-ui,sans-serif}</style>"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}">{style}' + "\n".join(out) + "</svg>\n")


def page(args, results):
    command = "tools/eval-curves.py " + (f"--limit {args.limit} " if args.limit else "")
    command += " ".join(os.path.basename(m) for m in args.models)
    return "\n".join([
        "# Evaluation",
        "",
        f"Made by `{command}` on {datetime.date.today()}, {platform.machine()}, "
        f"{results[0]['tasks']} held-out tasks, greedy, backend {args.backend}.",
        "",
        "![Right answers against tokens per pass](evaluation.svg)",
        "",
        "Tokens per pass counts the passes that decide tokens: previews, verifications, causal steps.",
        "",
        "| model | mode | threshold | right | tokens per pass | previews per block |",
        "|---|---|---|---|---|---|",
        *map(row, results),
        "",
    ])


def rules_page(args, results):
    command = f"tools/eval-curves.py --limit {args.limit} --rules " if args.limit else "tools/eval-curves.py --rules "
    command += " ".join([*args.rules, "--", *(os.path.basename(m) for m in args.models)])
    return "\n".join([
        "# Rules for fixing rows, measured",
        "",
        f"Made by `{command}` on {datetime.date.today()}, {platform.machine()}, "
        f"{results[0]['tasks']} held-out tasks, greedy, denoise mode, backend {args.backend}. One task is "
        f"{100 / results[0]['tasks']:.1f} points. The rules: [generation.md](generation.md#rules-for-fixing-rows).",
        "",
        "![Right answers against tokens per pass](rules.svg)",
        "",
        "| rule | parameters | right | tokens per pass | previews per block |",
        "|---|---|---|---|---|",
        *map(rule_row, results),
        "",
    ])


def write(name, text):
    with open(os.path.join(ROOT, "docs", name), "w", encoding="utf-8") as f:
        f.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--shamrock", default=os.path.join(ROOT, "target/release/shamrock"))
    parser.add_argument("--tasks", default=os.path.join(ROOT, "models/clover-nano.eval.jsonl"))
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rules", nargs="*")
    args = parser.parse_args()
    if args.rules is not None:
        rules = [f"{name}:{x}" for name, parameters in RULES.items() for x in parameters] + args.rules
        results = [evaluate(args, args.models[0], "denoise", rule=rule) for rule in rules]
        write("rules.md", rules_page(args, results))
        write("rules.svg", plot(results, "rule"))
        return
    results = []
    for model in args.models:
        results += [evaluate(args, model, "causal"), evaluate(args, model, "draft")]
        results += [evaluate(args, model, "denoise", t) for t in THRESHOLDS]
    write("evaluation.md", page(args, results))
    write("evaluation.svg", plot(results))


if __name__ == "__main__":
    main()
