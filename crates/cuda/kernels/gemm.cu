// Products of few rows: out[n][m] = sum_k W[m][k] x[n][k].
//
// The warps of a block share the columns of one band of weight rows, so that activations are read once
// per block, and add up in shared memory in a fixed order: results do not depend on timing. All operands
// come straight from global memory.

// Activations of 64 columns of one 8-row tile: lane (n, t) holds columns 8t.. of each half.
struct Rows64 { uint4 x[2]; };

// STAGED rows are in shared memory.
template <bool STAGED>
__device__ __forceinline__ void load_rows(Rows64& b, const u16* row, u32 step, u32 lane) {
    const uint4* p = (const uint4*)(row + step * 64 + lane % 4 * 8);
    b.x[0] = STAGED ? p[0] : __ldg(p);
    b.x[1] = STAGED ? p[4] : __ldg(p + 4);
}

// acc[nt] += tile rows x 64 columns x 8·NT rows.
template <u32 ENC, int NT, bool LO>
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const Packed<ENC>& a, Ladder ladder,
                                         const Rows64 (&hi)[NT], const Rows64 (&lo)[NT], u32 lane) {
    float scale = 0.0f;
    if constexpr (ENC == Q4) scale = rung(ladder.lo, ladder.step, a.code);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 top[4], bottom[4];
        expand(a, j, top, bottom);
        if constexpr (ENC == Q4) {
            float s0 = __shfl_sync(FULL, scale, (lane & ~3u) + 2 * j);
            float s1 = __shfl_sync(FULL, scale, (lane & ~3u) + 2 * j + 1);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                mma_tile(c, top, bottom, hi[nt].x[j]);
                if (LO) mma_tile(c, top, bottom, lo[nt].x[j]);
                acc[nt][0] = fmaf(s0, c[0], acc[nt][0]);
                acc[nt][1] = fmaf(s0, c[1], acc[nt][1]);
                acc[nt][2] = fmaf(s1, c[2], acc[nt][2]);
                acc[nt][3] = fmaf(s1, c[3], acc[nt][3]);
            }
        } else {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                mma_tile(acc[nt], top, bottom, hi[nt].x[j]);
                if (LO) mma_tile(acc[nt], top, bottom, lo[nt].x[j]);
            }
        }
    }
}

template <int MT, int NT, bool LO, u32 ENC> struct Stage {
    Packed<ENC> a[MT];
    Rows64 hi[NT], lo[NT];
};

template <int MT, int NT, bool LO, u32 ENC>
__device__ __forceinline__ void load_weights(Stage<MT, NT, LO, ENC>& s, const Matrix (&m)[MT], const u32 (&tile)[MT], u32 step, u32 lane) {
#pragma unroll
    for (int i = 0; i < MT; i++) load_packed(s.a[i], m[i], tile[i], step, lane);
}

template <int MT, int NT, bool LO, u32 ENC, bool STAGED>
__device__ __forceinline__ void load_inputs(Stage<MT, NT, LO, ENC>& s, const u16* const (&hi)[NT], const u16* const (&lo)[NT], u32 step, u32 lane) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        load_rows<STAGED>(s.hi[n], hi[n], step, lane);
        if (LO) load_rows<STAGED>(s.lo[n], lo[n], step, lane);
    }
}

// Has the weights of a warp's steps first, first + stride, … of a row tile brought to the L2 cache.
__device__ __forceinline__ void prefetch_tile(const Matrix& m, u32 tile, u32 first, u32 stride, u32 end, u32 lane) {
    constexpr u32 LINE = 128;
    static_assert(Q4 == 0 && Q8 == 1 && F16 == 2, "steps double in size");
    u32 bytes = WARP * 16 << m.encoding, lines = bytes / LINE, count = first < end ? (end - first + stride - 1) / stride : 0;
    u64 at = (u64)tile * m.steps;
    for (u32 i = lane; i < count * lines; i += WARP) prefetch(m.tiles + (at + first + i / lines * stride) * bytes + i % lines * LINE);
    if (m.encoding == Q4)
        for (u32 i = lane; i < count; i += WARP) prefetch(m.codes + (at + first + i * stride) * WARP);
}

struct Nothing {
    __device__ void operator()() const {}
};

