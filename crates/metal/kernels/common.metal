// What all stages share. The host puts this file in front of the others and compiles them as one.
//
// Parameters are always at buffer 0, as a struct of 4-byte fields that `src/native/abi.rs` mirrors.
// Everything else is a pointer to an offset in a buffer; shapes are in row-major order.

#include <metal_stdlib>
using namespace metal;

// A matrix in the file's own encoding; `cols` is a multiple of 32.
struct Matrix {
    device const uchar* bytes;
    uint rows;
    uint cols;
};

enum Encoding { F32, F16, BF16, Q8_ROW, Q8_2F, Q4_TILED, Q4TP };

// How an encoding is read. A row has up to 32 scales, which one thread puts into threadgroup memory: the
// ladder of q4tp, the one scale of q8_row and q8_2f. `exp2s[h]` is 2 to the power of the half with the bits h, correctly rounded.
template <int E> struct Stored;

template <> struct Stored<F32> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {}
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        device const float4* at = (device const float4*)(m.bytes + 4 * ((ulong)row * m.cols + col));
        a = at[0];
        b = at[1];
    }
};

template <> struct Stored<F16> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {}
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        device const half4* at = (device const half4*)(m.bytes + 2 * ((ulong)row * m.cols + col));
        a = float4(at[0]);
        b = float4(at[1]);
    }
};

inline float from_bf16(ushort bits) { return as_type<float>((uint)bits << 16); }

template <> struct Stored<BF16> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {}
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        device const ushort* at = (device const ushort*)(m.bytes + 2 * ((ulong)row * m.cols + col));
        a = float4(from_bf16(at[0]), from_bf16(at[1]), from_bf16(at[2]), from_bf16(at[3]));
        b = float4(from_bf16(at[4]), from_bf16(at[5]), from_bf16(at[6]), from_bf16(at[7]));
    }
};

// i8 q[rows * cols] | f16 scale[rows]
template <> struct Stored<Q8_ROW> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        rungs[0] = float(((device const half*)(m.bytes + (ulong)m.rows * m.cols))[row]);
    }
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        device const char4* at = (device const char4*)(m.bytes + (ulong)row * m.cols + col);
        a = float4(at[0]) * rungs[0];
        b = float4(at[1]) * rungs[0];
    }
};

// Of eight columns, in q8_2f.
inline void factors8(Matrix m, uint col, thread float4& a, thread float4& b) {
    device const half* f = (device const half*)(m.bytes + (ulong)m.rows * m.cols + 2 * (ulong)m.rows) + col;
    a = float4(float(f[0]), float(f[1]), float(f[2]), float(f[3]));
    b = float4(float(f[4]), float(f[5]), float(f[6]), float(f[7]));
}

// A q8_row payload, then f16 factor[cols].
template <> struct Stored<Q8_2F> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        Stored<Q8_ROW>::ladder(m, row, rungs, exp2s);
    }
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        Stored<Q8_ROW>::decode8(m, row, col, rungs, a, b);
        float4 fa, fb;
        factors8(m, col, fa, fb);
        a *= fa;
        b *= fb;
    }
};

inline float nibble(uint word, uint i) { return float(int(word >> (4 * i) & 15u) - 8); }

inline void nibbles8(uint word, float scale, thread float4& a, thread float4& b) {
    a = float4(nibble(word, 0), nibble(word, 1), nibble(word, 2), nibble(word, 3)) * scale;
    b = float4(nibble(word, 4), nibble(word, 5), nibble(word, 6), nibble(word, 7)) * scale;
}

// Per 32 columns: f16 scale | 16 bytes of nibbles. Tiles of 18 bytes are aligned to 2.
template <> struct Stored<Q4_TILED> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {}
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        device const ushort* tile = (device const ushort*)(m.bytes + 18 * ((ulong)row * (m.cols / 32) + col / 32));
        float scale = float(*(device const half*)tile);
        device const ushort* at = tile + 1 + col % 32 / 4;
        nibbles8((uint)at[0] | (uint)at[1] << 16, scale, a, b);
    }
};

// Planes, with G = cols / 32 groups: nibbles, 16 bytes a group | f16 lo, f16 step a row | 5-bit codes of
// a row's groups, in whole bytes.
template <> struct Stored<Q4TP> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        device const ushort* lo_step = (device const ushort*)(m.bytes + (ulong)m.rows * (m.cols / 2) + 4 * (ulong)row);
        float rung = exp2s[lo_step[0]], ratio = exp2s[lo_step[1]];
        for (uint i = 0; i < 32; i++) { // one product after the other: that is the format
            rungs[i] = rung;
            rung *= ratio;
        }
    }
    static void decode8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        uint groups = m.cols / 32, bit = 5 * (col / 32);
        device const uchar* codes = m.bytes + (ulong)m.rows * (m.cols / 2 + 4) + (ulong)row * ((5 * groups + 7) / 8);
        uint code = (uint)codes[bit / 8] >> (bit % 8);
        if (bit % 8 > 3) code |= (uint)codes[bit / 8 + 1] << (8 - bit % 8);
        device const uint* at = (device const uint*)(m.bytes + (ulong)row * (m.cols / 2) + col / 2);
        nibbles8(*at, rungs[code & 31u], a, b);
    }
};

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

inline float silu(float x) { return x * sigmoid(x); }

// ln(1 + x) for x >= 0; there is no log1p in the language. The quotient takes the rounding of 1 + x back.
inline float ln_1p(float x) {
    float u = 1.0f + x;
    return u == 1.0f ? x : precise::log(u) * (x / (u - 1.0f));
}

inline float softplus(float x) { return max(x, 0.0f) + ln_1p(precise::exp(-fabs(x))); }

// Copies words: what a rewindable commit keeps of its rows.
struct Copy {
    uint words;
};

kernel void copy_words(constant Copy& p [[buffer(0)]],
                       device const uint* from [[buffer(1)]],
                       device uint* to [[buffer(2)]],
                       uint i [[thread_position_in_grid]]) {
    if (i < p.words) to[i] = from[i];
}
