#!/usr/bin/env python3
"""Draws a denoising trace as an animated SVG: masks turning into tokens, pass by pass.

    shamrock run -p PROMPT --without settle --trace trace.jsonl
    shamrock info MODEL --tokenizer > tokenizer.json
    tools/trace-to-svg.py trace.jsonl tokenizer.json --prompt PROMPT > picture.svg

Needs nothing but Python.  The tokenizer must be byte-level BPE.
"""

import argparse
import html
import json

WIDTH = 76          # characters of a line
CHAR, LINE = 8.4, 22  # pixels
SECONDS = 1.1       # a pass
HOLD = 3.0          # the finished answer


def byte_of_char():
    """The alphabet of byte-level BPE: printable bytes stand for themselves, others are shifted."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in plain}
    rest = (b for b in range(256) if b not in plain)
    table.update({chr(256 + i): b for i, b in enumerate(rest)})
    return table


def token_texts(tokenizer):
    table = byte_of_char()
    texts = {}
    for token, i in tokenizer["model"]["vocab"].items():
        texts[i] = bytes(table[c] for c in token).decode("utf-8", "replace") if all(c in table for c in token) else token
    for added in tokenizer["added_tokens"]:
        texts[added["id"]] = "" if added["special"] else added["content"]
    return texts


def colour(confidence):
    """From amber (unsure) to green (sure)."""
    hue = 35 + 105 * max(0.0, min(1.0, (confidence - 0.5) / 0.5))
    return f"hsl({hue:.0f} 65% 42%)"


def cells(events, texts):
    """(text, pass in which it was fixed, confidence) of every emitted token, and the passes."""
    passes, fixed, emitted = 0, {}, sum(e["event"] == "token" for e in events)
    blocks = []
    for e in events:
        if e["event"] != "pass" or e["work"] != "denoise":
            continue
        passes += 1
        if e["step"] == 0:
            blocks.append(e["ids"])
        blocks[-1] = e["ids"]
        for row, token, sure in zip(e["rows"], e["tokens"], e["confidence"]):
            fixed[e["block"], row] = (texts.get(token, ""), passes, sure)
    rows = [fixed[b, r] for b, ids in enumerate(blocks) for r in range(len(ids)) if (b, r) in fixed]
    return [c for c in rows[:emitted] if c[0]], passes


def draw(prompt, tokens, passes):
    total = passes * SECONDS + HOLD
    x, y, body = 0, 3, []

    def appear(at, until=None):
        times = [0, at / total] + ([until / total] if until is not None else [])
        values = ["0", "1"] + (["0"] if until is not None else [])
        if times[1] == 0:
            times, values = times[1:], values[1:]
        return (f'<animate attributeName="opacity" calcMode="discrete" dur="{total:.1f}s" repeatCount="indefinite" '
                f'keyTimes="{";".join(f"{t:.4f}" for t in times)}" values="{";".join(values)}"/>')

    def text(x, y, s, style, extra=""):
        return (f'<text x="{16 + x * CHAR:.1f}" y="{16 + y * LINE}" {style} xml:space="preserve">'
                f"{html.escape(s)}{extra}</text>")

    body.append(text(0, 0, f"> {prompt}"[:WIDTH], 'class="prompt"'))
    for s, fixed_in, sure in tokens:
        for piece in s.replace("\n", "\n\0").split("\0"):
            shown = piece.rstrip("\n")
            if x + len(shown) > WIDTH:
                x, y, shown = 0, y + 1, shown.lstrip(" ")
            at = fixed_in * SECONDS
            body.append(text(x, y, "▒" * len(shown), 'class="mask"', appear(0, at)))
            body.append(text(x, y, shown, f'fill="{colour(sure)}"', appear(at)))
            x += len(shown)
            if piece.endswith("\n"):
                x, y = 0, y + 1
    for k in range(passes + 1):
        until = (k + 1) * SECONDS if k < passes else None
        label = f"pass {k} of {passes}" if k else "a block of masks"
        if k == passes:
            label += f": {len(tokens)} tokens, {len(tokens) / passes:.1f} a pass"
        body.append(text(0, 1.5, label, 'class="label"', appear(k * SECONDS, until)))
    width, height = 32 + WIDTH * CHAR, 32 + (y + 1) * LINE
    style = ("text{font:14px ui-monospace,Menlo,Consolas,monospace}.prompt{fill:#888}.mask{fill:#bbb}"
             ".label{fill:#999;font-size:12px}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}"><style>{style}</style><rect width="100%" height="100%" rx="8" fill="#fbfbf8" '
            f'stroke="#ddd"/>\n' + "\n".join(body) + "\n</svg>")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("tokenizer")
    parser.add_argument("--prompt", default="")
    args = parser.parse_args()
    with open(args.trace, encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    with open(args.tokenizer, encoding="utf-8") as f:
        texts = token_texts(json.load(f))
    print(draw(args.prompt, *cells(events, texts)))


if __name__ == "__main__":
    main()