// A warp's share: steps first, first + stride, … below end, of MT row tiles and NT column tiles. `before` is
// called between the loads of the first weights, which nothing writes, and of the first activations: the
// place to wait for the kernel that writes those.
template <int MT, int NT, bool LO, u32 ENC, bool STAGED = false, class Before = Nothing>
__device__ __forceinline__ void accumulate(float (&acc)[MT][NT][4], const Matrix (&m)[MT], const u32 (&tile)[MT],
                                           const u16* const (&hi)[NT], const u16* const (&lo)[NT],
                                           u32 first, u32 stride, u32 end, u32 lane, const Before& before = {}) {
    Ladder ladder[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) ladder[i] = load_ladder<ENC>(m[i], tile[i], lane);
    Stage<MT, NT, LO, ENC> even, odd;
    if (first < end) load_weights<MT, NT, LO, ENC>(even, m, tile, first, lane);
    before();
    if (first >= end) return;
    load_inputs<MT, NT, LO, ENC, STAGED>(even, hi, lo, first, lane);
    for (u32 step = first; step < end; step += 2 * stride) {
        // The next step's loads are in flight while this one multiplies.
        bool more = step + stride < end;
        if (more) {
            load_weights<MT, NT, LO, ENC>(odd, m, tile, step + stride, lane);
            load_inputs<MT, NT, LO, ENC, STAGED>(odd, hi, lo, step + stride, lane);
        }
#pragma unroll
        for (int i = 0; i < MT; i++) multiply<ENC, NT, LO>(acc[i], even.a[i], ladder[i], even.hi, even.lo, lane);
        if (!more) break;
        if (step + 2 * stride < end) {
            load_weights<MT, NT, LO, ENC>(even, m, tile, step + 2 * stride, lane);
            load_inputs<MT, NT, LO, ENC, STAGED>(even, hi, lo, step + 2 * stride, lane);
        }
#pragma unroll
        for (int i = 0; i < MT; i++) multiply<ENC, NT, LO>(acc[i], odd.a[i], ladder[i], odd.hi, odd.lo, lane);
    }
}

// Steps of weights that a warp has on their way to shared memory in products of up to 8 rows, or 0 where blocks
// have too little of it.
constexpr int SLOTS = SHAMROCK_SLOTS;

// What a lane needs of a step's tile, as pieces of 16 bytes that lie WARP · 16 bytes apart.
template <u32 ENC> constexpr u32 PIECES = ENC == Q8 ? 2 : 4;

// Floats of shared memory that the slots of WARPS warps take.
template <int MT, int WARPS, int COUNT> constexpr u32 SLOTTED = WARPS * COUNT * MT * PIECES<Q8> * WARP * 4;

// `accumulate` with the weights of the next SLOTS steps on their way to shared memory. A lane copies what it will
// read itself, so that no warp waits for another. `slots` is the warp's: [SLOTS][MT][PIECES][WARP].
template <int MT, int NT, bool LO, u32 ENC, bool STAGED, int SLOTS, class Before>
__device__ __forceinline__ void accumulate_deep(float (&acc)[MT][NT][4], const Matrix (&m)[MT], const u32 (&tile)[MT],
                                                const u16* const (&hi)[NT], const u16* const (&lo)[NT],
                                                u32 first, u32 stride, u32 end, u32 lane, uint4* slots, const Before& before) {
    constexpr u32 N = PIECES<ENC>;
    slots += lane;
    auto fetch = [&](u32 step, u32 slot) {
        if (step < end)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (u32 j = 0; j < N; j++)
                    copy_stream(slots + ((slot * MT + i) * N + j) * WARP, m[i].tiles + ((((u64)tile[i] * m[i].steps + step) * N + j) * WARP + lane) * 16);
    };
    // Two chains of products, so that one need not wait for the other, where there are not several anyway.
    constexpr int CHAINS = MT == 1 ? 2 : 1;
    float other[MT][NT][4] = {};
    for (u32 base = first;; base += SLOTS * stride) {
#pragma unroll 1
        for (u32 n = 0; n < SLOTS; n++) fetch(base + n * stride, n);
        end_copy_group();
        if (base == first) before();
        copies_done<0>();
        // Inputs of several steps are on their way at once.
        constexpr int AHEAD = SLOTS < 4 ? SLOTS : 4;
#pragma unroll 1
        for (u32 n0 = 0; n0 < SLOTS && base + n0 * stride < end; n0 += AHEAD) {
            Stage<1, NT, LO, ENC> in[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) load_inputs<1, NT, LO, ENC, STAGED>(in[n], hi, lo, min(base + (n0 + n) * stride, end - 1), lane);
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                if (base + (n0 + n) * stride >= end) break;
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    Packed<ENC> a;
#pragma unroll
                    for (u32 j = 0; j < N; j++) a.w[j] = slots[(((n0 + n) * MT + i) * N + j) * WARP];
                    multiply<ENC, NT, LO>(n % CHAINS ? other[i] : acc[i], a, Ladder{}, in[n].hi, in[n].lo, lane);
                }
            }
        }
        if (base + SLOTS * stride >= end) break;
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int n = 0; n < NT * 4; n++) acc[i][n / 4][n % 4] += other[i][n / 4][n % 4];
}

