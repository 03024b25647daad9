// Gated DeltaNet: the causal recurrence of commits and the block operator of previews.

// Weights of one layer; mirrors `abi::Gdn`.
struct Gdn {
    const float* conv;         // [CHANNELS][TAPS]
    const float* right;        // [CHANNELS][RING], previews only
    const float* a_log;        // [VALUE_HEADS]
    const float* dt_bias;      // [VALUE_HEADS]
    const float* logit_scale;  // [VALUE_HEADS], previews only
    const float* history_bias;
    const float* history_c;
    const float* norm;         // [DV]
    const float* out_cols;     // column factors of out_proj [VALUE_WIDTH], or null
};

struct Mixer {
    Gdn w;
    const Part* parts;
    const float* raw;   // [rows][CHANNELS]
    const float* z;     // [rows][VALUE_WIDTH]
    const float* ab;    // [rows][2 · VALUE_HEADS]: decay, then write strength, before their gates
    float* rows;        // scratch [rows][CHANNELS]: convolved, with unit q and k
    float* gates;       // scratch [rows][2 · VALUE_HEADS]: e^g, beta
    float* read;        // scratch [rows][VALUE_WIDTH]: what the recurrence read
    u16* hi;            // [rows][padded(VALUE_WIDTH)], input of out_proj
    u16* lo;
    u16* qk;            // scratch [rows][2 · KEY_WIDTH]: unit q and k of long commits as halves
    u16* squares;       // scratch [rows][VALUE_HEADS][T, P][32], see gdn_chunk.cu
    u32 layer;          // of the linear ones
    u32 pad;
};

constexpr u32 VALUE_PAD = padded(VALUE_WIDTH);

// What a head's decay takes beside its input.
struct Decay { float a_log, dt_bias; };
__device__ __forceinline__ Decay load_decay(const Gdn& w, u32 head) { return {w.a_log[head], w.dt_bias[head]}; }
__device__ __forceinline__ float log_decay(const Decay& w, float a) { return -expf(w.a_log) * softplus(a + w.dt_bias); }

// The raw row `t` rows from the part's first; negative ones come from the ring.
__device__ __forceinline__ float tape(const Part& p, const float* raw, const float* ring, int t, u32 channel) {
    return t < 0 ? ring[(t + (int)RING) * CHANNELS + channel] : raw[(u64)(p.row0 + t) * CHANNELS + channel];
}

// ---- both: convolution, unit q and k, gates ----

constexpr u32 UNITS = 2 * KEY_HEADS + VALUE_HEADS;  // heads of q, k and v
constexpr u32 UNIT_VALUES = ((DK > DV ? DK : DV) + WARP - 1) / WARP;

// For a warp: the convolved values of a head's `width` channels in row `t` of a part, channel
// first + lane + 32 i in x[i]. Returns the factor that makes them a unit vector.
__device__ __forceinline__ float convolve(float (&x)[UNIT_VALUES], const Mixer& a, const Part& p, u32 t, u32 first, u32 width) {
    u32 lane = threadIdx.x % WARP;
    const float* ring = p.gdn + (u64)a.layer * GDN_STATE;
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < UNIT_VALUES; i++) {
        u32 channel = first + min(lane + i * WARP, width - 1);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < (int)TAPS; j++)
            sum = fmaf(a.w.conv[channel * TAPS + j], tape(p, a.raw, ring, (int)t - (int)RING + j, channel), sum);
        if (p.kind == PREVIEW) {
#pragma unroll
            for (u32 d = 1; d <= RING; d++) {
                float later = a.raw[(u64)(p.row0 + min(t + d, p.rows - 1)) * CHANNELS + channel];
                if (t + d < p.rows) sum = fmaf(a.w.right[channel * RING + d - 1], later, sum);
            }
        }
        x[i] = silu(sum);
        if (lane + i * WARP < width) squares = fmaf(x[i], x[i], squares);
    }
    return rsqrtf(warp_sum(squares) + 1e-6f);
}

