// The experts of a pass of one row. Every block of the first kernel chooses experts for itself, which is quicker
// than to wait for one block that does; a block of the second has all experts' products for its columns of the
// residual stream and leaves their sum.

struct One {
    Experts experts;
    Routing routing;      // of the one row
    Matrix* picked;       // scratch [TOP_K]: the chosen experts' down
    const u16* low;       // remainders of the experts' input, which `experts` names only where its products take halves of them
    const float* hidden;  // the residual stream [HIDDEN]
    float* sum;           // where it goes on; not `hidden`
};

constexpr u32 ONE_THREADS = 256, ONE_WARPS = ONE_THREADS / WARP;
constexpr u32 THREAD_EXPERTS = (EXPERTS + ONE_THREADS - 1) / ONE_THREADS;

// Bits in the order of their floats.
__device__ __forceinline__ u32 ordered(float x) {
    u32 bits = __float_as_uint(x);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_ordered(u32 x) { return __uint_as_float(x ^ (x >> 31 ? 0x80000000u : 0xffffffffu)); }

// For a block: softmax and choice of a row, into shared memory. Only experts no less likely than the least of the
// warps' best can be among the first ONE_WARPS, and those few are ranked among themselves.
__device__ __forceinline__ void choose_one(const Routing& a, u32* chosen, float* weights) {
    __shared__ u32 tops[ONE_WARPS], count;
    __shared__ float sums[ONE_WARPS];
    __shared__ u64 listed[EXPERTS];  // probability, then the complement of the expert: in the order of choice
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float none = __int_as_float(0xff800000);
    float x[THREAD_EXPERTS], top = none, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < THREAD_EXPERTS; i++) {
        u32 e = threadIdx.x + i * ONE_THREADS;
        x[i] = e < EXPERTS ? a.logits[e] : none;
        top = fmaxf(top, x[i]);
    }
    if (threadIdx.x < TOP_K) chosen[threadIdx.x] = EXPERTS, weights[threadIdx.x] = 0.0f;
    if (threadIdx.x == 0) count = 0;
    u32 best = warp_max_bits(ordered(top)), highest = 0, least = ~0u;
    if (lane == 0) tops[warp] = best;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < ONE_WARPS; w++) highest = max(highest, tops[w]), least = min(least, tops[w]);
    top = from_ordered(highest);
#pragma unroll
    for (u32 i = 0; i < THREAD_EXPERTS; i++) sum += x[i] = expf(x[i] - top);
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < ONE_WARPS; w++) sum += sums[w];
    float bar = TOP_K <= ONE_WARPS ? expf(from_ordered(least) - top) / sum : 0.0f;
#pragma unroll
    for (u32 i = 0; i < THREAD_EXPERTS; i++) {
        u32 e = threadIdx.x + i * ONE_THREADS;
        float p = x[i] / sum;
        if (e >= EXPERTS || p < bar) continue;
        u32 at = atomicAdd(&count, 1u);
        listed[at] = (u64)__float_as_uint(p) << 32 | ~e;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += ONE_THREADS) {
        u64 own = listed[i];
        u32 rank = 0;
#pragma unroll 8
        for (u32 j = 0; j < count; j++) rank += listed[j] > own;
        if (rank < TOP_K) chosen[rank] = ~(u32)own, weights[rank] = __uint_as_float(own >> 32);
    }
    __syncthreads();
}

#if SHAMROCK_EXPERT_ENCODING != 2  // integers, see digits.cuh

// Steps of a warp's weights that are on their way at once.
template <u32 ENC> constexpr int ONE_DEPTH = ENC == Q4 ? 4 : 2;

// For a block: the row's digits into `planes`, [DIGITS][HIDDEN_PAD]. Returns their unit.
template <u32 OWN> __device__ __forceinline__ float put_row(u8* planes, const uint4 (&hi)[OWN], const uint4 (&lo)[OWN]) {
    __shared__ u32 tops[ONE_WARPS];
    float x[OWN][8], largest = 0.0f;
#pragma unroll
    for (u32 n = 0; n < OWN; n++) {
        const u32 h[4] = {hi[n].x, hi[n].y, hi[n].z, hi[n].w}, l[4] = {lo[n].x, lo[n].y, lo[n].z, lo[n].w};
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            x[n][i] = from_half((u16)(h[i / 2] >> i % 2 * 16)) + from_half((u16)(l[i / 2] >> i % 2 * 16));
            largest = fmaxf(largest, fabsf(x[n][i]));
        }
    }
    u32 top = warp_max_bits(__float_as_uint(largest));
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < ONE_WARPS; w++) top = max(top, tops[w]);
    largest = __uint_as_float(top);