// Adds the accumulators of the WK warps of a group into the first one's. All warps call it; on
// return only the first warp of each group (`share` 0) holds the sum.
template <int MT, int NT, int WM, int WK>
__device__ __forceinline__ void reduce(float (&acc)[MT][NT][4], float* shared, u32 group, u32 share, u32 lane) {
    constexpr int LEN = MT * NT * 4;
    __syncthreads();  // the previous use of `shared` is over
    if (share > 0) {
        float* to = shared + ((share - 1) * WM + group) * LEN * WARP + lane;
#pragma unroll
        for (int i = 0; i < LEN; i++) to[i * WARP] = acc[i / (NT * 4)][i / 4 % NT][i % 4];
    }
    __syncthreads();
    if (share == 0) {
        for (int w = 0; w < WK - 1; w++) {
            const float* from = shared + (w * WM + group) * LEN * WARP + lane;
#pragma unroll
            for (int i = 0; i < LEN; i++) acc[i / (NT * 4)][i / 4 % NT][i % 4] += from[i * WARP];
        }
    }
}

// Floats that `reduce` needs.
template <int MT, int NT, int WM, int WK> constexpr u32 REDUCED = (WK - 1) * WM * MT * NT * 4 * WARP;

// Halves between rows that are staged in shared memory: two rows of a quarter warp fill all banks.
constexpr u32 STAGED_STRIDE = HIDDEN_PAD + 32;

// A warp's steps first, first + WK, … below end, with as many weights as can be on their way during `before`.
template <int MT, int NT, bool LO, u32 ENC, bool STAGED, int WK, int SLOTS, class Before>
__device__ __forceinline__ void accumulate_waiting(float (&acc)[MT][NT][4], const Matrix (&m)[MT], const u32 (&tile)[MT],
                                                   const u16* const (&hi)[NT], const u16* const (&lo)[NT],
                                                   u32 first, u32 end, u32 lane, uint4* slots, const Before& before) {
    if constexpr (SLOTS > 0) {
        // Wider weights have fewer slots of the same bytes in all.
        constexpr int OWN = ENC == F16 && SLOTS > 1 ? SLOTS / 2 : SLOTS;
        slots += threadIdx.x / WARP * SLOTS * MT * PIECES<Q8> * WARP;
        if (ENC == Q8)
#pragma unroll
            for (int i = 0; i < MT; i++) prefetch(m[i].scales + tile[i] * 16);
        accumulate_deep<MT, NT, LO, ENC, STAGED, OWN>(acc, m, tile, hi, lo, first, WK, end, lane, slots, before);
    } else {
        accumulate<MT, NT, LO, ENC, STAGED>(acc, m, tile, hi, lo, first, WK, end, lane, [&]() {
            if (NT == 1)
#pragma unroll
                for (int i = 0; i < MT; i++) prefetch_tile(m[i], tile[i], first + WK, WK, end, lane);
            before();
        });
    }
    scale_rows<MT, NT, ENC>(acc, m, tile, lane);
}