// Where row `t` of a part keeps what a rewind needs, or null.
__device__ __forceinline__ float* undo_row(const Mixer& a, const Part& p, u32 t) {
    return p.kind == COMMIT && p.undo ? p.undo + ((u64)a.layer * p.rows + t) * UNDO_ROW : nullptr;
}

// e^g and beta.
__device__ __forceinline__ float2 gates_of(const Mixer& a, const Decay& decay, u64 row, u32 head) {
    const float* ab = a.ab + row * 2 * VALUE_HEADS + head;
    return {expf(log_decay(decay, ab[0])), sigmoid(ab[VALUE_HEADS])};
}

// Grid: (rows of the longest part, UNITS + 1 in groups of 8, parts); a warp takes a head of one row.
KERNEL(gdn_prepare, Mixer, 256) {
    begin();
    const Part p = a.parts[blockIdx.z];
    u32 t = blockIdx.x, unit = blockIdx.y * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (t >= p.rows || unit > UNITS) return;
    u64 row = p.row0 + t;
    float* undo = undo_row(a, p, t);
    if (unit == UNITS) {
        for (u32 head = lane; head < VALUE_HEADS; head += WARP) {
            float2 gates = gates_of(a, load_decay(a.w, head), row, head);
            a.gates[row * 2 * VALUE_HEADS + head] = gates.x;
            a.gates[row * 2 * VALUE_HEADS + VALUE_HEADS + head] = gates.y;
            if (undo) undo[2 * CHANNELS + head] = gates.x, undo[2 * CHANNELS + VALUE_HEADS + head] = gates.y;
        }
        return;
    }
    bool is_value = unit >= 2 * KEY_HEADS;
    u32 width = is_value ? DV : DK, first = is_value ? 2 * KEY_WIDTH + (unit - 2 * KEY_HEADS) * DV : unit * DK;
    float x[UNIT_VALUES], scale = convolve(x, a, p, t, first, width);
    if (is_value) scale = 1.0f;
#pragma unroll
    for (u32 i = 0; i < UNIT_VALUES; i++) {
        if (lane + i * WARP >= width) continue;
        u32 channel = first + lane + i * WARP;
        a.rows[row * CHANNELS + channel] = x[i] * scale;
        if (undo) undo[channel] = a.raw[row * CHANNELS + channel], undo[CHANNELS + channel] = x[i] * scale;
    }
}

// ---- commits ----

// Columns of the memory that a warp owns: four lanes share a column, each with every fourth group
// of four key dims.
constexpr u32 WARP_COLS = 8;
constexpr u32 RECUR_WARPS = 4;
constexpr u32 RECUR_COLS = WARP_COLS * RECUR_WARPS < DV ? WARP_COLS * RECUR_WARPS : DV;
constexpr u32 RECUR_ROWS = 8;  // rows staged at once
constexpr u32 LANE_DIMS = DK / 4;

// Where a row of the recurrence comes from: the pass's scratch or an undo record.
struct RowSource {
    const float* channels;  // of the first row
    const float* gates;
    u64 channel_stride, gate_stride;
};

// Rows of the recurrence in flight from global memory.
struct Staged {
    float4 qk[RECUR_ROWS * DK * 2 / 4 / 128];
    float v[RECUR_ROWS * RECUR_COLS / 128], gate;
};

