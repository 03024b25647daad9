// The residual stream: embedding, adding up what mixers and experts return, and the norms whose
// output feeds the next products.

struct Embed {
    Matrix table;
    const float* cols;  // column factors or null
    const u32* ids;
    float* hidden;      // [rows][HIDDEN]
};

KERNEL(embed, Embed, 256) {
    begin();
    u32 id = a.ids[blockIdx.x];
    for (u32 i = threadIdx.x; i < HIDDEN; i += blockDim.x)
        a.hidden[(u64)blockIdx.x * HIDDEN + i] = decode(a.table, a.cols, id, i);
}

// A copy of the normed row for one product; mirrors `abi::Copy`.
struct Copy {
    u16* hi;            // [rows][HIDDEN_PAD]
    u16* lo;            // or null
    const float* cols;  // column factors of the matrix it feeds, or null
};

struct Norm {
    float* hidden;        // [rows][HIDDEN], updated when anything is added
    const float* weight;  // [HIDDEN], (1 + w)
    // Mixer output: k splits of [rows][HIDDEN].
    const float* parts;
    u32 splits;
    u32 rows;
    // Expert output: [rows · TOP_K + rows][HIDDEN] with the weight of each.
    const float* experts;
    const float* weights;      // [rows][TOP_K]
    const float* shared_gate;  // router logits [rows][EXPERTS + 1]: the last one
    const u32* chosen;         // rows to norm, or null for all; then nothing is stored in `hidden`
    Copy copies[3];
    u32 copy_count;
    u32 pad;
};

__device__ __forceinline__ void add(float4& to, float scale, const float4& x) {
    to.x = fmaf(scale, x.x, to.x), to.y = fmaf(scale, x.y, to.y);
    to.z = fmaf(scale, x.z, to.z), to.w = fmaf(scale, x.w, to.w);
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

// Grid: (rows). Four columns a thread and turn, all loads of a turn in flight together.
KERNEL(rms_norm, Norm, 512) {
    static_assert(HIDDEN % 4 == 0, "rows are read four columns at a time");
    __shared__ float scratch[32];
    __shared__ float4 x[HIDDEN / 4];
    let_next_start();
    float4 norm_weight = ((const float4*)a.weight)[min(threadIdx.x, HIDDEN / 4 - 1)];
    wait_for_previous();
    u32 row = a.chosen ? a.chosen[blockIdx.x] : blockIdx.x;
    float4* hidden = (float4*)(a.hidden + (u64)row * HIDDEN);
    float weights[TOP_K + 1];
    if (a.experts) {
#pragma unroll
        for (u32 k = 0; k < TOP_K; k++) weights[k] = a.weights[row * TOP_K + k];
        weights[TOP_K] = sigmoid(a.shared_gate[(u64)row * (EXPERTS + 1) + EXPERTS]);
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < HIDDEN / 4; i += blockDim.x) {
        float4 v = hidden[i];
        const float4* parts = (const float4*)(a.parts + (u64)row * HIDDEN) + i;
#pragma unroll 4
        for (u32 s = 0; s < a.splits; s++) add(v, 1.0f, parts[(u64)s * a.rows * (HIDDEN / 4)]);
        if (a.experts) {
            const float4* out = (const float4*)(a.experts + (u64)row * TOP_K * HIDDEN) + i;
            float4 y[TOP_K + 1];
#pragma unroll
            for (u32 k = 0; k < TOP_K; k++) y[k] = out[k * (HIDDEN / 4)];
            y[TOP_K] = ((const float4*)(a.experts + ((u64)a.rows * TOP_K + row) * HIDDEN))[i];
            // A weight of zero marks a slot that the coreset left empty; its row holds old values.
#pragma unroll
            for (u32 k = 0; k <= TOP_K; k++)
                if (weights[k] != 0.0f) add(v, weights[k], y[k]);
        }
        if (!a.chosen && (a.experts || a.splits)) hidden[i] = v;
        x[i] = v;
        squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    float scale = rsqrtf(block_sum(squares, scratch) / HIDDEN + EPS);
    for (u32 i = threadIdx.x; i < HIDDEN / 4; i += blockDim.x) {
        float4 v = x[i], w = i == threadIdx.x ? norm_weight : ((const float4*)a.weight)[i];
        v.x *= scale * (1.0f + w.x), v.y *= scale * (1.0f + w.y);
        v.z *= scale * (1.0f + w.z), v.w *= scale * (1.0f + w.w);
#pragma unroll
        for (u32 c = 0; c < 3; c++) {
            if (c >= a.copy_count) break;
            const Copy& copy = a.copies[c];
            float4 y = v;
            if (copy.cols) {
                float4 f = ((const float4*)copy.cols)[i];
                y.x *= f.x, y.y *= f.y, y.z *= f.z, y.w *= f.w;
            }
            store_split4(copy.hi, copy.lo, (u64)blockIdx.x * HIDDEN_PAD + i * 4, y);
        }
    }
}
