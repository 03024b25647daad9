// Products of many rows: every warp has 32 weight rows and all activation rows of its block's tile.
//
// Activations pass through shared memory, in stages of 128 columns that `cp.async` fills some stages
// ahead, since all warps of a block need them; weights, which only one warp needs, come straight from
// global memory, two steps ahead. Each weight is expanded once for up to 64 activation rows. Nothing is
// handed over between warps, and a row's sum runs over its columns in order, whatever tile it is in.

constexpr u32 WIDE_THREADS = 256, WIDE_WARPS = WIDE_THREADS / WARP;
constexpr u32 STAGES = 4;
constexpr u32 TILE_ROWS = 64;                     // activation rows in a tile; with LO half as many

// A block whose warps form WN columns, with NT tiles of 8 activation rows each, and 8 / WN bands.
template <int NT, int WN, bool LO> struct Stages {
    static constexpr u32 ROWS = NT * WN * 8;
    static constexpr u32 STEPS = 2;            // of 64 columns, in a stage
    static constexpr u32 PIECES = STEPS * 8;   // 16-byte pieces of a row
    static constexpr u32 STRIDE = PIECES + 4;  // two rows of a quarter warp fill all banks
    static constexpr u32 ALL = (LO ? 2 : 1) * ROWS * STRIDE;
};

// Activation rows of a tile and where they come from.
struct RowTile {
    const u16* hi;
    const u16* lo;
    const u32* rows;  // in shared memory: rows of `hi` (and `lo`)
    u32 stride;       // halves between rows
};

// Fills a stage with columns from step `step` on.
template <int NT, int WN, bool LO>
__device__ __forceinline__ void fetch_stage(uint4* stage, const RowTile& from, u32 step, u32 end) {
    using S = Stages<NT, WN, LO>;
#pragma unroll
    for (u32 at = threadIdx.x; at < (LO ? 2 : 1) * S::ROWS * S::PIECES; at += WIDE_THREADS) {
        u32 row = at / S::PIECES, piece = at % S::PIECES;
        if (step + piece / 8 >= end) continue;
        const u16* plane = LO && row >= S::ROWS ? from.lo : from.hi;
        copy_16(stage + row * S::STRIDE + piece, plane + (u64)from.rows[row % S::ROWS] * from.stride + step * 64 + piece * 8);
    }
}

// acc += two row tiles x the stage's columns of one step x 8·NT rows.
template <u32 ENC, int NT, int WN, bool LO>
__device__ __forceinline__ void multiply_wide(float (&acc)[2][NT][4], const Packed<ENC> (&w)[2], const Ladder (&ladder)[2],
                                              const uint4* stage, u32 lane) {
    float scale[2] = {};
    if constexpr (ENC == Q4)
        for (int i = 0; i < 2; i++) scale[i] = rung(ladder[i].lo, ladder[i].step, w[i].code);
    using S = Stages<NT, WN, LO>;
    const uint4* rows = stage + (threadIdx.x / WARP % WN * NT * 8 + lane / 4) * S::STRIDE + lane % 4;
    constexpr int GROUP = NT < 2 ? NT : 2;  // column tiles at a time: independent products side by side
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 top[2][4], bottom[2][4];
        float s[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            expand(w[i], j, top[i], bottom[i]);
            if constexpr (ENC == Q4) {
                s[i][0] = __shfl_sync(FULL, scale[i], (lane & ~3u) + 2 * j);
                s[i][1] = __shfl_sync(FULL, scale[i], (lane & ~3u) + 2 * j + 1);
            }
        }
#pragma unroll
        for (int n0 = 0; n0 < NT; n0 += GROUP) {
            uint4 x[GROUP], y[GROUP];
#pragma unroll
            for (int n = 0; n < GROUP; n++) {
                x[n] = rows[(n0 + n) * 8 * S::STRIDE + j * 4];
                if (LO) y[n] = rows[(NT * WN + n0 + n) * 8 * S::STRIDE + j * 4];
            }
            if constexpr (ENC == Q4) {
                float c[2][GROUP][4];
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int n = 0; n < GROUP; n++)
                        mma_first(c[i][n], top[i][0], bottom[i][0], top[i][1], bottom[i][1], x[n].x, x[n].y);
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int n = 0; n < GROUP; n++) {
                        mma(c[i][n], top[i][2], bottom[i][2], top[i][3], bottom[i][3], x[n].z, x[n].w);
                        if (LO) mma_tile(c[i][n], top[i], bottom[i], y[n]);
                    }
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int n = 0; n < GROUP; n++)
#pragma unroll
                        for (int k = 0; k < 4; k++) acc[i][n0 + n][k] = fmaf(s[i][k / 2], c[i][n][k], acc[i][n0 + n][k]);
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int n = 0; n < GROUP; n++) {
                        mma_tile(acc[i][n0 + n], top[i], bottom[i], x[n]);
                        if (LO) mma_tile(acc[i][n0 + n], top[i], bottom[i], y[n]);
                    }
            }
        }
    }
}