__device__ __forceinline__ void fetch_rows(Staged& s, const RowSource& from, u32 t0, u32 rows, u32 head, u32 key, u32 col0) {
    constexpr u32 PER_ROW = DK / 2;  // float4 of q and k in a row
#pragma unroll
    for (u32 i = 0; i < sizeof(s.qk) / sizeof(float4); i++) {
        u32 at = threadIdx.x + i * 128, t = min(t0 + at / PER_ROW, rows - 1), c = at % PER_ROW;
        u32 channel = c < DK / 4 ? key * DK + c * 4 : KEY_WIDTH + key * DK + (c - DK / 4) * 4;
        s.qk[i] = *(const float4*)(from.channels + t * from.channel_stride + channel);
    }
#pragma unroll
    for (u32 i = 0; i < sizeof(s.v) / sizeof(float); i++) {
        u32 at = threadIdx.x + i * 128, t = min(t0 + at / RECUR_COLS, rows - 1);
        s.v[i] = from.channels[t * from.channel_stride + 2 * KEY_WIDTH + head * DV + col0 + at % RECUR_COLS];
    }
    u32 t = min(t0 + threadIdx.x % RECUR_ROWS, rows - 1);
    s.gate = from.gates[t * from.gate_stride + head + (threadIdx.x / RECUR_ROWS % 2) * VALUE_HEADS];
}

// One row of the recurrence for the four lanes that share a column S of the memory: dim 16 j + 4 quarter + i
// is in s[4 j + i]. Takes the write strength in `delta` and leaves there what was written along k. Returns
// q (D S) with the decay D = e^g: with S' = D S + k (x) delta, q S' is that plus (q k) delta.
__device__ __forceinline__ float advance(float (&s)[LANE_DIMS], const float* q_row, const float* k_row, float decay, float value, float& delta) {
    const float4 *q = (const float4*)q_row + threadIdx.x % 4, *k = (const float4*)k_row + threadIdx.x % 4;
    // Four chains each, so that additions do not wait for one another.
    float4 ks = {0.0f, 0.0f, 0.0f, 0.0f}, qs = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 j = 0; j < LANE_DIMS; j += 4) {
        float4 kk = k[j], qq = q[j];
        ks.x = fmaf(kk.x, s[j], ks.x), qs.x = fmaf(qq.x, s[j], qs.x);
        ks.y = fmaf(kk.y, s[j + 1], ks.y), qs.y = fmaf(qq.y, s[j + 1], qs.y);
        ks.z = fmaf(kk.z, s[j + 2], ks.z), qs.z = fmaf(qq.z, s[j + 2], qs.z);
        ks.w = fmaf(kk.w, s[j + 3], ks.w), qs.w = fmaf(qq.w, s[j + 3], qs.w);
    }
    float k_s = (ks.x + ks.y) + (ks.z + ks.w), q_s = (qs.x + qs.y) + (qs.z + qs.w);
    k_s += __shfl_xor_sync(FULL, k_s, 1), q_s += __shfl_xor_sync(FULL, q_s, 1);
    k_s += __shfl_xor_sync(FULL, k_s, 2), q_s += __shfl_xor_sync(FULL, q_s, 2);
    delta *= value - decay * k_s;
#pragma unroll
    for (u32 j = 0; j < LANE_DIMS; j += 4) {
        float4 kk = k[j];
        s[j] = fmaf(kk.x, delta, decay * s[j]);
        s[j + 1] = fmaf(kk.y, delta, decay * s[j + 1]);
        s[j + 2] = fmaf(kk.z, delta, decay * s[j + 2]);
        s[j + 3] = fmaf(kk.w, delta, decay * s[j + 3]);
    }
    return decay * q_s;
}

