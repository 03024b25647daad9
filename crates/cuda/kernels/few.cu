// Passes of few rows, which are as long as their chain of launches: products that make their input themselves
// from the residual stream. Every block norms the rows for itself, while its first weights are on their way.

// Normed rows as halves for products, in shared memory, and with LO their remainders behind them. With `keeps`
// the block stores what the stream has come to, and the halves in `copy` if it has a place.
template <u32 THREADS, bool LO>
__device__ __forceinline__ void stage_normed(u16* staged, const Residual& a, const float* cols, bool keeps, const Copy& copy) {
    constexpr u32 TURNS = (HIDDEN_4 + THREADS - 1) / THREADS;
    __shared__ float scratch[32];
    for (u32 row = 0; row < a.rows; row++) {
        Shares shares = expert_shares(a, row);
        float4 x[TURNS], w[TURNS];
        float squares = 0.0f;
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            u32 i = min(threadIdx.x + turn * THREADS, HIDDEN_4 - 1);
            w[turn] = ((const float4*)a.weight)[i];
            x[turn] = residual_sum(a, row, i, shares);
            if (threadIdx.x + turn * THREADS < HIDDEN_4) squares += squares_of(x[turn]);
        }
        float scale = rsqrtf(block_sum(squares, scratch) / HIDDEN + EPS);
        u16 *hi = staged + row * STAGED_STRIDE, *lo = LO ? hi + a.rows * STAGED_STRIDE : nullptr;
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            u32 i = threadIdx.x + turn * THREADS;
            if (i >= HIDDEN_4) break;
            float4 y = normed(x[turn], scale, w[turn], cols, i);
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

template <u32 THREADS> __device__ __forceinline__ void prefetch_norm(const float* weight) {
    for (u32 i = threadIdx.x * 32; i < HIDDEN; i += THREADS * 32) prefetch(weight + i);
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
    u16* staged = (u16*)(shared + REDUCED<MT, 1, WM, WK>);
    prefetch_norm<THREADS>(a.residual.weight);
    dense<MT, WM, WK, 1, SPLIT == 2, true>(a.dense, shared, staged, [&](u32 segment) {
        wait_for_previous();
        stage_normed<THREADS, SPLIT == 2>(staged, a.residual, a.cols[segment], blockIdx.x == 0, {});
    });
}

#define NORMED(name, MT, WM, WK) \
    KERNEL(name, NormedDense, WM * WK * 32) { dense_of_normed<MT, WM, WK>(a); }
NORMED(normed_16, 1, 1, 8)
NORMED(normed_32, 1, 2, 4)
NORMED(normed_64, 2, 2, 4)
NORMED(normed_96, 3, 2, 4)

struct RouteFew {
    Dense dense;        // the router; its input is not read
    Residual residual;
    Copy ffn;           // the experts' input
    Routing routing;
    u32* arrived;       // zero before and after
};

constexpr u32 ROUTE_THREADS = 512;

__device__ __forceinline__ void route(const RouteFew& a) {
    constexpr int SHARES = ROUTE_THREADS / WARP;
    let_next_start();
    DYNAMIC_SHARED(shared);
    u16* staged = (u16*)(shared + REDUCED<1, 1, 1, SHARES>);
    prefetch_norm<ROUTE_THREADS>(a.residual.weight);
    dense<1, 1, SHARES, 1, true, true>(a.dense, shared, staged, [&](u32) {
        wait_for_previous();
        stage_normed<ROUTE_THREADS, true>(staged, a.residual, nullptr, blockIdx.x == 0, a.ffn);
    });
    if (last_to_arrive(a.arrived, gridDim.x)) choose_all(a.routing);
}

// The norm before the experts, the router, and the choice, which the last block makes. Grid: (row tiles of the
// router).
KERNEL(route_few, RouteFew, ROUTE_THREADS) { route(a); }
