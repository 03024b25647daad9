"""Writes encodings.json: payloads and decoded numbers by the formulas of docs/format.md.

    python make.py > encodings.json            (needs numpy)

This is deliberately the plainest way to write them, one number at a time, sharing no idea of
order, vectors or tables with the Rust code. Floating-point numbers are stored as the integers of
their bit patterns.
"""

import json

import numpy as np

f16, f32, f64 = np.float16, np.float32, np.float64
MIN_SCALE = f32(2.0**-14)
np.seterr(over="ignore")


def half(x):
    return f32(f16(x))


def scale(x):
    return max(half(x), MIN_SCALE)


def bits(values):
    return [int(b) for b in np.asarray(values, f32).reshape(-1).view(np.uint32)]


def le16(x):
    return np.asarray(f16(x)).tobytes()


def i8(byte):
    return byte - 256 if byte > 127 else byte


def read16(data, index):
    return f32(np.frombuffer(data[2 * index : 2 * index + 2], "<f2")[0])


# -- decoders ---------------------------------------------------------------


def decode_plain(dtype):
    def decode(data, rows, cols):
        return np.frombuffer(data, dtype).astype(f32)

    return decode


def decode_bf16(data, rows, cols):
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(f32)


def decode_q8_row(data, rows, cols):
    n = rows * cols
    return [f32(i8(data[r * cols + c])) * read16(data[n:], r) for r in range(rows) for c in range(cols)]


def decode_q8_2f(data, rows, cols):
    n = rows * cols
    row, col = data[n : n + 2 * rows], data[n + 2 * rows :]
    return [
        (f32(i8(data[r * cols + c])) * read16(row, r)) * read16(col, c)
        for r in range(rows)
        for c in range(cols)
    ]