// Advances S over `rows` rows; `read` (if any) gets [rows][VALUE_WIDTH]. The block owns columns
// col0 .. of head `head`. The next rows are fetched while these are worked on.
__device__ __forceinline__ void recur(float* memory, const RowSource& from, u32 rows, float* read, u32 head, u32 col0) {
    __shared__ __align__(16) float qk[2][RECUR_ROWS][2][DK];
    __shared__ float v[2][RECUR_ROWS][RECUR_COLS], gate[2][2][RECUR_ROWS], dots[2][RECUR_ROWS];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, quarter = lane % 4;
    u32 local = warp * WARP_COLS + lane / 4, col = col0 + local;
    u32 key = head / (VALUE_HEADS / KEY_HEADS);
    const float scale = rsqrtf((float)DK);
    Staged staged;
    fetch_rows(staged, from, 0, rows, head, key, col0);
    float s[LANE_DIMS];
#pragma unroll
    for (u32 j = 0; j < LANE_DIMS; j++)
        s[j] = local < RECUR_COLS ? memory[((u64)head * DK + j / 4 * 16 + quarter * 4 + j % 4) * DV + col] : 0.0f;
    for (u32 t0 = 0, buffer = 0; t0 < rows; t0 += RECUR_ROWS, buffer ^= 1) {
        u32 n = min(RECUR_ROWS, rows - t0);
#pragma unroll
        for (u32 i = 0; i < sizeof(staged.qk) / sizeof(float4); i++) ((float4*)qk[buffer])[threadIdx.x + i * 128] = staged.qk[i];
#pragma unroll
        for (u32 i = 0; i < sizeof(staged.v) / sizeof(float); i++) (&v[buffer][0][0])[threadIdx.x + i * 128] = staged.v[i];
        if (threadIdx.x < 2 * RECUR_ROWS) gate[buffer][threadIdx.x / RECUR_ROWS][threadIdx.x % RECUR_ROWS] = staged.gate;
        __syncthreads();
        if (t0 + RECUR_ROWS < rows) fetch_rows(staged, from, t0 + RECUR_ROWS, rows, head, key, col0);
        for (u32 t = warp; t < n; t += RECUR_WARPS) {
            float dot = 0.0f;
            for (u32 i = lane; i < DK; i += WARP) dot = fmaf(qk[buffer][t][0][i], qk[buffer][t][1][i], dot);
            dot = warp_sum(dot);
            if (lane == 0) dots[buffer][t] = dot;
        }
        __syncthreads();
        for (u32 t = 0; t < n; t++) {
            float delta = gate[buffer][1][t], value = v[buffer][t][min(local, RECUR_COLS - 1)];
            float q_s = advance(s, qk[buffer][t][0], qk[buffer][t][1], gate[buffer][0][t], value, delta);
            if (read && quarter == 0 && local < RECUR_COLS)
                read[(u64)(t0 + t) * VALUE_WIDTH + head * DV + col] = scale * fmaf(dots[buffer][t], delta, q_s);
        }
    }
    if (local < RECUR_COLS)
#pragma unroll
        for (u32 j = 0; j < LANE_DIMS; j++)
            memory[((u64)head * DK + j / 4 * 16 + quarter * 4 + j % 4) * DV + col] = s[j];
}

// `gdn_prepare` has read the ring; the last raw rows replace it. A thread takes channels first,
// first + stride, …
__device__ __forceinline__ void keep_ring(const Mixer& a, const Part& p, float* ring, u32 first, u32 end, u32 stride) {
    for (u32 i = first; i < end; i += stride) {
        float last[RING];
#pragma unroll
        for (int j = 0; j < (int)RING; j++) last[j] = tape(p, a.raw, ring, (int)p.rows - (int)RING + j, i);
#pragma unroll
        for (int j = 0; j < (int)RING; j++) ring[j * CHANNELS + i] = last[j];
    }
}

// Grid: (VALUE_HEADS, DV / RECUR_COLS, commit parts); 128 threads.
KERNEL(gdn_recur, Mixer, 128) {
    begin();
    const Part p = a.parts[blockIdx.z];
    float* state = p.gdn + (u64)a.layer * GDN_STATE;
    RowSource from = {a.rows + (u64)p.row0 * CHANNELS, a.gates + (u64)p.row0 * 2 * VALUE_HEADS, CHANNELS, 2 * VALUE_HEADS};
    recur(state + RING * CHANNELS, from, p.rows, a.read + (u64)p.row0 * VALUE_WIDTH, blockIdx.x, blockIdx.y * RECUR_COLS);
    u32 block = blockIdx.y * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
    keep_ring(a, p, state, block * blockDim.x + threadIdx.x, CHANNELS, blocks * blockDim.x);
}

