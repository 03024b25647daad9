// Expert choice, the coreset of a block, and rows grouped by expert.

struct Routing {
    const float* logits;  // [rows][EXPERTS + 1]; the last column is the shared expert's gate
    float* probs;         // scratch [rows][EXPERTS]
    u32* chosen;          // [rows][TOP_K], or EXPERTS for an empty slot
    float* weights;       // [rows][TOP_K], 0 for an empty slot
    const Part* parts;
    Groups groups;
    u32* distinct;        // running sum of distinct experts over layers
    u32 rows;
    float top_p;          // of the coreset
    u32 previews;         // choose: parts with a coreset, at `parts`
    u32 pad;
};

constexpr u32 LANE_EXPERTS = (EXPERTS + WARP - 1) / WARP;
constexpr float NEVER = -1.0f;  // below every probability

// The TOP_K largest of `x` (probabilities; lane + 32 i in x[i]) in descending order, lower index
// first on ties. Consumes `x`. Returns how many there are; lane k holds the k-th.
__device__ __forceinline__ u32 top_k(float (&x)[LANE_EXPERTS], u32& expert, float& prob) {
    u32 lane = threadIdx.x % WARP;
    for (u32 k = 0; k < TOP_K; k++) {
        float best = NEVER;
        u32 at = EXPERTS;
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++)
            if (x[i] > best) best = x[i], at = lane + i * WARP;
#pragma unroll
        for (int d = 16; d; d >>= 1) {
            float other = __shfl_xor_sync(FULL, best, d);
            u32 where = __shfl_xor_sync(FULL, at, d);
            if (other > best || (other == best && where < at)) best = other, at = where;
        }
        if (best == NEVER) return k;
        if (lane == k) expert = at, prob = best;
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++)
            if (lane + i * WARP == at) x[i] = NEVER;
    }
    return TOP_K;
}

__device__ __forceinline__ void store_choice(const Routing& a, u32 row, u32 count, u32 expert, float prob) {
    u32 lane = threadIdx.x % WARP;
    float total = NORM_TOPK ? warp_sum(lane < count ? prob : 0.0f) : 1.0f;
    if (lane < TOP_K) {
        a.chosen[row * TOP_K + lane] = lane < count ? expert : EXPERTS;
        a.weights[row * TOP_K + lane] = lane < count ? prob / total : 0.0f;
    }
}

// For a warp: softmax over all experts.
__device__ __forceinline__ void softmax_row(float (&x)[LANE_EXPERTS], const Routing& a, u32 row) {
    u32 lane = threadIdx.x % WARP;
    const float* logits = a.logits + (u64)row * (EXPERTS + 1);
    float top = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++) {
        u32 e = lane + i * WARP;
        x[i] = e < EXPERTS ? logits[e] : __int_as_float(0xff800000);
        top = fmaxf(top, x[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++) sum += x[i] = expf(x[i] - top);
    sum = warp_sum(sum);
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++) x[i] = lane + i * WARP < EXPERTS ? x[i] / sum : NEVER;
}

// For a warp: the row's probabilities and its own choice.
__device__ __forceinline__ void route_row(const Routing& a, u32 row) {
    u32 lane = threadIdx.x % WARP, expert = EXPERTS;
    float x[LANE_EXPERTS], prob = 0.0f;
    softmax_row(x, a, row);
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++)
        if (lane + i * WARP < EXPERTS) a.probs[(u64)row * EXPERTS + lane + i * WARP] = x[i];
    u32 count = top_k(x, expert, prob);
    store_choice(a, row, count, expert, prob);
}

// For a block: the experts expert(0) .. expert(count - 1), which ascend, in descending order of their `total` mass,
// lower expert first on ties. Four lanes an expert.
template <class Expert>
__device__ __forceinline__ void order_by_mass(u16* order, double* sorted, const double* total, u32 count, const Expert& expert) {
    u32 quarter = threadIdx.x % 4;
    for (u32 base = 0; base < count; base += blockDim.x / 4) {
        u32 i = base + threadIdx.x / 4, e = expert(min(i, count - 1)), rank = 0;
        double own = total[e];
#pragma unroll 4
        for (u32 j = quarter; j < count; j += 4) {
            double other = total[expert(j)];
            rank += other > own || (other == own && j < i);
        }
        rank += __shfl_xor_sync(FULL, rank, 1);
        rank += __shfl_xor_sync(FULL, rank, 2);
        if (i < count && quarter == 0) order[rank] = (u16)e, sorted[rank] = own;
    }
}

// For a warp: which of the first `count` experts in `order`, by descending `sorted` mass, are the coreset: one is
// kept while the share of those before it is below top_p; the first always is. A lane walks a run of the order
// behind the sum of the runs before.
__device__ __forceinline__ void keep_heaviest(bool* kept, const u16* order, const double* sorted, u32 count, float top_p) {
    u32 run = (count + WARP - 1) / WARP, first = threadIdx.x % WARP * run, end = min(first + run, count);
    double own = 0.0;
    for (u32 i = first; i < end; i++) own += sorted[i];
    double through = own;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        double before = __shfl_up_sync(FULL, through, d);
        if (threadIdx.x % WARP >= (u32)d) through += before;
    }
    double mass = __shfl_sync(FULL, through, 31), before = through - own;
    double bar = (double)top_p * (mass > 1e-9 ? mass : 1e-9);
    for (u32 i = first; i < end; i++) {
        kept[order[i]] = i == 0 || before < bar;
        before += sorted[i];
    }
}