// A warp's two row tiles times 8·NT activation rows, steps first .. end. The whole block calls it;
// warps without `work` only help to fetch. With EARLY the weights of the first steps are on their way
// before the wait for the kernel that writes the activations.
template <u32 ENC, int NT, int WN, bool LO, bool EARLY>
__device__ __forceinline__ void accumulate_wide(float (&acc)[2][NT][4], const Matrix (&m)[2], const u32 (&tile)[2], const RowTile& from,
                                                u32 first, u32 end, bool work, uint4* stages) {
    u32 lane = threadIdx.x % WARP;
    Ladder ladder[2];
    using S = Stages<NT, WN, LO>;
    Packed<ENC> w[S::STEPS][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        ladder[i] = load_ladder<ENC>(m[i], tile[i], lane);
#pragma unroll
        for (u32 s = 0; s < S::STEPS; s++)
            if (first + s < end) load_packed(w[s][i], m[i], tile[i], first + s, lane);
    }
    if (EARLY) wait_for_previous();
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++) {
        if (first + s * S::STEPS < end) fetch_stage<NT, WN, LO>(stages + s * S::ALL, from, first + s * S::STEPS, end);
        end_copy_group();
    }
    u32 at = 0;
    for (u32 step = first; step < end; step += S::STEPS) {
        copies_done<STAGES - 2>();
        __syncthreads();  // this stage is there, and nobody reads the one before any more
        u32 later = step + (STAGES - 1) * S::STEPS, to = at == 0 ? STAGES - 1 : at - 1;
        if (later < end) fetch_stage<NT, WN, LO>(stages + to * S::ALL, from, later, end);
        end_copy_group();
        if (work)
#pragma unroll
            for (u32 s = 0; s < S::STEPS; s++) {
                if (step + s >= end) break;
                multiply_wide<ENC, NT, WN, LO>(acc, w[s], ladder, stages + at * S::ALL + s * 8, lane);
                u32 next = step + s + S::STEPS;
                if (next < end)
#pragma unroll
                    for (int i = 0; i < 2; i++) load_packed(w[s][i], m[i], tile[i], next, lane);
            }
        at = at == STAGES - 1 ? 0 : at + 1;
    }
    scale_rows<2, NT, ENC>(acc, m, tile, lane);
}

// Grid: (bands of 256 weight rows, k splits, tiles of activation rows).
template <int NT, bool LO> __device__ __forceinline__ void dense_wide(const Dense& a) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    __shared__ u32 rows[NT * 8];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 s = 0;
    while (s + 1 < a.count && blockIdx.x >= a.segments[s + 1].first_block) s++;
    const Segment& seg = a.segments[s];
    if (blockIdx.z * NT * 8 >= a.rows) return;
    u32 band = ((blockIdx.x - seg.first_block) * WIDE_WARPS + warp) * 2, row0 = blockIdx.z * NT * 8;
    if (threadIdx.x < NT * 8) rows[threadIdx.x] = min(row0 + threadIdx.x, a.rows - 1);
    __syncthreads();
    const Matrix m[2] = {seg.w, seg.w};
    const u32 tile[2] = {min(band, seg.w.row_tiles - 1), min(band + 1, seg.w.row_tiles - 1)};
    const RowTile from = {seg.hi, seg.lo, rows, seg.stride};
    u32 per = (seg.w.steps + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * per, end = min(begin + per, seg.w.steps);
    float acc[2][NT][4] = {};
    bool work = band < seg.w.row_tiles;
    uint4* stages = (uint4*)shared;
    switch (seg.w.encoding) {
        case Q4: accumulate_wide<Q4, NT, 1, LO, true>(acc, m, tile, from, begin, end, work, stages); break;
        case Q8: accumulate_wide<Q8, NT, 1, LO, true>(acc, m, tile, from, begin, end, work, stages); break;
        default: accumulate_wide<F16, NT, 1, LO, true>(acc, m, tile, from, begin, end, work, stages);
    }
    store_dense<2, NT>(a, seg, acc, band, row0, lane);
}

// Warps of the experts' products: two columns of four bands, so that two blocks fit a multiprocessor.
constexpr u32 EXPERT_WN = 2, EXPERT_BANDS = WIDE_WARPS / EXPERT_WN;

