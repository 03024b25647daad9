// What all products with quantised matrices share: operands, the work of a launch, and where results go.
//
// The weights are the m operand of `mma.m16n8k16` and come from global memory in register order
// (`layout.cuh`); a warp expands them to half and multiplies them with 8-row tiles of activations. Weights
// are exact in half (4-bit and 8-bit integers, halves); scales are applied to f32 accumulators. An
// activation is a half, or with LO the exact sum of two.

__device__ __forceinline__ void mma_tile(float (&c)[4], const u32 (&top)[4], const u32 (&bottom)[4], const uint4& x) {
    mma(c, top[0], bottom[0], top[1], bottom[1], x.x, x.y);
    mma(c, top[2], bottom[2], top[3], bottom[3], x.z, x.w);
}

// What a lane needs of a Q4 matrix's ladders: those of the row whose codes it holds.
struct Ladder { float lo, step; };

template <u32 ENC>
__device__ __forceinline__ Ladder load_ladder(const Matrix& m, u32 tile, u32 lane) {
    if (ENC != Q4) return {0.0f, 0.0f};
    float2 l = __ldg((const float2*)m.scales + tile * 16 + lane / 4 + lane % 2 * 8);
    return {l.x, l.y};
}

// Row scales of Q8 wait for the end: they do not depend on the column.
template <int MT, int NT, u32 ENC>
__device__ __forceinline__ void scale_rows(float (&acc)[MT][NT][4], const Matrix (&m)[MT], const u32 (&tile)[MT], u32 lane) {
    if constexpr (ENC == Q8) {
#pragma unroll
        for (int i = 0; i < MT; i++) {
            const float* scales = m[i].scales + tile[i] * 16 + lane / 4;
            float s0 = __ldg(scales), s1 = __ldg(scales + 8);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                acc[i][n][0] *= s0, acc[i][n][1] *= s0;
                acc[i][n][2] *= s1, acc[i][n][3] *= s1;
            }
        }
    }
}

// One of the matrices of a launch; mirrors `abi::Segment`.
struct Segment {
    Matrix w;
    const u16* hi;    // [rows][stride]
    const u16* lo;    // same, or null
    float* out;       // [k splits][rows][out_stride]
    u32 stride;
    u32 out_stride;
    u32 first_block;  // blockIdx.x of its first band
    u32 pad;
};

struct Dense {
    Segment segments[4];
    u32 count;
    u32 rows;
};

// Row tiles `band` .. of a segment's product with activation rows `row0` .., into this block's split.
template <int MT, int NT>
__device__ __forceinline__ void store_dense(const Dense& a, const Segment& seg, const float (&acc)[MT][NT][4], u32 band, u32 row0, u32 lane) {
    float* out = seg.out + (u64)blockIdx.y * a.rows * seg.out_stride;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                u32 row = row0 + n * 8 + lane % 4 * 2 + c % 2, col = (band + i) * 16 + lane / 4 + c / 2 * 8;
                if (row < a.rows && col < seg.w.rows) out[(u64)row * seg.out_stride + col] = acc[i][n][c];
            }
}

// An expert's matrices; mirrors `abi::Expert`.
struct Expert { Matrix gate, up, down; };

// A launch over a list of experts: all of a layer, or where they are cached some of them.
struct Experts {
    const Expert* experts;  // what `groups.work` numbers: the layer's experts, or the cache's places
    const Expert* shared;   // the layer's shared expert
    Groups groups;
    const u16* hi;     // activations [rows][HIDDEN_PAD] (gate_up) or [pairs][stride] (down)
    const u16* lo;
    u16* act_hi;       // gate_up: [rows · TOP_K + rows][stride], the shared expert's rows last
    u16* act_lo;
    float* out;        // down: [rows · TOP_K + rows][HIDDEN]
    u32 rows;
    u32 stride;        // of `act` rows
    u32 row_tiles;     // gate_up: of a routed expert
    u32 shared_tiles;  // gate_up: of the shared expert; 0 if this launch leaves it out
    u32 listed;        // entries of `groups.work`, at most
    u32 pad;
};

// The rows of one expert.
struct Work {
    const Expert* expert;
    const u32* pairs;  // null: the shared expert, all rows in order
    u32 rows;
    u32 index;         // which part of the expert's output rows

    // Row of `out` or `act` for the expert's n-th row.
    __device__ u32 pair(const Experts& a, u32 n) const { return pairs ? pairs[n] : a.rows * TOP_K + n; }
};

// The shared expert has every row and comes first, so that it does not trail.
__device__ __forceinline__ bool work_at(Work& w, const Experts& a, u32 item, u32 routed, u32 shared) {
    if (item < shared) {
        w = {a.shared, nullptr, a.rows, item};
        return true;
    }
    item -= shared;
    if (item / routed >= a.listed) return false;
    uint4 group = a.groups.work[item / routed];
    w = {a.experts + group.x, a.groups.pairs + group.y, group.z, item % routed};
    return group.z > 0;
}

// silu(gate) · up of one row tile.
template <int NT, bool LO>
__device__ __forceinline__ void store_gated(const Experts& a, const Work& w, const float (&acc)[2][NT][4], u32 band, u32 row0, u32 lane) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 row = row0 + n * 8 + lane % 4 * 2 + c;
            if (row >= w.rows) continue;
            u64 at = (u64)w.pair(a, row) * a.stride + band * 16 + lane / 4;
            store_split(a.act_hi, LO ? a.act_lo : nullptr, at, silu(acc[0][n][c]) * acc[1][n][c]);
            store_split(a.act_hi, LO ? a.act_lo : nullptr, at + 8, silu(acc[0][n][c + 2]) * acc[1][n][c + 2]);
        }
}

template <int NT>
__device__ __forceinline__ void store_down(const Experts& a, const Work& w, const float (&acc)[2][NT][4], u32 band, u32 row0, u32 lane) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 row = row0 + n * 8 + lane % 4 * 2 + c;
            if (row >= w.rows) continue;
            float* to = a.out + (u64)w.pair(a, row) * HIDDEN;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 col = band * 16 + lane / 4 + i * 8;
                if (col < HIDDEN) to[col] = acc[i / 2][n][c + i % 2 * 2];
            }
        }
}
