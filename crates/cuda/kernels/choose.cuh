// The whole choice of few rows in one block: softmax, coresets, experts, and rows by expert. Everything stays in
// shared memory and registers; what is stored is what other kernels read.

constexpr u32 CHOSEN_ROWS = 64;                     // rows of a pass, at most
constexpr u32 MASK_WORDS = (EXPERTS + 31) / 32;

// Experts of the rows, as bits.
struct Choice {
    u32 of_row[CHOSEN_ROWS][MASK_WORDS];
    u16 experts[CHOSEN_ROWS][TOP_K];  // by slot; EXPERTS where the slot is empty
};

__device__ __forceinline__ bool has(const u32* mask, u32 e) { return mask[e / 32] >> e % 32 & 1; }

// For a warp: the TOP_K largest of `x`, as `top_k` does it, into the row's place.
__device__ __forceinline__ void take_best(Choice& choice, const Routing& a, float (&x)[LANE_EXPERTS], u32 row) {
    u32 lane = threadIdx.x % WARP, key[LANE_EXPERTS], expert = EXPERTS;
    // Probabilities are not negative, so that their bits are in their order.
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++) key[i] = x[i] == NEVER ? 0 : __float_as_uint(x[i]) + 1;
    float prob = 0.0f;
    u32 count = 0;
#pragma unroll 1  // instructions are fetched by one multiprocessor, for little work
    for (; count < TOP_K; count++) {
        u32 best = 0, at = EXPERTS;
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++)
            if (key[i] > best) best = key[i], at = lane + i * WARP;
        u32 highest = warp_max_bits(best);
        if (highest == 0) break;
        at = warp_min_bits(best == highest ? at : EXPERTS);
        if (lane == count) expert = at, prob = __uint_as_float(highest - 1);
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++)
            if (lane + i * WARP == at) key[i] = 0, x[i] = NEVER;
    }
    store_choice(a, row, count, expert, prob);
    if (lane < TOP_K) choice.experts[row][lane] = (u16)expert;
    if (lane < MASK_WORDS) choice.of_row[row][lane] = 0;
    __syncwarp();
    if (lane < count) atomicOr(&choice.of_row[row][expert / 32], 1u << expert % 32);
}

// The experts of `total`s that are positive, as a list in ascending order; returns their number.
__device__ __forceinline__ u32 list_positive(u16* list, const double* total) {
    __shared__ u32 positive[MASK_WORDS];
    u32 lane = threadIdx.x % WARP;
    for (u32 word = threadIdx.x / WARP; word < MASK_WORDS; word += blockDim.x / WARP) {
        u32 e = word * 32 + lane, bits = __ballot_sync(FULL, e < EXPERTS && total[min(e, EXPERTS - 1)] > 0.0);
        if (lane == 0) positive[word] = bits;
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < EXPERTS; e += blockDim.x) {
        if (!has(positive, e)) continue;
        u32 before = __popc(positive[e / 32] & ((1u << lane) - 1));
        for (u32 word = 0; word < e / 32; word++) before += __popc(positive[word]);
        list[before] = (u16)e;
    }
    u32 all = 0;
    for (u32 word = 0; word < MASK_WORDS; word++) all += __popc(positive[word]);
    return all;
}

// For a block: the coreset of a preview, and its rows' choice inside it; the twin of `route_part`.
__device__ __forceinline__ void choose_part(Choice& choice, const Routing& a, const Part& p, const float* probs) {
    __shared__ double total[EXPERTS], sorted[EXPERTS];
    __shared__ u16 list[EXPERTS], order[EXPERTS];
    __shared__ bool kept[EXPERTS];
    u32 quarter = threadIdx.x % 4, lane = threadIdx.x % WARP;
    // Four lanes an expert, each in a fixed order.
    for (u32 base = 0; base < EXPERTS; base += blockDim.x / 4) {
        u32 e = base + threadIdx.x / 4;
        double sum = 0.0;
#pragma unroll 2
        for (u32 r = quarter; r < p.rows; r += 4)
            if (e < EXPERTS && has(choice.of_row[p.row0 + r], e)) sum += (double)probs[(p.row0 + r) * EXPERTS + e];
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        if (e < EXPERTS && quarter == 0) total[e] = sum, kept[e] = false;
    }
    __syncthreads();
    u32 count = list_positive(list, total);
    __syncthreads();
    order_by_mass(order, sorted, total, count, [&](u32 i) { return (u32)list[i]; });
    __syncthreads();
    if (threadIdx.x < WARP) keep_heaviest(kept, order, sorted, count, a.top_p);
    __syncthreads();
    for (u32 r = threadIdx.x / WARP; r < p.rows; r += blockDim.x / WARP) {
        u32 row = p.row0 + r;
        float x[LANE_EXPERTS];
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++) {
            u32 e = lane + i * WARP;
            x[i] = e < EXPERTS && kept[e] ? probs[row * EXPERTS + e] : NEVER;
        }
        take_best(choice, a, x, row);
    }
}

// For a block: the pairs of all rows by expert, those of an expert in the order of their rows; the twin of
// `group_pairs`.
__device__ __forceinline__ void group_chosen(const Choice& choice, const Routing& a) {
    __shared__ u64 rows_of[EXPERTS];
    __shared__ u32 first[EXPERTS];
    for (u32 base = 0; base < EXPERTS; base += blockDim.x / 4) {
        u32 e = base + threadIdx.x / 4, quarter = threadIdx.x % 4;
        u64 rows = 0;
#pragma unroll 2
        for (u32 r = quarter; r < a.rows; r += 4)
            if (e < EXPERTS && has(choice.of_row[r], e)) rows |= 1ull << r;
        rows |= __shfl_xor_sync(FULL, rows, 1);
        rows |= __shfl_xor_sync(FULL, rows, 2);
        if (e < EXPERTS && quarter == 0) rows_of[e] = rows;
    }
    __syncthreads();
    u32 active = list_groups(a, first, [&](u32 e) { return (u32)__popcll(rows_of[e]); });
#pragma unroll 1
    for (u32 i = threadIdx.x; i < a.rows * TOP_K; i += blockDim.x) {
        u32 row = i / TOP_K, e = choice.experts[row][i % TOP_K];
        if (e < EXPERTS) a.groups.pairs[first[e] + __popcll(rows_of[e] & ((1ull << row) - 1))] = i;
    }
#pragma unroll 1
    for (u32 i = active + threadIdx.x; i < EXPERTS; i += blockDim.x) a.groups.work[i] = {0, 0, 0, 0};
    if (threadIdx.x == 0) *a.distinct += active;
}

// `probs`: shared memory for [rows][EXPERTS].
__device__ __forceinline__ void choose_all(const Routing& a, float* probs) {
    __shared__ Choice choice;
    u32 lane = threadIdx.x % WARP;
    for (u32 row = threadIdx.x / WARP; row < a.rows; row += blockDim.x / WARP) {
        float x[LANE_EXPERTS];
        softmax_row(x, a, row);
        if (a.previews)
#pragma unroll
            for (u32 i = 0; i < LANE_EXPERTS; i++)
                if (lane + i * WARP < EXPERTS) probs[row * EXPERTS + lane + i * WARP] = x[i];
        take_best(choice, a, x, row);
    }
    __syncthreads();
    for (u32 i = 0; i < a.previews; i++) {
        choose_part(choice, a, a.parts[i], probs);
        __syncthreads();
    }
    group_chosen(choice, a);
}