// For a block: the coreset of a preview, and its rows' choice inside it.
__device__ __forceinline__ void route_part(const Routing& a, const Part& p) {
    constexpr u32 LISTED = 64;  // rows listed at once
    __shared__ double total[EXPERTS], sorted[EXPERTS];
    __shared__ u16 order[EXPERTS];
    __shared__ u32 listed[LISTED * TOP_K];
    __shared__ float probs[LISTED * TOP_K];
    __shared__ bool kept[EXPERTS];
    u32 quarter = threadIdx.x % 4;
    for (u32 e = threadIdx.x; e < EXPERTS; e += blockDim.x) total[e] = 0.0;
    for (u32 r0 = 0; r0 < p.rows; r0 += LISTED) {
        u32 n = min(LISTED, p.rows - r0) * TOP_K;
        __syncthreads();
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            u32 row = p.row0 + r0 + i / TOP_K, e = a.chosen[(p.row0 + r0) * TOP_K + i];
            listed[i] = e;
            probs[i] = e < EXPERTS ? a.probs[(u64)row * EXPERTS + e] : 0.0f;
        }
        __syncthreads();
        // Four lanes an expert, each in a fixed order: sums do not depend on timing.
        for (u32 base = 0; base < EXPERTS; base += blockDim.x / 4) {
            u32 e = base + threadIdx.x / 4;
            double sum = 0.0;
#pragma unroll 8
            for (u32 i = quarter; i < n; i += 4)
                if (listed[i] == e) sum += (double)probs[i];
            sum += __shfl_xor_sync(FULL, sum, 1);
            sum += __shfl_xor_sync(FULL, sum, 2);
            if (e < EXPERTS && quarter == 0) total[e] += sum;
        }
    }
    __syncthreads();
    order_by_mass(order, sorted, total, EXPERTS, [](u32 e) { return e; });
    __syncthreads();
    if (threadIdx.x < WARP) keep_heaviest(kept, order, sorted, EXPERTS, a.top_p);
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    for (u32 r = threadIdx.x / WARP; r < p.rows; r += blockDim.x / WARP) {
        u32 row = p.row0 + r, expert = EXPERTS;
        float x[LANE_EXPERTS], prob = 0.0f;
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++) {
            u32 e = lane + i * WARP;
            x[i] = e < EXPERTS && kept[e] ? a.probs[(u64)row * EXPERTS + e] : NEVER;
        }
        u32 count = top_k(x, expert, prob);
        store_choice(a, row, count, expert, prob);
    }
}

// For a block: lists the experts that have rows, in ascending order, and puts the place of each expert's first pair
// into `first`. `rows_of(expert)` says how many it has. Returns the length of the list, behind a barrier.
template <class Rows> __device__ __forceinline__ u32 list_groups(const Routing& a, u32* first, const Rows& rows_of) {
    __shared__ u32 warp_sums[32];
    // Exclusive scan over experts, of rows (low half) and of active experts (high half).
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, carry = 0;
    for (u32 base = 0; base < EXPERTS; base += blockDim.x) {
        u32 e = base + threadIdx.x, n = e < EXPERTS ? rows_of(e) : 0, x = n | (n ? 1u << 20 : 0);
        u32 sum = x;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            u32 y = __shfl_up_sync(FULL, sum, d);
            if (lane >= d) sum += y;
        }
        if (lane == 31) warp_sums[warp] = sum;
        __syncthreads();
        u32 before = carry;
        for (u32 w = 0; w < warp; w++) before += warp_sums[w];
        u32 start = before + sum - x;
        if (e < EXPERTS) {
            first[e] = start & 0xfffff;
            if (n) a.groups.work[start >> 20] = {e, start & 0xfffff, n, 0};
        }
        for (u32 w = 0; w < blockDim.x / WARP; w++) carry += warp_sums[w];
        __syncthreads();
    }
    return carry >> 20;
}

// For one block: the pairs of all rows by expert. The order inside a group depends on
// timing and nothing else depends on it: pairs are independent.
__device__ __forceinline__ void group_pairs(const Routing& a) {
    __shared__ u32 count[EXPERTS], at[EXPERTS];
    for (u32 e = threadIdx.x; e < EXPERTS; e += blockDim.x) count[e] = 0;
    __syncthreads();
    u32 pairs = a.rows * TOP_K;
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x)
        if (a.chosen[i] < EXPERTS) atomicAdd(&count[a.chosen[i]], 1u);
    __syncthreads();
    u32 active = list_groups(a, at, [&](u32 e) { return count[e]; });
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x)
        if (a.chosen[i] < EXPERTS) a.groups.pairs[atomicAdd(&at[a.chosen[i]], 1u)] = i;
    for (u32 i = active + threadIdx.x; i < EXPERTS; i += blockDim.x) a.groups.work[i] = {0, 0, 0, 0};
    if (threadIdx.x == 0) *a.distinct += active;
}
