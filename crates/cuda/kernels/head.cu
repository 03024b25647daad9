// What becomes of logits on the device: shaping and picks.

// One scored row; mirrors `abi::ScoredRow`.
struct ScoredRow {
    u32 shaping;    // index into `shapings`, or ~0: logits leave as they are
    int position;   // 1-based response position
    u32 probe;      // id whose probability is wanted, or ~0
    u32 pad;
};

// Response processing of one part; ids lie in one array; mirrors `abi::ShapingRecord`.
struct Shaping {
    u32 forbidden, forbidden_end;  // ranges of `words`
    u32 counts, counts_end;        // (id, count) pairs
    u32 stops, stops_end;
    u32 think_id;                  // or ~0 when closed or unset
    float presence, frequency, repetition;
    float length_strength, length_start, length_window;
    float think_strength, think_start, think_window;
};

struct Shape {
    float* logits;  // [rows][VOCAB]
    const ScoredRow* rows;
    const Shaping* shapings;
    const u32* words;
};

__device__ __forceinline__ float ramp(int position, float strength, float start, float window) {
    double rise = ((double)position - (double)start) / (double)window;
    return (float)(fmin(fmax(rise, 0.0), 1.0) * (double)strength);
}

// Grid: (scored rows). The phases are ordered; ids within one are distinct.
KERNEL(shape, Shape, 256) {
    begin();
    ScoredRow row = a.rows[blockIdx.x];
    if (row.shaping == ~0u) return;
    Shaping s = a.shapings[row.shaping];
    float* logits = a.logits + (u64)blockIdx.x * VOCAB;
    for (u32 i = s.forbidden + threadIdx.x; i < s.forbidden_end; i += blockDim.x)
        if (a.words[i] < VOCAB) logits[a.words[i]] = __int_as_float(0xff800000);
    __syncthreads();
    for (u32 i = s.counts + threadIdx.x; i < s.counts_end; i += blockDim.x) {
        u32 id = a.words[2 * i], count = a.words[2 * i + 1];
        if (id >= VOCAB) continue;
        // Rounded step by step, as the definition is.
        float l = __fsub_rn(__fsub_rn(logits[id], __fmul_rn((float)count, s.frequency)), s.presence);
        if (s.repetition != 1.0f) l = l < 0.0f ? l * s.repetition : l / s.repetition;
        logits[id] = l;
    }
    __syncthreads();
    if (s.length_strength != 0.0f) {
        float bias = ramp(row.position, s.length_strength, s.length_start, s.length_window);
        for (u32 i = s.stops + threadIdx.x; i < s.stops_end; i += blockDim.x)
            if (a.words[i] < VOCAB) logits[a.words[i]] += bias;
    }
    __syncthreads();
    if (threadIdx.x == 0 && s.think_id < VOCAB && s.think_strength != 0.0f)
        logits[s.think_id] += ramp(row.position, s.think_strength, s.think_start, s.think_window);
}

// Running facts of a softmax: the two best logits, and with d = l - best the sums of e^d and d e^d.
struct Softmax {
    float best, second;
    u32 id;
    float mass, weighted;
};

__device__ __forceinline__ void join(Softmax& a, const Softmax& b) {
    const float none = __int_as_float(0xff800000);
    if (b.best == none) return;
    if (a.best == none) { a = b; return; }
    bool other = b.best > a.best || (b.best == a.best && b.id < a.id);
    float best = other ? b.best : a.best, da = a.best - best, db = b.best - best, ea = expf(da), eb = expf(db);
    // Σ (d + shift) e^(d + shift) = e^shift (Σ d e^d + shift Σ e^d)
    a.weighted = ea * (a.weighted + da * a.mass) + eb * (b.weighted + db * b.mass);
    a.mass = ea * a.mass + eb * b.mass;
    a.second = fmaxf(fminf(a.best, b.best), fmaxf(a.second, b.second));
    a.best = best;
    if (other) a.id = b.id;
}

__device__ __forceinline__ Softmax shuffled(const Softmax& a, int d) {
    return {__shfl_xor_sync(FULL, a.best, d), __shfl_xor_sync(FULL, a.second, d), __shfl_xor_sync(FULL, a.id, d),
            __shfl_xor_sync(FULL, a.mass, d), __shfl_xor_sync(FULL, a.weighted, d)};
}

// The block's softmax in thread 0.
__device__ __forceinline__ void join_block(Softmax& s, Softmax* scratch) {
    for (int d = 16; d; d >>= 1) join(s, shuffled(s, d));
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = s;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 w = 1; w < blockDim.x / WARP; w++) join(s, scratch[w]);
}

// One row's result; mirrors `abi::PickRecord`.
struct PickRecord { u32 token; float probability, runner_up, entropy, probe; };

struct Picks {
    const float* logits;
    const ScoredRow* rows;
    Softmax* partial;   // [rows][chunks]
    PickRecord* picks;  // [rows]
    u32 chunks;
    u32 pad;
};

// Grid: (chunks, scored rows); 256 threads.
KERNEL(pick_chunks, Picks, 256) {
    begin();
    __shared__ Softmax scratch[8];
    const float none = __int_as_float(0xff800000);
    const float* logits = a.logits + (u64)blockIdx.y * VOCAB;
    u32 per = (VOCAB + a.chunks - 1) / a.chunks, begin = blockIdx.x * per, end = min(begin + per, VOCAB);
    Softmax s = {none, none, 0, 0.0f, 0.0f};
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float l = logits[i];
        if (l == none) continue;
        if (l > s.best) {
            float d = s.best - l, e = expf(d);  // e = 0 for the first
            s.weighted = e == 0.0f ? 0.0f : e * (s.weighted + d * s.mass);
            s.mass = e * s.mass + 1.0f;
            s.second = s.best, s.best = l, s.id = i;
        } else {
            float d = l - s.best, e = expf(d);
            s.mass += e;
            s.weighted = fmaf(d, e, s.weighted);
            s.second = fmaxf(s.second, l);
        }
    }
    join_block(s, scratch);
    if (threadIdx.x == 0) a.partial[(u64)blockIdx.y * a.chunks + blockIdx.x] = s;
}

// Grid: (scored rows); one warp.
KERNEL(pick_join, Picks, 32) {
    begin();
    const float none = __int_as_float(0xff800000);
    Softmax s = {none, none, 0, 0.0f, 0.0f};
    for (u32 i = threadIdx.x; i < a.chunks; i += WARP) join(s, a.partial[(u64)blockIdx.x * a.chunks + i]);
    for (int d = 16; d; d >>= 1) join(s, shuffled(s, d));
    if (threadIdx.x) return;
    PickRecord pick = {0, 0.0f, 0.0f, 0.0f, 0.0f};
    if (s.best != none) {
        u32 probe = a.rows[blockIdx.x].probe;
        pick.token = s.id;
        pick.probability = 1.0f / s.mass;
        pick.runner_up = expf(s.second - s.best) / s.mass;
        pick.entropy = logf(s.mass) - s.weighted / s.mass;
        if (probe < VOCAB) pick.probe = expf(a.logits[(u64)blockIdx.x * VOCAB + probe] - s.best) / s.mass;
    }
    a.picks[blockIdx.x] = pick;
}