// What a lane needs for the gated norm of a head: loaded ahead of the values, and before anything is stored,
// since for all the compiler knows a store may change it.
struct HeadGate { float norm[DV / WARP], cols[DV / WARP]; };

__device__ __forceinline__ HeadGate load_gate(const Gdn& w, u32 head) {
    HeadGate gate;
    u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) {
        gate.norm[i] = w.norm[lane + i * WARP];
        gate.cols[i] = w.out_cols ? w.out_cols[head * DV + lane + i * WARP] : 1.0f;
    }
    return gate;
}

// The gated norm of a head of one row, for a warp: what was read of the memory [DV], and a lane's inputs of the gate.
__device__ __forceinline__ void gate_head(const Mixer& a, const HeadGate& gate, u64 row, u32 head, const float* read, const float (&z)[DV / WARP]) {
    u32 lane = threadIdx.x % WARP;
    float o[DV / WARP], squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) o[i] = read[lane + i * WARP], squares = fmaf(o[i], o[i], squares);
    float scale = rsqrtf(warp_sum(squares) / DV + EPS);
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) o[i] = o[i] * scale * gate.norm[i] * silu(z[i]) * gate.cols[i];
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) store_split(a.hi, a.lo, row * VALUE_PAD + head * DV + lane + i * WARP, o[i]);
}

// Grid: (rows of the longest part, VALUE_HEADS / 8, commit parts); a warp a head.
KERNEL(gdn_gate, Mixer, 256) {
    let_next_start();
    const Part p = a.parts[blockIdx.z];
    u32 head = blockIdx.y * 8 + threadIdx.x / WARP;
    if (blockIdx.x >= p.rows || head >= VALUE_HEADS) return;
    HeadGate gate = load_gate(a.w, head);
    wait_for_previous();
    u64 row = p.row0 + blockIdx.x, first = row * VALUE_WIDTH + head * DV;
    float z[DV / WARP];
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) z[i] = a.z[first + threadIdx.x % WARP + i * WARP];
    gate_head(a, gate, row, head, a.read + first, z);
}

// Cuts a commit back to its first `kept` rows. `gdn` holds the state before the commit again; all
// layers at once. Grid: (VALUE_HEADS, DV / RECUR_COLS, linear layers); 128 threads.
struct Replay {
    float* gdn;         // [linear layers][GDN_STATE]
    const float* undo;  // [linear layers][rows][UNDO_ROW]
    u32 rows;
    u32 kept;
};

KERNEL(gdn_replay, Replay, 128) {
    begin();
    float* state = a.gdn + (u64)blockIdx.z * GDN_STATE;
    const float* undo = a.undo + (u64)blockIdx.z * a.rows * UNDO_ROW;
    RowSource from = {undo + CHANNELS, undo + 2 * CHANNELS, UNDO_ROW, UNDO_ROW};
    recur(state + RING * CHANNELS, from, a.kept, nullptr, blockIdx.x, blockIdx.y * RECUR_COLS);
    u32 block = blockIdx.y * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
    for (u32 i = block * blockDim.x + threadIdx.x; i < CHANNELS; i += blocks * blockDim.x) {
        float last[RING];
#pragma unroll
        for (int j = 0; j < (int)RING; j++) {
            int t = (int)a.kept - (int)RING + j;
            last[j] = t < 0 ? state[(t + (int)RING) * CHANNELS + i] : undo[(u64)t * UNDO_ROW + i];
        }
#pragma unroll
        for (int j = 0; j < (int)RING; j++) state[j * CHANNELS + i] = last[j];
    }
}

// ---- previews ----

