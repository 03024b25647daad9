// The residual stream, what is to be added to it, and its norm.

struct Residual {
    const float* hidden;  // [rows][HIDDEN]
    float* sum;           // where the stream goes on, or null; not `hidden`, which other blocks may still read
    const float* weight;  // of the norm [HIDDEN], (1 + w)
    // Mixer output: k splits of [rows][HIDDEN].
    const float* parts;
    u32 splits;
    u32 rows;
    // Expert output: [rows · TOP_K + rows][HIDDEN] with the weight of each; or null.
    const float* experts;
    const float* weights;      // [rows][TOP_K]
    const float* shared_gate;  // router logits [rows][EXPERTS + 1]: the last one
};

// A copy of the normed row for one product; mirrors `abi::Copy`.
struct Copy {
    u16* hi;            // [rows][HIDDEN_PAD]
    u16* lo;            // or null
    const float* cols;  // column factors of the matrix it feeds, or null
};

constexpr u32 HIDDEN_4 = HIDDEN / 4;  // columns are taken four at a time
static_assert(HIDDEN % 4 == 0, "rows are read four columns at a time");

__device__ __forceinline__ void add(float4& to, float scale, const float4& x) {
    to.x = fmaf(scale, x.x, to.x), to.y = fmaf(scale, x.y, to.y);
    to.z = fmaf(scale, x.z, to.z), to.w = fmaf(scale, x.w, to.w);
}

__device__ __forceinline__ float squares_of(const float4& v) { return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w); }

// Weights of the experts of one row, the shared one's last.
struct Shares { float of[TOP_K + 1]; };

__device__ __forceinline__ Shares expert_shares(const Residual& a, u32 row) {
    Shares w = {};
    if (!a.experts) return w;
#pragma unroll
    for (u32 k = 0; k < TOP_K; k++) w.of[k] = a.weights[row * TOP_K + k];
    w.of[TOP_K] = sigmoid(a.shared_gate[(u64)row * (EXPERTS + 1) + EXPERTS]);
    return w;
}

// Columns 4 i .. of a row with all that is to be added, whose loads are in flight together.
__device__ __forceinline__ float4 residual_sum(const Residual& a, u32 row, u32 i, const Shares& w) {
    float4 v = ((const float4*)a.hidden)[(u64)row * HIDDEN_4 + i];
    const float4* parts = (const float4*)a.parts + (u64)row * HIDDEN_4 + i;
#pragma unroll 4
    for (u32 s = 0; s < a.splits; s++) add(v, 1.0f, parts[(u64)s * a.rows * HIDDEN_4]);
    if (a.experts) {
        const float4* out = (const float4*)a.experts + i;
        float4 y[TOP_K + 1];
#pragma unroll
        for (u32 k = 0; k < TOP_K; k++) y[k] = out[((u64)row * TOP_K + k) * HIDDEN_4];
        y[TOP_K] = out[((u64)a.rows * TOP_K + row) * HIDDEN_4];
        // A weight of zero marks a slot that the coreset left empty; its row holds old values.
#pragma unroll
        for (u32 k = 0; k <= TOP_K; k++)
            if (w.of[k] != 0.0f) add(v, w.of[k], y[k]);
    }
    return v;
}

// Normed columns 4 i .. of a row: `w` is its part of the norm's weight, `cols` the column factors of the matrix
// it is for, or null.
__device__ __forceinline__ float4 normed(const float4& v, float scale, const float4& w, const float* cols, u32 i) {
    float4 y = {v.x * (scale * (1.0f + w.x)), v.y * (scale * (1.0f + w.y)), v.z * (scale * (1.0f + w.z)), v.w * (scale * (1.0f + w.w))};
    if (cols) {
        float4 f = ((const float4*)cols)[i];
        y.x *= f.x, y.y *= f.y, y.z *= f.z, y.w *= f.w;
    }
    return y;
}

// Four halves and, if wanted, their remainders.
__device__ __forceinline__ void store_split4(u16* hi, u16* lo, u64 at, const float4& x) {
    ushort4 h = {to_half(x.x), to_half(x.y), to_half(x.z), to_half(x.w)};
    *(ushort4*)(hi + at) = h;
    if (lo) {
        ushort4 l = {to_half(x.x - from_half(h.x)), to_half(x.y - from_half(h.y)), to_half(x.z - from_half(h.z)), to_half(x.w - from_half(h.w))};
        *(ushort4*)(lo + at) = l;
    }
}
