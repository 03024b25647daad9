// Gated DeltaNet. A layer's state is a ring of raw rows, oldest first, and a memory
// [value_heads][key_dim][value_dim]. Channels of a row are queries, keys, values.

struct Conv {
    uint channels;
    uint taps; // of the causal convolution, the row itself included
    uint row0;
    uint rows;
    uint block; // 1: rows after the current one count too, by `right`
};

// out = silu(convolution of ring and rows) for the rows of a part.
// taps_left: [channels][taps], the last one for the row itself; right: [channels][taps - 1].
// Grid: (channels / 64, rows); 64 threads.
kernel void gdn_conv(constant Conv& p [[buffer(0)]],
                     device const float* raw [[buffer(1)]],
                     device const float* ring [[buffer(2)]],
                     device const float* left [[buffer(3)]],
                     device const float* right [[buffer(4)]],
                     device float* out [[buffer(5)]],
                     uint2 group [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]]) {
    uint c = group.x * 64 + thread_index, t = group.y, back = p.taps - 1;
    if (c >= p.channels) return;
    float sum = 0.0f;
    for (uint j = 0; j < p.taps; j++) {
        uint at = t + j; // in ring, then rows
        float x = at < back ? ring[at * p.channels + c] : raw[(ulong)(p.row0 + at - back) * p.channels + c];
        sum += left[c * p.taps + j] * x;
    }
    if (p.block)
        for (uint d = 1; d <= back && t + d < p.rows; d++) sum += right[c * back + d - 1] * raw[(ulong)(p.row0 + t + d) * p.channels + c];
    out[(ulong)(p.row0 + t) * p.channels + c] = silu(sum);
}

struct Unit {
    uint channels;
    uint key_dim;
};