#pragma unroll
    for (u32 n = 0; n < OWN; n++) {
        u32 at = (threadIdx.x + n * ONE_THREADS) * 8;
        if (at < HIDDEN_PAD) put8<EXPERT_ENCODING>(planes + at, HIDDEN_PAD, x[n], units_of(largest));
    }
    __syncthreads();
    return largest / LARGEST;
}

__device__ __forceinline__ void gate_up_of_one(const One& a) {
    constexpr u32 ENC = EXPERT_ENCODING;
    constexpr int DEPTH = ONE_DEPTH<ENC>;
    constexpr u32 OWN = (HIDDEN_PAD / 8 + ONE_THREADS - 1) / ONE_THREADS;
    let_next_start();
    __shared__ __align__(16) u8 planes[DIGITS * HIDDEN_PAD];
    __shared__ float parts[2][ONE_WARPS][16];
    __shared__ u32 chosen[TOP_K];
    __shared__ float weights[TOP_K];
    const Experts& x = a.experts;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    bool is_shared = blockIdx.x < x.shared_tiles;
    u32 item = is_shared ? blockIdx.x : blockIdx.x - x.shared_tiles;
    u32 slot = is_shared ? TOP_K : item / x.row_tiles, tile = is_shared ? item : item % x.row_tiles;
    if (is_shared) {
        prefetch_tile(x.shared->gate, tile, warp, ONE_WARPS, x.shared->gate.steps, lane);
        prefetch_tile(x.shared->up, tile, warp, ONE_WARPS, x.shared->up.steps, lane);
    }
    // The table of experts, a line a block.
    if (threadIdx.x == 0 && blockIdx.x * 128 < EXPERTS * sizeof(Expert)) prefetch((const u8*)x.experts + blockIdx.x * 128);
    wait_for_previous();
    // The row, which always has its remainders, for when its weights are on their way.
    uint4 hi[OWN], lo[OWN];
#pragma unroll
    for (u32 n = 0; n < OWN; n++) {
        u32 at = min(threadIdx.x + n * ONE_THREADS, HIDDEN_PAD / 8 - 1);
        hi[n] = ((const uint4*)x.hi)[at], lo[n] = ((const uint4*)a.low)[at];
    }
    choose_one(a.routing, chosen, weights);
    if (blockIdx.x == 0 && threadIdx.x < TOP_K) {
        float total = 0.0f;
#pragma unroll
        for (u32 k = 0; k < TOP_K; k++) total += NORM_TOPK ? weights[k] : 0.0f;
        a.routing.weights[threadIdx.x] = NORM_TOPK ? weights[threadIdx.x] / total : weights[threadIdx.x];
        if (threadIdx.x == 0) *a.routing.distinct += TOP_K;
    }
    const Expert* expert = is_shared ? x.shared : x.experts + min(chosen[min(slot, TOP_K - 1)], EXPERTS - 1);
    const Matrix m[2] = {expert->gate, expert->up};
    if (!is_shared && tile == 0 && threadIdx.x == 0) a.picked[slot] = expert->down;
    Ladder ladder[2] = {load_ladder<ENC>(m[0], tile, lane), load_ladder<ENC>(m[1], tile, lane)};
    Rows acc[2] = {};
    float unit = 0.0f;
    for (u32 base = 0; base < m[0].steps; base += DEPTH * ONE_WARPS) {
        Packed<ENC> w[DEPTH][2];
#pragma unroll
        for (int n = 0; n < DEPTH; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) load_packed(w[n][i], m[i], tile, min(base + n * ONE_WARPS + warp, m[0].steps - 1), lane);
        if (base == 0) unit = put_row<OWN>(planes, hi, lo);
#pragma unroll
        for (int n = 0; n < DEPTH; n++) {
            u32 step = base + n * ONE_WARPS + warp;
            if (step >= m[0].steps) break;
            float scale[2] = {scale_of(w[n][0], ladder[0]), scale_of(w[n][1], ladder[1])};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint2 digits = load_digits(planes + step * 64 + j * 32, HIDDEN_PAD);
#pragma unroll
                for (int i = 0; i < 2; i++) multiply_digits(acc[i], w[n][i], j, scale[i], digits);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        join_digits(acc[i]);
        if (lane % 4 == 0) parts[i][warp][lane / 4] = acc[i].upper, parts[i][warp][lane / 4 + 8] = acc[i].lower;
    }
    // What the next kernel reads of this expert is to be in the cache.
    const Matrix& down = expert->down;
    u32 tiles = is_shared ? x.shared_tiles : x.row_tiles;
    for (u32 t = tile + warp * tiles; t < down.row_tiles; t += ONE_WARPS * tiles) {
        prefetch_tile(down, t, 0, 1, down.steps, lane);
        if (ENC == Q4 && lane == 0) prefetch(down.scales + t * 32);
    }
    __syncthreads();
    if (threadIdx.x >= 16) return;
    float sum[2] = {};
#pragma unroll
    for (u32 w = 0; w < ONE_WARPS; w++) sum[0] += parts[0][w][threadIdx.x], sum[1] += parts[1][w][threadIdx.x];
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] *= ENC == Q8 ? unit * m[i].scales[tile * 16 + threadIdx.x] : unit;
    store_split(x.act_hi, SPLIT == 2 ? x.act_lo : nullptr, (u64)slot * x.stride + tile * 16 + threadIdx.x, silu(sum[0]) * sum[1]);
}

