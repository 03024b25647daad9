// Commits of few rows in one launch: what `gdn_prepare`, `gdn_recur` and `gdn_gate` do in three, with the
// same sums in the same order.
//
// A block has one value head of one part. Its memory goes to registers, and what else no kernel of this
// pass writes to the cache, while the kernel before still runs. Heads that share a key head compute its q
// and k each for themselves, so the channels of a key head in the ring may change only when all of them have
// been read: the last block to come by does it.
#if SHAMROCK_VALUE_DIM <= 128  // beyond, a block would have too few registers

struct Step {
    Mixer mixer;
    u32* arrived;  // [commit parts][KEY_HEADS], all zero before and after
};

constexpr u32 STEP_ROWS = 8;  // of a part, at most
constexpr u32 STEP_THREADS = 4 * DV, STEP_WARPS = STEP_THREADS / WARP;
constexpr u32 SHARERS = VALUE_HEADS / KEY_HEADS;

// Grid: (VALUE_HEADS, commit parts).
KERNEL(gdn_step, Step, STEP_THREADS) {
    let_next_start();
    __shared__ __align__(16) float q[STEP_ROWS][DK], k[STEP_ROWS][DK];
    __shared__ float v[STEP_ROWS][DV], z[STEP_ROWS][DV], read[STEP_ROWS][DV];
    __shared__ float decay[STEP_ROWS], beta[STEP_ROWS];
    __shared__ bool last;

    const Mixer& m = a.mixer;
    const Part p = m.parts[blockIdx.y];
    u32 head = blockIdx.x, key = head / SHARERS, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 q_first = key * DK, k_first = KEY_WIDTH + key * DK, v_first = 2 * KEY_WIDTH + head * DV;
    float* ring = p.gdn + (u64)m.layer * GDN_STATE;
    u32 col = threadIdx.x / 4, quarter = threadIdx.x % 4;
    float* memory = ring + RING * CHANNELS + (u64)head * DK * DV + quarter * 4 * DV + col;
    float s[LANE_DIMS];
#pragma unroll
    for (u32 j = 0; j < LANE_DIMS; j++) s[j] = memory[(j / 4 * 16 + j % 4) * DV];
    for (u32 i = threadIdx.x; i < 2 * DK + DV; i += STEP_THREADS) {
        u32 channel = i < DK ? q_first + i : i < 2 * DK ? k_first + i - DK : v_first + i - 2 * DK;
        prefetch(m.w.conv + channel * TAPS);
#pragma unroll
        for (u32 j = 0; j < RING; j++) prefetch(ring + j * CHANNELS + channel);
    }
    HeadGate gate = load_gate(m.w, head);
    Decay own_decay = load_decay(m.w, head);
    wait_for_previous();

    // Warps take q, k, v, or the gates of a row.
    for (u32 unit = warp; unit < 4 * p.rows; unit += STEP_WARPS) {
        u32 t = unit / 4, which = unit % 4;
        u64 row = p.row0 + t;
        float* undo = undo_row(m, p, t);
        if (which == 3) {
#pragma unroll
            for (u32 i = 0; i < DV / WARP; i++) z[t][lane + i * WARP] = m.z[row * VALUE_WIDTH + head * DV + lane + i * WARP];
            float2 gates = gates_of(m, own_decay, row, head);
            if (lane == 0) {
                decay[t] = gates.x, beta[t] = gates.y;
                if (undo) undo[2 * CHANNELS + head] = gates.x, undo[2 * CHANNELS + VALUE_HEADS + head] = gates.y;
            }
            continue;
        }
        u32 first = which == 0 ? q_first : which == 1 ? k_first : v_first, width = which == 2 ? DV : DK;
        float* to = which == 0 ? q[t] : which == 1 ? k[t] : v[t];
        float x[UNIT_VALUES], unit_scale = convolve(x, m, p, t, first, width);
        bool keeps = undo && (which == 2 || head % SHARERS == 0);
#pragma unroll
        for (u32 i = 0; i < UNIT_VALUES; i++) {
            u32 c = lane + i * WARP;
            if (c >= width) continue;
            to[c] = which == 2 ? x[i] : x[i] * unit_scale;
            if (keeps) undo[first + c] = m.raw[row * CHANNELS + first + c], undo[CHANNELS + first + c] = to[c];
        }
    }
    __syncthreads();
    // This block has read the ring. The answer is needed, and waited for, only behind the recurrence.
    u32 before = 0;
    if (threadIdx.x == 0) {
        __threadfence();
        before = atomicInc(a.arrived + blockIdx.y * KEY_HEADS + key, SHARERS - 1);
    }
    const float scale = rsqrtf((float)DK);
    for (u32 t = 0; t < p.rows; t++) {
        float dot = 0.0f;
#pragma unroll
        for (u32 i = lane; i < DK; i += WARP) dot = fmaf(q[t][i], k[t][i], dot);
        dot = warp_sum(dot);
        float delta = beta[t], q_s = advance(s, q[t], k[t], decay[t], v[t][col], delta);
        if (quarter == 0) read[t][col] = scale * fmaf(dot, delta, q_s);
    }
    if (threadIdx.x == 0) {
        last = before == SHARERS - 1;
        __threadfence();
    }
    __syncthreads();
    for (u32 t = warp; t < p.rows; t += STEP_WARPS) {
        float own_z[DV / WARP];
#pragma unroll
        for (u32 i = 0; i < DV / WARP; i++) own_z[i] = z[t][lane + i * WARP];
        gate_head(m, gate, p.row0 + t, head, read[t], own_z);
    }
#pragma unroll
    for (u32 j = 0; j < LANE_DIMS; j++) memory[(j / 4 * 16 + j % 4) * DV] = s[j];
    auto keep = [&](u32 first, u32 width) { keep_ring(m, p, ring, first + threadIdx.x, first + width, STEP_THREADS); };
    keep(v_first, DV);
    if (last) keep(q_first, DK), keep(k_first, DK);
}
#endif