// Scales queries and keys to unit length, in place.
// Grid: (2 key_heads, rows); 32 threads.
kernel void gdn_unit(constant Unit& p [[buffer(0)]],
                     device float* rows [[buffer(1)]],
                     uint2 group [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
    device float* x = rows + (ulong)group.y * p.channels + group.x * p.key_dim;
    float squares = 0.0f;
    for (uint i = lane; i < p.key_dim; i += 32) squares += x[i] * x[i];
    float scale = 1.0f / precise::sqrt(simd_sum(squares) + 1e-6f);
    for (uint i = lane; i < p.key_dim; i += 32) x[i] *= scale;
}

struct Gates {
    uint heads;
    uint count; // rows * heads
};

// gates: [rows][2][heads], decay and write strength.
kernel void gdn_gates(constant Gates& p [[buffer(0)]],
                      device const float* a [[buffer(1)]],
                      device const float* b [[buffer(2)]],
                      device const float* a_log [[buffer(3)]],
                      device const float* dt_bias [[buffer(4)]],
                      device float* gates [[buffer(5)]],
                      uint i [[thread_position_in_grid]]) {
    if (i >= p.count) return;
    uint row = i / p.heads, head = i % p.heads;
    device float* to = gates + 2 * row * p.heads + head;
    to[0] = precise::exp(-precise::exp(a_log[head]) * softplus(a[i] + dt_bias[head]));
    to[p.heads] = sigmoid(b[i]);
}

struct Recur {
    uint channels;
    uint key_heads;
    uint value_heads;
    uint value_dim;
    uint row0;
    uint rows;
};

// The delta rule over the rows of a part; advances the memory. A thread holds one column of it in registers.
// read: [rows][value_heads][value_dim].
// Grid: (value_dim / 32, value_heads); 32 threads.
template <int DK>
kernel void gdn_recur(constant Recur& p [[buffer(0)]],
                      device const float* rows [[buffer(1)]],
                      device const float* gates [[buffer(2)]],
                      device float* memory [[buffer(3)]],
                      device float* read [[buffer(4)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]]) {
    uint j = group.x * 32 + lane, head = group.y;
    if (j >= p.value_dim) return;
    uint key_head = head / (p.value_heads / p.key_heads), key_width = p.key_heads * DK;
    device float* column = memory + (ulong)head * DK * p.value_dim + j;
    float4 s[DK / 4];
    for (uint i = 0; i < DK / 4; i++)
        s[i] = float4(column[4 * i * p.value_dim], column[(4 * i + 1) * p.value_dim], column[(4 * i + 2) * p.value_dim],
                      column[(4 * i + 3) * p.value_dim]);
    float scale = 1.0f / precise::sqrt(float(DK));
    for (uint t = p.row0; t < p.row0 + p.rows; t++) {
        device const float* row = rows + (ulong)t * p.channels;
        device const float4* q = (device const float4*)(row + key_head * DK);
        device const float4* k = (device const float4*)(row + key_width + key_head * DK);
        float decay = gates[2 * t * p.value_heads + head], beta = gates[(2 * t + 1) * p.value_heads + head];
        float4 held = float4(0.0f), out = float4(0.0f);
        for (uint i = 0; i < DK / 4; i++) {
            s[i] *= decay;
            held += k[i] * s[i];
        }
        float error = beta * (row[2 * key_width + head * p.value_dim + j] - ((held.x + held.y) + (held.z + held.w)));
        for (uint i = 0; i < DK / 4; i++) {
            s[i] += k[i] * error;
            out += q[i] * s[i];
        }
        read[((ulong)t * p.value_heads + head) * p.value_dim + j] = scale * ((out.x + out.y) + (out.z + out.w));
    }
    for (uint i = 0; i < DK / 4; i++)
        for (uint n = 0; n < 4; n++) column[(4 * i + n) * p.value_dim] = s[i][n];
}

template [[host_name("gdn_recur_32")]] kernel decltype(gdn_recur<32>) gdn_recur<32>;
template [[host_name("gdn_recur_64")]] kernel decltype(gdn_recur<64>) gdn_recur<64>;
template [[host_name("gdn_recur_128")]] kernel decltype(gdn_recur<128>) gdn_recur<128>;
template [[host_name("gdn_recur_256")]] kernel decltype(gdn_recur<256>) gdn_recur<256>;

struct Ring {
    uint channels;
    uint back; // rows of the ring
    uint row0;
    uint rows;
};

// Pushes the raw rows of a part into the ring. A thread moves one channel, oldest row first, so that it
// reads every old row before it overwrites it.
kernel void gdn_ring(constant Ring& p [[buffer(0)]],
                     device const float* raw [[buffer(1)]],
                     device float* ring [[buffer(2)]],
                     uint c [[thread_position_in_grid]]) {
    if (c >= p.channels) return;
    for (uint i = 0; i < p.back; i++) {
        uint at = p.rows + i; // in ring, then rows
        ring[i * p.channels + c] = at < p.back ? ring[at * p.channels + c] : raw[(ulong)(p.row0 + at - p.back) * p.channels + c];
    }
}

struct Block {
    uint channels;
    uint key_heads;
    uint value_heads;
    uint key_dim;
    uint value_dim;
    uint row0;
    uint rows; // at most 512
    float share; // ln(rows / 32)
};

// The block operator: a row mixes the block's values by a softmax over key similarity, with one more slot
// for everything before the block.
// Grid: (value_heads, rows); 64 threads.
kernel void gdn_block(constant Block& p [[buffer(0)]],
                      device const float* rows [[buffer(1)]],
                      device const float* gates [[buffer(2)]],
                      device const float* memory [[buffer(3)]],
                      device const float* logit_scale [[buffer(4)]],
                      device const float* history_bias [[buffer(5)]],
                      device const float* history_c [[buffer(6)]],
                      device float* read [[buffer(7)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]]) {
    threadgroup float logits[513];
    threadgroup float weights[513];
    uint head = group.x, row = p.row0 + group.y, slots = p.rows + 1;
    uint key_head = head / (p.value_heads / p.key_heads), key_width = p.key_heads * p.key_dim;
    device const float* q = rows + (ulong)row * p.channels + key_head * p.key_dim;
    for (uint s = t; s < slots; s += 64) {
        float logit = history_bias[head] + history_c[head] * p.share;
        if (s < p.rows) {
            device const float* k = rows + (ulong)(p.row0 + s) * p.channels + key_width + key_head * p.key_dim;
            float sum = 0.0f;
            for (uint i = 0; i < p.key_dim; i++) sum += q[i] * k[i];
            logit = logit_scale[head] * sum;
        }
        logits[s] = logit;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float best = -INFINITY;
    for (uint s = 0; s < slots; s++) best = max(best, logits[s]);
    for (uint s = t; s < slots; s += 64) weights[s] = precise::exp(logits[s] - best);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float mass = 0.0f;
    for (uint s = 0; s < slots; s++) mass += weights[s];
    float past = weights[p.rows] * gates[2 * row * p.value_heads + head] / precise::sqrt(float(p.key_dim));
    for (uint j = t; j < p.value_dim; j += 64) {
        float sum = 0.0f, old = 0.0f;
        for (uint s = 0; s < p.rows; s++) sum += weights[s] * rows[(ulong)(p.row0 + s) * p.channels + 2 * key_width + head * p.value_dim + j];
        for (uint i = 0; i < p.key_dim; i++) old += q[i] * memory[((ulong)head * p.key_dim + i) * p.value_dim + j];
        read[((ulong)row * p.value_heads + head) * p.value_dim + j] = (sum + past * old) / mass;
    }
}

struct Gate {
    uint value_dim;
    float eps;
};

// read = read / rms(read) w silu(z), for every head of every row, in place.
// Grid: (value_heads, rows); 32 threads.
kernel void gdn_gate(constant Gate& p [[buffer(0)]],
                     device float* read [[buffer(1)]],
                     device const float* z [[buffer(2)]],
                     device const float* weight [[buffer(3)]],
                     uint2 group [[threadgroup_position_in_grid]],
                     uint2 groups [[threadgroups_per_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
    ulong at = ((ulong)group.y * groups.x + group.x) * p.value_dim;
    float squares = 0.0f;
    for (uint i = lane; i < p.value_dim; i += 32) squares += read[at + i] * read[at + i];
    float scale = 1.0f / precise::sqrt(simd_sum(squares) / float(p.value_dim) + p.eps);
    for (uint i = lane; i < p.value_dim; i += 32) read[at + i] = read[at + i] * scale * weight[i] * silu(z[at + i]);
}