// Grid: (bands of 16·MT·WM rows, k splits, tiles of 8·NT activation rows); 32·WM·WK threads, which all call
// before(segment): it waits for the kernel before and, where rows are STAGED, puts them to `staged`, in shared
// memory, remainders behind them.
template <int MT, int WM, int WK, int NT, bool LO, bool STAGED, int SLOTS, class Before>
__device__ __forceinline__ void dense(const Dense& a, float* shared, const u16* staged, uint4* slots, const Before& before) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = warp % WM, share = warp / WM;
    u32 s = 0;
    while (s + 1 < a.count && blockIdx.x >= a.segments[s + 1].first_block) s++;
    const Segment& seg = a.segments[s];
    u32 band = (blockIdx.x - seg.first_block) * MT * WM + group * MT;
    Matrix m[MT];
    u32 tile[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) m[i] = seg.w, tile[i] = min(band + i, seg.w.row_tiles - 1);
    const u16 *hi[NT], *lo[NT];
    u32 row0 = blockIdx.z * NT * 8;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        // Staged rows are set apart by half a turn of the banks.
        u32 stride = STAGED ? seg.stride + 32 : seg.stride;
        u64 at = (u64)min(row0 + n * 8 + lane / 4, a.rows - 1) * stride;
        hi[n] = (STAGED ? staged : seg.hi) + at;
        lo[n] = LO ? (STAGED ? staged + a.rows * stride : seg.lo) + at : nullptr;
    }
    u32 per = (seg.w.steps + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * per, end = min(begin + per, seg.w.steps);
    float acc[MT][NT][4] = {};
    u32 first = begin + share;
    auto ready = [&]() { before(s); };
    switch (seg.w.encoding) {
        case Q4: accumulate_waiting<MT, NT, LO, Q4, STAGED, WK, 0>(acc, m, tile, hi, lo, first, end, lane, nullptr, ready); break;
        case Q8: accumulate_waiting<MT, NT, LO, Q8, STAGED, WK, SLOTS>(acc, m, tile, hi, lo, first, end, lane, slots, ready); break;
        default: accumulate_waiting<MT, NT, LO, F16, STAGED, WK, SLOTS>(acc, m, tile, hi, lo, first, end, lane, slots, ready);
    }
    reduce<MT, NT, WM, WK>(acc, shared, group, share, lane);
    if (share > 0) return;
    store_dense<MT, NT>(a, seg, acc, band, row0, lane);
}

template <int MT, int WM, int WK, int NT, bool LO> __device__ __forceinline__ void dense_of_stored(const Dense& a) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    dense<MT, WM, WK, NT, LO, false, NT == 1 ? SLOTS : 0>(a, shared, nullptr, (uint4*)shared, [](u32) { wait_for_previous(); });
}

// Blocks of narrow bands share a multiprocessor where there are many, as in the head.
#define DENSE(name, MT, WM, WK, NT, LO) \
    KERNEL(name, Dense, WM * WK * 32, NT == 1 && MT == 1 && WM == 2 ? 3 : 1) { dense_of_stored<MT, WM, WK, NT, LO>(a); }
