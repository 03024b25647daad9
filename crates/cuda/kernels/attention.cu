// Gated full attention over a sequence's KV rows. Block rows of a preview are written behind the
// committed rows, where nothing counts as state.

struct Attention {
    const float* q_norm;    // [HEAD_DIM]
    const float* k_norm;
    const double* frequency;  // [ROTARY / 2]
    const float* out_cols;  // column factors of o_proj [Q_WIDTH], or null
    const Part* parts;
    const u32* part_of;     // [rows]
    const float* q;         // [rows][HEADS][query, gate][HEAD_DIM]
    const float* k;         // [rows][KV_WIDTH]
    const float* v;
    float* query;           // scratch [rows][Q_WIDTH], scaled by 1/sqrt(HEAD_DIM)
    float* partial;         // scratch [splits][rows][HEADS][HEAD_DIM + 2]: sum, maximum, mass
    u16* hi;                // [rows][padded(Q_WIDTH)], input of o_proj
    u16* lo;
    u32 layer;              // of the full-attention ones
    u32 rows;
    u32 splits;
    u32 pad;
};

constexpr u32 Q_PAD = padded(Q_WIDTH);
constexpr u32 PARTIAL = HEAD_DIM + 2;

__device__ __forceinline__ kv_t* plane(const Part& p, u32 layer, u32 which) {
    return p.kv + ((u64)layer * 2 + which) * p.kv_rows * KV_WIDTH;
}

// Norms and rotations; keys and values go to their place. Grid: (rows, HEADS + KV_HEADS); one warp.
KERNEL(attention_prepare, Attention, 32) {
    begin();
    u32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    const Part p = a.parts[a.part_of[row]];
    u32 position = p.position + row - p.row0;
    bool is_query = head < HEADS;
    if (!is_query) head -= HEADS;
    const float* from = is_query ? a.q + ((u64)row * HEADS + head) * 2 * HEAD_DIM : a.k + (u64)row * KV_WIDTH + head * HEAD_DIM;
    const float* weight = is_query ? a.q_norm : a.k_norm;
    __shared__ float x[HEAD_DIM];
    float squares = 0.0f;
    for (u32 i = lane; i < HEAD_DIM; i += WARP) squares = fmaf(from[i], from[i], squares);
    float scale = rsqrtf(warp_sum(squares) / HEAD_DIM + EPS);
    for (u32 i = lane; i < HEAD_DIM; i += WARP) x[i] = from[i] * scale * (1.0f + weight[i]);
    __syncwarp();
    for (u32 i = lane; i < ROTARY / 2; i += WARP) {
        float sin, cos, left = x[i], right = x[i + ROTARY / 2];
        // Whole turns leave in double: positions are large, angles must stay exact.
        double angle = (double)position * a.frequency[i];
        angle -= 6.283185307179586 * rint(angle * 0.15915494309189535);
        sincosf((float)angle, &sin, &cos);
        x[i] = left * cos - right * sin;
        x[i + ROTARY / 2] = right * cos + left * sin;
    }
    __syncwarp();
    if (is_query) {
        float* to = a.query + (u64)row * Q_WIDTH + head * HEAD_DIM;
        for (u32 i = lane; i < HEAD_DIM; i += WARP) to[i] = x[i] * rsqrtf((float)HEAD_DIM);
    } else {
        u64 at = (u64)position * KV_WIDTH + head * HEAD_DIM;
        kv_t *k = plane(p, a.layer, 0) + at, *v = plane(p, a.layer, 1) + at;
        const float* value = a.v + (u64)row * KV_WIDTH + head * HEAD_DIM;
        for (u32 i = lane; i < HEAD_DIM; i += WARP) kv_store(k + i, x[i]), kv_store(v + i, value[i]);
    }
}

constexpr u32 QUERIES = 8, KEYS = 32, ATTENTION_THREADS = QUERIES * KEYS;
constexpr u32 HEAD_STRIDE = HEAD_DIM + 4;  // 16-byte accesses down a column fall into different banks
static_assert(ATTENTION_THREADS % HEAD_DIM == 0, "the head dim must divide 256");
constexpr u32 LANE_OUTS = QUERIES * HEAD_DIM / ATTENTION_THREADS;
constexpr u32 QUERY_STEP = ATTENTION_THREADS / HEAD_DIM;

