// Passes of few rows, which are as long as their chain of launches: products that make their input themselves
// from the residual stream. Every block norms the rows for itself, while its first weights are on their way.

// A thread's share of what a norm multiplies by: its weight, and column factors of the matrix it is for. Nothing
// writes them, so they are loaded before the wait.
template <u32 THREADS> struct Scales {
    static constexpr u32 TURNS = (HIDDEN_4 + THREADS - 1) / THREADS;
    float4 of[TURNS];
};

template <u32 THREADS> __device__ __forceinline__ Scales<THREADS> load_scales(const float* weight, const float* cols) {
    Scales<THREADS> s;
#pragma unroll
    for (u32 turn = 0; turn < s.TURNS; turn++) {
        u32 i = min(threadIdx.x + turn * THREADS, HIDDEN_4 - 1);
        float4 w = ((const float4*)weight)[i], f = cols ? ((const float4*)cols)[i] : float4{1.0f, 1.0f, 1.0f, 1.0f};
        s.of[turn] = {(1.0f + w.x) * f.x, (1.0f + w.y) * f.y, (1.0f + w.z) * f.z, (1.0f + w.w) * f.w};
    }
    return s;
}

// Normed rows as halves for products, in shared memory, and with LO their remainders behind them. With `keeps`
// the block stores what the stream has come to, and the halves in `copy` if it has a place.
template <u32 THREADS, bool LO>
__device__ __forceinline__ void stage_normed(u16* staged, const Residual& a, const Scales<THREADS>& scales, bool keeps, const Copy& copy) {
    constexpr u32 TURNS = Scales<THREADS>::TURNS;
    __shared__ float scratch[32];
    for (u32 row = 0; row < a.rows; row++) {
        Shares shares = expert_shares(a, row);
        float4 x[TURNS];
        float squares = 0.0f;
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            x[turn] = residual_sum(a, row, min(threadIdx.x + turn * THREADS, HIDDEN_4 - 1), shares);
            if (threadIdx.x + turn * THREADS < HIDDEN_4) squares += squares_of(x[turn]);
        }
        float scale = rsqrtf(block_sum(squares, scratch) / HIDDEN + EPS);
        u16 *hi = staged + row * STAGED_STRIDE, *lo = LO ? hi + a.rows * STAGED_STRIDE : nullptr;
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            u32 i = threadIdx.x + turn * THREADS;
            if (i >= HIDDEN_4) break;
            float4 f = scales.of[turn], y = {x[turn].x * scale * f.x, x[turn].y * scale * f.y, x[turn].z * scale * f.z, x[turn].w * scale * f.w};
            store_split4(hi, lo, i * 4, y);
            if (!keeps) continue;
            if (a.sum) ((float4*)a.sum)[(u64)row * HIDDEN_4 + i] = x[turn];
            if (copy.hi) store_split4(copy.hi, copy.lo, (u64)row * HIDDEN_PAD + i * 4, y);
        }
        // Columns of the last step behind the row.
        for (u32 i = HIDDEN + threadIdx.x; i < HIDDEN_PAD; i += THREADS) {
            hi[i] = 0;
            if (LO) lo[i] = 0;
        }
    }
    __syncthreads();
}

struct NormedDense {
    Dense dense;          // its segments' inputs are not read
    Residual residual;
    const float* cols[4]; // column factors of each segment, or null
};

// Grid: (bands of rows).
template <int MT, int WM, int WK> __device__ __forceinline__ void dense_of_normed(const NormedDense& a) {
    constexpr u32 THREADS = WM * WK * WARP;
    let_next_start();
    DYNAMIC_SHARED(shared);
    // Sums are handed over where weights were.
    uint4* slots = (uint4*)shared;
    u16* staged = (u16*)(shared + max(REDUCED<MT, 1, WM, WK>, SLOTTED<MT, WM * WK, SLOTS>));
    dense<MT, WM, WK, 1, SPLIT == 2, true, SLOTS>(a.dense, shared, staged, slots, [&](u32 segment) {
        Scales<THREADS> scales = load_scales<THREADS>(a.residual.weight, a.cols[segment]);
        wait_for_previous();
        stage_normed<THREADS, SPLIT == 2>(staged, a.residual, scales, blockIdx.x == 0, {});
    });
}

#define NORMED(name, MT, WM, WK) \
    KERNEL(name, NormedDense, WM * WK * 32, MT == 1 ? 3 : 2) { dense_of_normed<MT, WM, WK>(a); }
NORMED(normed_16, 1, 1, 8)
NORMED(normed_32, 1, 2, 4)
NORMED(normed_64, 2, 2, 4)
NORMED(normed_96, 3, 2, 4)

struct RouteFew {
    Dense dense;        // the router; its input is not read
    Residual residual;
    Copy ffn;           // the experts' input
    Routing routing;
    u32* arrived;       // zero before and after; null: the choice is left to others
};

constexpr u32 ROUTE_THREADS = 512;
constexpr int ROUTE_SLOTS = SLOTS ? 4 : 0;

__device__ __forceinline__ void route(const RouteFew& a) {
    constexpr int SHARES = ROUTE_THREADS / WARP;
    let_next_start();
    DYNAMIC_SHARED(shared);
    uint4* slots = (uint4*)shared;
    u16* staged = (u16*)(shared + max(REDUCED<1, 1, 1, SHARES>, SLOTTED<1, SHARES, ROUTE_SLOTS>));
    dense<1, 1, SHARES, 1, true, true, ROUTE_SLOTS>(a.dense, shared, staged, slots, [&](u32) {
        Scales<ROUTE_THREADS> scales = load_scales<ROUTE_THREADS>(a.residual.weight, nullptr);
        wait_for_previous();
        stage_normed<ROUTE_THREADS, true>(staged, a.residual, scales, blockIdx.x == 0, a.ffn);
    });
    if (a.arrived && last_to_arrive(a.arrived, gridDim.x)) choose_all(a.routing, shared);
}

// The norm before the experts, the router, and the choice, which the last block makes. Grid: (row tiles of the
// router).
KERNEL(route_few, RouteFew, ROUTE_THREADS) { route(a); }