constexpr u32 QUERY_ROWS = 8;   // query rows of a block of threads
constexpr u32 KEY_ROWS = 32;    // key rows staged at once
constexpr u32 PREVIEW_THREADS = QUERY_ROWS * KEY_ROWS;
constexpr u32 OUTS = QUERY_ROWS * DV / PREVIEW_THREADS;
static_assert(PREVIEW_THREADS % DV == 0, "the value dim must divide 256");
constexpr u32 OUT_STEP = PREVIEW_THREADS / DV;
constexpr u32 KEY_STRIDE = DK + 4;  // 16-byte accesses down a column fall into different banks

// Grid: (VALUE_HEADS, tiles of 8 rows of the longest block, preview parts); 256 threads.
// Every row mixes the block's value rows by a softmax over key similarity, with one more slot for
// the memory; keys come in tiles of 32 rows with a running maximum.
KERNEL(gdn_preview, Mixer, PREVIEW_THREADS) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    float* q = shared;                             // [QUERY_ROWS][KEY_STRIDE]
    float* k = q + QUERY_ROWS * KEY_STRIDE;        // [KEY_ROWS][KEY_STRIDE]
    float* v = k + KEY_ROWS * KEY_STRIDE;          // [KEY_ROWS][DV]
    float* p_ts = v + KEY_ROWS * DV;               // [QUERY_ROWS][KEY_ROWS]
    float* o = p_ts + QUERY_ROWS * KEY_ROWS;       // [QUERY_ROWS][DV]
    float* correct = o + QUERY_ROWS * DV;          // [QUERY_ROWS]
    float* past = correct + QUERY_ROWS;            // [QUERY_ROWS]
    float* total = past + QUERY_ROWS;              // [QUERY_ROWS]
    float* parts = k;                              // [OUT_STEP][QUERY_ROWS][DV], behind the last keys and values
    static_assert(PREVIEW_THREADS * QUERY_ROWS <= KEY_ROWS * (KEY_STRIDE + DV), "partial sums fit where keys and values were");

    const Part p = a.parts[blockIdx.z];
    u32 head = blockIdx.x, t0 = blockIdx.y * QUERY_ROWS;
    if (t0 >= p.rows) return;
    u32 rows = min(QUERY_ROWS, p.rows - t0);
    const float* ring = p.gdn + (u64)a.layer * GDN_STATE;
    const float* memory = ring + RING * CHANNELS + (u64)head * DK * DV;
    u32 key = head / (VALUE_HEADS / KEY_HEADS);
    // The memory may still be written by this pass, but is wanted in the cache.
    for (u32 i = threadIdx.x * 32; i < DK * DV; i += PREVIEW_THREADS * 32) prefetch(memory + i);
    HeadGate gate = load_gate(a.w, head);
    Decay decay = load_decay(a.w, head);
    float logit_scale = a.w.logit_scale[head], history = a.w.history_bias[head] + a.w.history_c[head] * logf((float)p.rows / 32.0f);
    wait_for_previous();

    const float* prepared = a.rows + (u64)p.row0 * CHANNELS;
    for (u32 i = threadIdx.x; i < QUERY_ROWS * DK / 4; i += PREVIEW_THREADS) {
        u32 r = i / (DK / 4), c = i % (DK / 4) * 4;
        *(float4*)&q[r * KEY_STRIDE + c] = *(const float4*)(prepared + (u64)min(t0 + r, p.rows - 1) * CHANNELS + key * DK + c);
    }

    // Warp r owns query row r; its lanes are the keys of a tile.
    u32 r = threadIdx.x / KEY_ROWS, lane = threadIdx.x % KEY_ROWS;
    u64 row = p.row0 + min(t0 + r, p.rows - 1);
    float own_decay = a.ab[row * 2 * VALUE_HEADS + head], z[DV / WARP];