def nibble(data, element):
    byte = data[element // 2]
    return f32((byte >> 4 if element % 2 else byte & 15) - 8)


def decode_q4_tiled(data, rows, cols):
    out = []
    for tile in range(rows * cols // 32):
        t = data[18 * tile : 18 * tile + 18]
        out += [nibble(t[2:], e) * read16(t, 0) for e in range(32)]
    return out


def ladder(lo, step):
    t = [f32(np.exp2(f64(lo)))]
    ratio = f32(np.exp2(f64(step)))
    for _ in range(31):
        t.append(f32(t[-1] * ratio))
    return t


def decode_q4tp(data, rows, cols):
    groups = cols // 32
    stride = (5 * groups + 7) // 8
    params = data[rows * groups * 16 :]
    codes = params[4 * rows :]
    out = []
    for r in range(rows):
        t = ladder(read16(params, 2 * r), read16(params, 2 * r + 1))
        packed = int.from_bytes(codes[r * stride : (r + 1) * stride], "little")
        for g in range(groups):
            at = 16 * (r * groups + g)
            rung = t[packed >> (5 * g) & 31]
            out += [nibble(data[at : at + 16], e) * rung for e in range(32)]
    return out


# -- encoders (of the encodings whose payload the format fixes) -----------------


def encode_q8_2f(w):
    rows, cols = w.shape
    total = [f64(0)] * cols
    for start in range(0, rows, 256):
        for c in range(cols):
            part = f64(0)
            for r in range(start, min(start + 256, rows)):
                part = part + f64(w[r, c]) * f64(w[r, c])
            total[c] = total[c] + part
    col = [scale(f32(max(np.sqrt(t / rows), 1e-12))) for t in total]
    quants, row = b"", b""
    for r in range(rows):
        ratio = [f32(w[r, c] / col[c]) for c in range(cols)]
        s = scale(f32(max(max(abs(x) for x in ratio), f32(1e-12)) / f32(127)))
        row += le16(s)
        quants += bytes(int(np.clip(np.rint(f32(x / s)), -127, 127)) & 255 for x in ratio)
    return quants + row + b"".join(le16(c) for c in col)


def encode_q4tp(w):
    rows, cols = w.shape
    groups = cols // 32
    nibbles, params, codes = b"", b"", b""
    for r in range(rows):
        group = [w[r, 32 * g : 32 * g + 32] for g in range(groups)]
        peak = [max(abs(v) for v in g) for g in group]
        level = [f32(np.log2(f64(scale(f32(p / f32(7)))))) for p in peak]
        live = [l for l, p in zip(level, peak) if p > 0] or level[:1]
        lo = half(min(live))
        step = f16(max(f32(max(live) - lo), f32(0)) / f32(31))
        while not (step > 0 and f32(lo + f32(f32(31) * f32(step))) >= max(live)):
            step = np.nextafter(step, f16(np.inf))
        t = ladder(lo, f32(step))
        params += le16(lo) + le16(step)
        packed = 0
        for g in range(groups):
            code = 0
            if peak[g] > 0:
                nominal = int(np.clip(np.rint(f32(f32(level[g] - lo) / f32(step))), 0, 31))
                best = None
                for candidate in range(max(0, nominal - 2), min(31, nominal + 1) + 1):
                    inverse, error = f32(f32(1) / t[candidate]), f32(0)
                    for v in group[g]:
                        q = f32(np.clip(np.rint(f32(v * inverse)), -8, 7))
                        d = f32(v - f32(q * t[candidate]))
                        error = f32(error + f32(d * d))
                    if best is None or error < best:
                        best, code = error, candidate
            packed |= code << (5 * g)
            inverse = f32(f32(1) / t[code])
            q = [int(np.clip(np.rint(f32(v * inverse)), -8, 7)) + 8 for v in group[g]]
            nibbles += bytes(q[2 * n] | q[2 * n + 1] << 4 for n in range(16))
        codes += packed.to_bytes((5 * groups + 7) // 8, "little")
    return nibbles + params + codes


def main():
    random = np.random.default_rng(20)
    vectors = []

    def add(encoding, shape, payload, decode, values=None):
        record = {"encoding": encoding, "shape": shape}
        if values is not None:
            record["values"] = bits(values)
        record["payload"] = payload.hex()
        record["decoded"] = bits(decode(payload, *shape))
        vectors.append(record)

    def weights(rows, cols):
        w = random.standard_normal((rows, cols)) * 0.02
        return (w * 2.0 ** random.uniform(-3, 3, (rows, 1)) * 2.0 ** random.uniform(-2, 2, cols)).astype(f32)

    def halves(n):
        return random.uniform(0.001, 0.1, n).astype(f16).tobytes()

    w = weights(2, 5)
    add("f32", [2, 5], w.tobytes(), decode_plain("<f4"), w)
    add("f16", [2, 5], w.astype(f16).tobytes(), decode_plain("<f2"), w)
    add("bf16", [2, 5], random.bytes(20), decode_bf16)
    add("q8_row", [3, 7], random.bytes(21) + halves(3), decode_q8_row)
    w = weights(300, 3)  # more than one partial sum
    add("q8_2f", [300, 3], encode_q8_2f(w), decode_q8_2f, w)
    w = weights(3, 10)
    w[1] = 0
    w[:, 4] = 0
    add("q8_2f", [3, 10], encode_q8_2f(w), decode_q8_2f, w)
    tiles = b"".join(halves(1) + random.bytes(16) for _ in range(4))
    add("q4_tiled", [2, 64], tiles, decode_q4_tiled)
    w = weights(3, 96)
    w[0, 32:64] = 0  # a group of zeros
    w[1] = 0  # a row of zeros
    add("q4tp", [3, 96], encode_q4tp(w), decode_q4tp, w)
    w = weights(2, 320)
    w[1] *= np.repeat(2.0 ** np.arange(-5, 5), 32).astype(f32)  # the whole ladder
    add("q4tp", [2, 320], encode_q4tp(w), decode_q4tp, w)
    print("[\n" + ",\n".join(json.dumps(v) for v in vectors) + "\n]")


main()