// Grid: (tiles of 8 queries of the longest part, KV_HEADS · splits, parts); 256 threads. The
// queries of a KV head are its rows times the heads that share it.
KERNEL(attention, Attention, ATTENTION_THREADS) {
    begin();
    DYNAMIC_SHARED(shared);
    float* q = shared;                         // [QUERIES][HEAD_DIM]
    float* k = q + QUERIES * HEAD_DIM;         // [KEYS][HEAD_STRIDE]
    float* weight = k + KEYS * HEAD_STRIDE;    // [QUERIES][KEYS]
    float* correct = weight + QUERIES * KEYS;  // [QUERIES]

    const Part p = a.parts[blockIdx.z];
    u32 kv_head = blockIdx.y % KV_HEADS, split = blockIdx.y / KV_HEADS;
    u32 first = blockIdx.x * QUERIES, count = p.rows * KV_GROUP;
    if (first >= count) return;
    // Keys that the last query of the tile sees, cut into equal runs of whole tiles.
    u32 last_row = min(first + QUERIES - 1, count - 1) / KV_GROUP;
    u32 visible = p.kind == PREVIEW ? p.position + p.rows : p.position + last_row + 1;
    u32 tiles = (visible + KEYS - 1) / KEYS, per = (tiles + a.splits - 1) / a.splits;
    u32 begin = split * per * KEYS, end = min(begin + per * KEYS, visible);

    for (u32 i = threadIdx.x; i < QUERIES * HEAD_DIM; i += ATTENTION_THREADS) {
        u32 n = min(first + i / HEAD_DIM, count - 1);
        q[i] = a.query[(u64)(p.row0 + n / KV_GROUP) * Q_WIDTH + (kv_head * KV_GROUP + n % KV_GROUP) * HEAD_DIM + i % HEAD_DIM];
    }
    u32 r = threadIdx.x / KEYS, lane = threadIdx.x % KEYS;
    u32 col = threadIdx.x % HEAD_DIM, out_query = threadIdx.x / HEAD_DIM;
    u32 own = min(first + r, count - 1) / KV_GROUP;
    u32 sees = p.kind == PREVIEW ? visible : p.position + own + 1;
    const float none = __int_as_float(0xff800000);
    float top = none, sum = 0.0f, acc[LANE_OUTS] = {};
    const kv_t* keys = plane(p, a.layer, 0) + kv_head * HEAD_DIM;
    const kv_t* values = plane(p, a.layer, 1) + kv_head * HEAD_DIM;
    for (u32 s0 = begin; s0 < end; s0 += KEYS) {
        u32 n = min(KEYS, end - s0);
        __syncthreads();
#pragma unroll 4
        for (u32 i = threadIdx.x; i < n * HEAD_DIM / 4; i += ATTENTION_THREADS) {
            u32 row = i / (HEAD_DIM / 4), c = i % (HEAD_DIM / 4) * 4;
            *(float4*)&k[row * HEAD_STRIDE + c] = kv_load4(keys + (u64)(s0 + row) * KV_WIDTH + c);
        }
        __syncthreads();
        float logit = none;
        if (lane < n && s0 + lane < sees) {
            float4 dot = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
            for (u32 i = 0; i < HEAD_DIM; i += 4) {
                float4 x = *(const float4*)&q[r * HEAD_DIM + i], y = *(const float4*)&k[lane * HEAD_STRIDE + i];
                dot.x = fmaf(x.x, y.x, dot.x), dot.y = fmaf(x.y, y.y, dot.y);
                dot.z = fmaf(x.z, y.z, dot.z), dot.w = fmaf(x.w, y.w, dot.w);
            }
            logit = (dot.x + dot.y) + (dot.z + dot.w);
        }
        float higher = fmaxf(top, warp_max(logit));
        // A row that sees nothing of this run keeps zeros.
        float shrink = higher == none ? 1.0f : expf(top - higher), e = higher == none ? 0.0f : expf(logit - higher);
        sum = sum * shrink + warp_sum(e);
        top = higher;
        weight[r * KEYS + lane] = e;
        if (lane == 0) correct[r] = shrink;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < LANE_OUTS; i++) acc[i] *= correct[out_query + i * QUERY_STEP];
#pragma unroll 16
        for (u32 s = 0; s < n; s++) {
            float value = kv_load(values + (u64)(s0 + s) * KV_WIDTH + col);
#pragma unroll
            for (u32 i = 0; i < LANE_OUTS; i++) acc[i] = fmaf(weight[(out_query + i * QUERY_STEP) * KEYS + s], value, acc[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < LANE_OUTS; i++) {
        u32 n = first + out_query + i * QUERY_STEP;
        if (n < count) {
            u64 row = (u64)split * a.rows + p.row0 + n / KV_GROUP;
            a.partial[(row * HEADS + kv_head * KV_GROUP + n % KV_GROUP) * PARTIAL + col] = acc[i];
        }
    }
    if (lane == 0 && first + r < count) {
        u64 row = (u64)split * a.rows + p.row0 + own;
        float* to = a.partial + (row * HEADS + kv_head * KV_GROUP + (first + r) % KV_GROUP) * PARTIAL + HEAD_DIM;
        to[0] = top;
        to[1] = sum;
    }
}

// Joins the splits and applies the gate. Grid: (rows, HEADS).
KERNEL(attention_finish, Attention, 128) {
    begin();
    u32 row = blockIdx.x, head = blockIdx.y;
    const float* first = a.partial + ((u64)row * HEADS + head) * PARTIAL;
    u64 stride = (u64)a.rows * HEADS * PARTIAL;
    float top = __int_as_float(0xff800000);
#pragma unroll 8
    for (u32 s = 0; s < a.splits; s++) top = fmaxf(top, first[s * stride + HEAD_DIM]);
    for (u32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
        // A split that saw nothing has a maximum of -inf, hence weight 0.
        float x = 0.0f, mass = 0.0f;
#pragma unroll 8
        for (u32 s = 0; s < a.splits; s++) {
            float weight = expf(first[s * stride + HEAD_DIM] - top);
            mass = fmaf(first[s * stride + HEAD_DIM + 1], weight, mass);
            x = fmaf(first[s * stride + i], weight, x);
        }
        x = x / mass * sigmoid(a.q[((u64)row * HEADS + head) * 2 * HEAD_DIM + HEAD_DIM + i]);
        u32 at = head * HEAD_DIM + i;
        store_split(a.hi, a.lo, (u64)row * Q_PAD + at, a.out_cols ? x * a.out_cols[at] : x);
    }
}
