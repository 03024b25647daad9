// Gated full attention. K is the type that keys and values are stored in.

struct Prepare {
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint rotary; // leading dims that turn
    uint row0;   // first row of the part in the pass
    uint to;     // row of the keys and values that its first row goes to
    float eps;
    float scale; // of queries
};

// Norms and turns queries and keys, and stores keys and values where attention finds them: behind the
// committed rows (commit) or in scratch (preview).
// q: [rows][heads][2][head_dim], per head query and gate; k, v: [rows][kv_heads][head_dim];
// turns: [rows][rotary / 2][cos, sin] of each row's position.
// Grid: (heads + 2 kv_heads, rows of the part); 32 threads.
template <typename K>
kernel void attention_prepare(constant Prepare& p [[buffer(0)]],
                              device const float* q [[buffer(1)]],
                              device const float* k [[buffer(2)]],
                              device const float* v [[buffer(3)]],
                              device const float* q_norm [[buffer(4)]],
                              device const float* k_norm [[buffer(5)]],
                              device const float2* turns [[buffer(6)]],
                              device float* query [[buffer(7)]],
                              device K* keys [[buffer(8)]],
                              device K* values [[buffer(9)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]]) {
    uint row = p.row0 + group.y, width = p.kv_heads * p.head_dim;
    uint to = (p.to + group.y) * width;
    if (group.x >= p.heads + p.kv_heads) {
        uint at = (group.x - p.heads - p.kv_heads) * p.head_dim;
        for (uint i = lane; i < p.head_dim; i += 32) values[to + at + i] = K(v[row * width + at + i]);
        return;
    }
    bool is_key = group.x >= p.heads;
    uint head = is_key ? group.x - p.heads : group.x;
    device const float* x = is_key ? k + row * width + head * p.head_dim : q + (row * p.heads + head) * 2 * p.head_dim;
    device const float* weight = is_key ? k_norm : q_norm;
    float squares = 0.0f;
    for (uint i = lane; i < p.head_dim; i += 32) squares += x[i] * x[i];
    float rms = 1.0f / precise::sqrt(simd_sum(squares) / float(p.head_dim) + p.eps);
    float scale = is_key ? 1.0f : p.scale;
    uint half_turn = p.rotary / 2;
    for (uint i = lane; i < p.head_dim; i += 32) {
        float a = x[i] * rms * (1.0f + weight[i]);
        if (i < p.rotary) { // pairs (i, i + rotary / 2)
            bool first = i < half_turn;
            uint j = first ? i + half_turn : i - half_turn;
            float b = x[j] * rms * (1.0f + weight[j]);
            float2 turn = turns[row * half_turn + (first ? i : j)];
            a = first ? a * turn.x - b * turn.y : a * turn.x + b * turn.y;
        }
        if (is_key) keys[to + head * p.head_dim + i] = K(a);
        else query[(row * p.heads + head) * p.head_dim + i] = a * scale;
    }
}

struct Attention {
    uint heads;
    uint kv_heads;
    uint head_dim; // at most 256
    uint row0;
    uint rows;   // of the part
    uint stored; // rows of `keys` and `values`: the prefix, in a commit also its own
    uint own;    // rows of `own_keys` and `own_values`: a preview's block
    uint causal; // 1: row r sees `stored - rows + r + 1` rows; 0: all
    uint splits;
    uint chunk; // keys of a split, a multiple of 64
};