// Activation rows `row0` .. of an expert; with PAIRS rows of `act`, which has one for each pair.
template <bool PAIRS>
__device__ __forceinline__ void tile_rows(u32* rows, u32 count, const Experts& a, const Work& w, u32 row0) {
    __syncthreads();  // the previous tile is done with
    if (threadIdx.x < count) {
        u32 n = min(row0 + threadIdx.x, w.rows - 1), pair = w.pair(a, n);
        rows[threadIdx.x] = PAIRS ? pair : w.pairs ? pair / TOP_K : n;
    }
    __syncthreads();
}

template <int NT, bool LO>
__device__ __forceinline__ void gate_up_wide_tile(const Experts& a, const Work& w, u32 row0, u32* rows, uint4* stages) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, band = w.index * EXPERT_BANDS + warp / EXPERT_WN;
    tile_rows<false>(rows, NT * EXPERT_WN * 8, a, w, row0);
    const Matrix m[2] = {w.expert->gate, w.expert->up};
    u32 at = min(band, m[0].row_tiles - 1);
    const u32 tile[2] = {at, at};
    float acc[2][NT][4] = {};
    bool work = band < m[0].row_tiles;
    accumulate_wide<EXPERT_ENCODING, NT, EXPERT_WN, LO, false>(acc, m, tile, {a.hi, a.lo, rows, HIDDEN_PAD}, 0, m[0].steps, work, stages);
    if (work) store_gated<NT, LO>(a, w, acc, band, row0 + warp % EXPERT_WN * NT * 8, lane);
}

template <int NT, bool LO>
__device__ __forceinline__ void down_wide_tile(const Experts& a, const Work& w, u32 row0, u32* rows, uint4* stages) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, band = (w.index * EXPERT_BANDS + warp / EXPERT_WN) * 2;
    tile_rows<true>(rows, NT * EXPERT_WN * 8, a, w, row0);
    const Matrix down = w.expert->down, m[2] = {down, down};
    const u32 tile[2] = {min(band, down.row_tiles - 1), min(band + 1, down.row_tiles - 1)};
    float acc[2][NT][4] = {};
    bool work = band < down.row_tiles;
    accumulate_wide<EXPERT_ENCODING, NT, EXPERT_WN, LO, false>(acc, m, tile, {a.hi, a.lo, rows, a.stride}, 0, down.steps, work, stages);
    if (work) store_down<NT>(a, w, acc, band, row0 + warp % EXPERT_WN * NT * 8, lane);
}

// Grid: (bands of the shared expert, then of every listed one; shares of their row tiles).
#define WIDE_EXPERTS(name, tile, bands, shared_bands)                                      \
    KERNEL(name, Experts, WIDE_THREADS, 2) {                                               \
        begin();                                                                           \
        DYNAMIC_SHARED(dynamic);                                                           \
        __shared__ u32 rows[TILE_ROWS];                                                    \
        uint4* stages = (uint4*)dynamic;                                                   \
        constexpr bool LO = SPLIT == 2;                                                    \
        constexpr u32 TILE = LO ? TILE_ROWS / 2 : TILE_ROWS;                               \
        Work w;                                                                            \
        if (!work_at(w, a, blockIdx.x, bands, shared_bands)) return;                       \
        for (u32 row0 = blockIdx.y * TILE; row0 < w.rows; row0 += gridDim.y * TILE) {      \
            u32 left = w.rows - row0;                                                      \
            if (left <= TILE / 2) tile<TILE / 32, LO>(a, w, row0, rows, stages);           \
            else tile<TILE / 16, LO>(a, w, row0, rows, stages);                            \
        }                                                                                  \
    }

constexpr u32 DOWN_BANDS = (HIDDEN + 32 * EXPERT_BANDS - 1) / (32 * EXPERT_BANDS);
WIDE_EXPERTS(gate_up_wide, gate_up_wide_tile, (a.row_tiles + EXPERT_BANDS - 1) / EXPERT_BANDS, (a.shared_tiles + EXPERT_BANDS - 1) / EXPERT_BANDS)
WIDE_EXPERTS(down_wide, down_wide_tile, DOWN_BANDS, a.shared_tiles ? DOWN_BANDS : 0)

#if SHAMROCK_SPLIT == 1
KERNEL(dense_wide, Dense, WIDE_THREADS) { dense_wide<8, false>(a); }
#endif
KERNEL(dense_wide_split, Dense, WIDE_THREADS) { dense_wide<4, true>(a); }