// Grid: (row tiles of the shared expert, then those of each chosen one).
KERNEL(gate_up_one, One, ONE_THREADS, 3) { gate_up_of_one(a); }

// Grid: (row tiles of down).
KERNEL(down_one, One, ONE_THREADS, 2) {
    constexpr u32 ENC = EXPERT_ENCODING;
    constexpr bool LO = SPLIT == 2;
    let_next_start();
    __shared__ float parts[ONE_WARPS][16];
    const Experts& x = a.experts;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, tile[1] = {blockIdx.x};
    u32 col = blockIdx.x * 16 + threadIdx.x;
    const Matrix shared_down = x.shared->down;
    wait_for_previous();
    float before = threadIdx.x < 16 && col < HIDDEN ? a.hidden[col] : 0.0f;
    float shares[TOP_K + 1];
#pragma unroll
    for (u32 k = 0; k < TOP_K; k++) shares[k] = a.routing.weights[k];
    shares[TOP_K] = sigmoid(a.routing.logits[EXPERTS]);
    float total[2] = {};
    // As many experts at a time as there are registers for.
    constexpr u32 GROUP = ENC == Q4 ? 5 : 3;
#pragma unroll
    for (u32 first = 0; first <= TOP_K; first += GROUP) {
        Matrix m[GROUP][1];
        const u16 *hi[GROUP][1], *lo[GROUP][1];
        Ladder ladder[GROUP];
        u32 steps = 0;
#pragma unroll
        for (u32 n = 0; n < GROUP; n++) {
            u32 k = min(first + n, TOP_K);
            m[n][0] = k < TOP_K ? a.picked[k] : shared_down;
            steps = max(steps, m[n][0].steps);
            hi[n][0] = x.act_hi + (u64)k * x.stride, lo[n][0] = x.act_lo + (u64)k * x.stride;
            ladder[n] = load_ladder<ENC>(m[n][0], tile[0], lane);
        }
        for (u32 step = warp; step < steps; step += ONE_WARPS) {
            Packed<ENC> w[GROUP];
#pragma unroll
            for (u32 n = 0; n < GROUP; n++) load_packed(w[n], m[n][0], tile[0], min(step, m[n][0].steps - 1), lane);
#pragma unroll
            for (u32 n = 0; n < GROUP; n++) {
                if (first + n > TOP_K) break;
                if (step >= m[n][0].steps) continue;
                Stage<1, 1, LO, ENC> in;
                load_inputs<1, 1, LO, ENC, false>(in, hi[n], lo[n], step, lane);
                float acc[1][1][4] = {}, share = shares[first + n];
                multiply<ENC, 1, LO>(acc[0], w[n], ladder[n], in.hi, in.lo, lane);
                scale_rows<1, 1, ENC>(acc, m[n], tile, lane);
                if (share != 0.0f) total[0] = fmaf(share, acc[0][0][0], total[0]), total[1] = fmaf(share, acc[0][0][2], total[1]);
            }
        }
    }
    if (lane % 4 == 0) parts[warp][lane / 4] = total[0], parts[warp][lane / 4 + 8] = total[1];
    __syncthreads();
    if (threadIdx.x >= 16 || col >= HIDDEN) return;
#pragma unroll
    for (u32 w = 0; w < ONE_WARPS; w++) before += parts[w][threadIdx.x];
    a.sum[col] = before;
}
#endif