// A tile of four rows of one head against one split of the keys, 64 at a time with a running softmax.
// partial: [rows][heads][splits][2 + head_dim]: largest score, sum of weights, weighted values.
// Grid: (heads, rows / 4, splits); 64 threads.
template <typename K>
kernel void attention(constant Attention& p [[buffer(0)]],
                      device const float* query [[buffer(1)]],
                      device const K* keys [[buffer(2)]],
                      device const K* values [[buffer(3)]],
                      device const K* own_keys [[buffer(4)]],
                      device const K* own_values [[buffer(5)]],
                      device float* partial [[buffer(6)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float q[4][256];
    threadgroup float scores[4][64];
    threadgroup float shrink[4];
    uint head = group.x, r0 = group.y * 4, width = p.kv_heads * p.head_dim;
    uint kv = head / (p.heads / p.kv_heads) * p.head_dim;
    uint begin = group.z * p.chunk, end = min(begin + p.chunk, p.stored + p.own);
    for (uint i = t; i < 4 * p.head_dim; i += 64) {
        uint r = i / p.head_dim, c = i % p.head_dim;
        q[r][c] = r0 + r < p.rows ? query[((p.row0 + r0 + r) * p.heads + head) * p.head_dim + c] : 0.0f;
    }
    // Of rows simd and simd + 2; the same in all lanes.
    float best[2] = {-INFINITY, -INFINITY}, mass[2] = {0.0f, 0.0f};
    float sums[4][4];
    for (uint r = 0; r < 4; r++)
        for (uint i = 0; i < 4; i++) sums[r][i] = 0.0f;
    for (uint key0 = begin; key0 < end; key0 += 64) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint key = key0 + t;
        float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (key < end) {
            bool own = key >= p.stored;
            device const K* at = own ? own_keys + (ulong)(key - p.stored) * width : keys + (ulong)key * width;
            for (uint c = 0; c < p.head_dim; c++) {
                float x = float(at[kv + c]);
                for (uint r = 0; r < 4; r++) s[r] += q[r][c] * x;
            }
        }
        for (uint r = 0; r < 4; r++) {
            bool seen = key < end && (p.causal == 0 || key < p.stored - p.rows + r0 + r + 1);
            scores[r][t] = seen ? s[r] : -INFINITY;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint n = 0; n < 2; n++) {
            uint r = simd + 2 * n;
            float a = scores[r][lane], b = scores[r][lane + 32];
            float top = max(best[n], simd_max(max(a, b)));
            // Nothing seen yet: keep weights at zero instead of dividing infinities.
            float base = top == -INFINITY ? 0.0f : top;
            float wa = precise::exp(a - base), wb = precise::exp(b - base), old = precise::exp(best[n] - base);
            mass[n] = mass[n] * old + simd_sum(wa + wb);
            best[n] = top;
            scores[r][lane] = wa;
            scores[r][lane + 32] = wb;
            if (lane == 0) shrink[r] = old;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint count = min(64u, end - key0);
        for (uint i = 0; i < 4; i++) {
            uint c = t + 64 * i;
            if (c >= p.head_dim) break;
            for (uint r = 0; r < 4; r++) sums[r][i] *= shrink[r];
            for (uint n = 0; n < count; n++) {
                uint key = key0 + n;
                bool own = key >= p.stored;
                device const K* at = own ? own_values + (ulong)(key - p.stored) * width : values + (ulong)key * width;
                float x = float(at[kv + c]);
                for (uint r = 0; r < 4; r++) sums[r][i] += scores[r][n] * x;
            }
        }
    }
    uint stride = 2 + p.head_dim;
    for (uint r = 0; r < 4 && r0 + r < p.rows; r++) {
        device float* to = partial + ((ulong)((p.row0 + r0 + r) * p.heads + head) * p.splits + group.z) * stride;
        if (r % 2 == simd && lane == 0) {
            to[0] = best[r / 2];
            to[1] = mass[r / 2];
        }
        for (uint i = 0; i < 4; i++)
            if (t + 64 * i < p.head_dim) to[2 + t + 64 * i] = sums[r][i];
    }
}

struct Join {
    uint heads;
    uint head_dim;
    uint splits;
    uint row0;
};

// Joins the splits and applies the gates: out[row][head][c].
// Grid: (heads, rows of the part); 32 threads.
kernel void attention_join(constant Join& p [[buffer(0)]],
                           device const float* partial [[buffer(1)]],
                           device const float* q [[buffer(2)]],
                           device float* out [[buffer(3)]],
                           uint2 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
    uint at = (p.row0 + group.y) * p.heads + group.x, stride = 2 + p.head_dim;
    device const float* parts = partial + (ulong)at * p.splits * stride;
    float best = -INFINITY;
    for (uint s = 0; s < p.splits; s++) best = max(best, parts[s * stride]);
    float mass = 0.0f;
    for (uint s = 0; s < p.splits; s++) mass += precise::exp(parts[s * stride] - best) * parts[s * stride + 1];
    for (uint c = lane; c < p.head_dim; c += 32) {
        float sum = 0.0f;
        for (uint s = 0; s < p.splits; s++) sum += precise::exp(parts[s * stride] - best) * parts[s * stride + 2 + c];
        out[(ulong)at * p.head_dim + c] = sum / mass * sigmoid(q[((ulong)at * 2 + 1) * p.head_dim + c]);
    }
}

template [[host_name("attention_prepare_f16")]] kernel decltype(attention_prepare<half>) attention_prepare<half>;
template [[host_name("attention_prepare_f32")]] kernel decltype(attention_prepare<float>) attention_prepare<float>;
template [[host_name("attention_f16")]] kernel decltype(attention<half>) attention<half>;
template [[host_name("attention_f32")]] kernel decltype(attention<float>) attention<float>;