#pragma unroll
    for (u32 i = 0; i < DV / WARP; i++) z[i] = a.z[row * VALUE_WIDTH + head * DV + lane + i * WARP];
    float top = history, sum = 1.0f;  // the history slot is in from the start
    float acc[OUTS] = {};
    u32 col = threadIdx.x % DV, out_row = threadIdx.x / DV;
    for (u32 s0 = 0; s0 < p.rows; s0 += KEY_ROWS) {
        u32 n = min(KEY_ROWS, p.rows - s0);
        __syncthreads();
        for (u32 i = threadIdx.x; i < KEY_ROWS * DK / 4; i += PREVIEW_THREADS) {
            u32 row = i / (DK / 4), c = i % (DK / 4) * 4;
            *(float4*)&k[row * KEY_STRIDE + c] =
                *(const float4*)(prepared + (u64)min(s0 + row, p.rows - 1) * CHANNELS + KEY_WIDTH + key * DK + c);
        }
        for (u32 i = threadIdx.x; i < KEY_ROWS * DV / 4; i += PREVIEW_THREADS) {
            u32 row = i / (DV / 4), c = i % (DV / 4) * 4;
            *(float4*)&v[row * DV + c] =
                *(const float4*)(prepared + (u64)min(s0 + row, p.rows - 1) * CHANNELS + 2 * KEY_WIDTH + head * DV + c);
        }
        __syncthreads();
        float logit = __int_as_float(0xff800000);  // -inf
        if (lane < n) {
            float4 dot = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
            for (u32 i = 0; i < DK; i += 4) {
                float4 x = *(const float4*)&q[r * KEY_STRIDE + i], y = *(const float4*)&k[lane * KEY_STRIDE + i];
                dot.x = fmaf(x.x, y.x, dot.x), dot.y = fmaf(x.y, y.y, dot.y);
                dot.z = fmaf(x.z, y.z, dot.z), dot.w = fmaf(x.w, y.w, dot.w);
            }
            logit = logit_scale * ((dot.x + dot.y) + (dot.z + dot.w));
        }
        float higher = fmaxf(top, warp_max(logit)), shrink = expf(top - higher), e = expf(logit - higher);
        sum = sum * shrink + warp_sum(e);
        top = higher;
        p_ts[r * KEY_ROWS + lane] = e;
        if (lane == 0) correct[r] = shrink;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < OUTS; i++) acc[i] *= correct[out_row + i * OUT_STEP];
#pragma unroll 8
        for (u32 s = 0; s < n; s++) {
            float value = v[s * DV + col];
#pragma unroll
            for (u32 i = 0; i < OUTS; i++) acc[i] = fmaf(p_ts[(out_row + i * OUT_STEP) * KEY_ROWS + s], value, acc[i]);
        }
    }
    if (lane == 0) {
        past[r] = expf(history - top + log_decay(decay, own_decay)) * rsqrtf((float)DK);
        total[r] = 1.0f / sum;
    }
    // Each group of DV threads reads a share of the memory's rows, for all queries.
    constexpr u32 SHARE = (DK + OUT_STEP - 1) / OUT_STEP;
    float read[QUERY_ROWS] = {};
#pragma unroll 32
    for (u32 j = 0; j < SHARE; j++) {
        u32 i = out_row * SHARE + j;
        if (DK % OUT_STEP && i >= DK) break;
        float s = memory[i * DV + col];
#pragma unroll
        for (u32 t = 0; t < QUERY_ROWS; t++) read[t] = fmaf(q[t * KEY_STRIDE + i], s, read[t]);
    }
    __syncthreads();
#pragma unroll
    for (u32 t = 0; t < QUERY_ROWS; t++) parts[(out_row * QUERY_ROWS + t) * DV + col] = read[t];
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < OUTS; j++) {
        u32 t = out_row + j * OUT_STEP;
        float sum = 0.0f;
#pragma unroll
        for (u32 g = 0; g < OUT_STEP; g++) sum += parts[(g * QUERY_ROWS + t) * DV + col];
        o[t * DV + col] = (acc[j] + past[t] * sum) * total[t];
    }
    __syncthreads();
    if (r < rows) gate_head(a, gate, row, head, o + r * DV, z);
}