#define DENSE_BANDS(NT, LO, suffix)                  \
    DENSE(dense_16_##suffix, 1, 1, 8, NT, LO)        \
    DENSE(dense_32_##suffix, 1, 2, 4, NT, LO)        \
    DENSE(dense_64_##suffix, 2, 2, 4, NT, LO)        \
    DENSE(dense_96_##suffix, 3, 2, 4, NT, LO)
#if SHAMROCK_SPLIT == 1
DENSE_BANDS(1, false, 8)
DENSE_BANDS(2, false, 16)
DENSE_BANDS(4, false, 32)
#endif
DENSE_BANDS(1, true, 8_split)
DENSE_BANDS(2, true, 16_split)
DENSE_BANDS(4, true, 32_split)

// Row tile `band` of gate and up times 8·NT of the expert's rows; steps first, first + stride, ….
template <int NT, bool LO>
__device__ __forceinline__ void gate_up_products(float (&acc)[2][NT][4], const Experts& a, const Work& w, u32 band, u32 row0,
                                                 u32 first, u32 stride, u32 lane) {
    const Matrix m[2] = {w.expert->gate, w.expert->up};
    u32 tile[2] = {band, band};
    const u16 *hi[NT], *lo[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        u32 r = min(row0 + n * 8 + lane / 4, w.rows - 1);
        u64 at = (u64)(w.pairs ? w.pairs[r] / TOP_K : r) * HIDDEN_PAD;
        hi[n] = a.hi + at;
        lo[n] = LO ? a.lo + at : nullptr;
    }
    accumulate<2, NT, LO, EXPERT_ENCODING>(acc, m, tile, hi, lo, first, stride, m[0].steps, lane);
    scale_rows<2, NT, EXPERT_ENCODING>(acc, m, tile, lane);
}

// Row tiles `band` and the next of down, likewise.
template <int NT, bool LO>
__device__ __forceinline__ void down_products(float (&acc)[2][NT][4], const Experts& a, const Work& w, u32 band, u32 row0,
                                              u32 first, u32 stride, u32 lane) {
    const Matrix down = w.expert->down, m[2] = {down, down};
    u32 tile[2] = {min(band, down.row_tiles - 1), min(band + 1, down.row_tiles - 1)};
    const u16 *hi[NT], *lo[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        u64 at = (u64)w.pair(a, min(row0 + n * 8 + lane / 4, w.rows - 1)) * a.stride;
        hi[n] = a.hi + at;
        lo[n] = LO ? a.lo + at : nullptr;
    }
    accumulate<2, NT, LO, EXPERT_ENCODING>(acc, m, tile, hi, lo, first, stride, down.steps, lane);
    scale_rows<2, NT, EXPERT_ENCODING>(acc, m, tile, lane);
}

// For few rows: has this item's part of the expert's down matrix, which the next kernel reads, brought to the
// L2 cache.
__device__ __forceinline__ void prefetch_down(const Experts& a, const Work& w, u32 warp, u32 lane) {
    const Matrix& down = w.expert->down;
    u32 items = w.pairs ? a.row_tiles : a.shared_tiles;
    for (u32 tile = w.index + warp * items; tile < down.row_tiles; tile += 8 * items) prefetch_tile(down, tile, 0, 1, down.steps, lane);
}

// And the weights of the shared expert's item that this block begins with, before it is known which others do.
__device__ __forceinline__ void prefetch_shared(const Experts& a) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (blockIdx.x >= a.shared_tiles) return;
    prefetch_tile(a.shared->gate, blockIdx.x, warp, 8, a.shared->gate.steps, lane);
    prefetch_tile(a.shared->up, blockIdx.x, warp, 8, a.shared->up.steps, lane);
}

// One tile of gate rows and the same tile of up rows, for 8·NT of the expert's rows.
template <int NT, bool LO, bool FEW>
__device__ __forceinline__ void gate_up_tile(const Experts& a, const Work& w, u32 row0, float* shared) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float acc[2][NT][4] = {};
    gate_up_products<NT, LO>(acc, a, w, w.index, row0, warp, 8, lane);
    if (FEW) prefetch_down(a, w, warp, lane);
    reduce<2, NT, 1, 8>(acc, shared, 0, warp, lane);
    if (warp == 0) store_gated<NT, LO>(a, w, acc, w.index, row0, lane);
}

// Tiles of up to WIDEST activation rows.
template <int WIDEST, bool LO> __device__ __forceinline__ void gate_up(const Experts& a) {
    DYNAMIC_SHARED(shared);
    Work w;
    for (u32 item = blockIdx.x; work_at(w, a, item, a.row_tiles, a.shared_tiles); item += gridDim.x)
        for (u32 row0 = 0; row0 < w.rows;)
            if (WIDEST == 8 || w.rows - row0 <= 8) gate_up_tile<1, LO, WIDEST == 8>(a, w, row0, shared), row0 += 8;
            else gate_up_tile<WIDEST / 8, LO, false>(a, w, row0, shared), row0 += WIDEST;
}

// A band of 64 output rows.
template <int NT, bool LO>
__device__ __forceinline__ void down_tile(const Experts& a, const Work& w, u32 row0, float* shared) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = warp % 2, share = warp / 2;
    u32 band = w.index * 4 + group * 2;
    float acc[2][NT][4] = {};
    down_products<NT, LO>(acc, a, w, band, row0, share, 4, lane);
    reduce<2, NT, 2, 4>(acc, shared, group, share, lane);
    if (share == 0) store_down<NT>(a, w, acc, band, row0, lane);
}

template <int WIDEST, bool LO> __device__ __forceinline__ void down(const Experts& a) {
    DYNAMIC_SHARED(shared);
    constexpr u32 BANDS = (HIDDEN + 63) / 64;
    Work w;
    for (u32 item = blockIdx.x; work_at(w, a, item, BANDS, a.shared_tiles ? BANDS : 0); item += gridDim.x)
        for (u32 row0 = 0; row0 < w.rows;)
            if (WIDEST == 8 || w.rows - row0 <= 8) down_tile<1, LO>(a, w, row0, shared), row0 += 8;
            else down_tile<WIDEST / 8, LO>(a, w, row0, shared), row0 += WIDEST;
}

// By the rows of a pass: up to 8, or more but few an expert.
KERNEL(gate_up_8, Experts, 256, 3) {
    let_next_start();
    prefetch_shared(a);
    wait_for_previous();
    gate_up<8, SPLIT == 2>(a);
}
KERNEL(down_8, Experts, 256, 3) { begin(), down<8, SPLIT == 2>(a); }
KERNEL(gate_up_16, Experts, 256, 2) { begin(), gate_up<16, SPLIT == 2>(a); }
KERNEL(down_16, Experts, 256, 2) { begin(), down<16, SPLIT == 2>(a); }
