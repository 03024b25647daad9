// Embedding, and norms with copies of their output for the products that follow.

struct Embed {
    Matrix table;
    const float* cols;  // column factors or null
    const u32* ids;
    float* hidden;      // [rows][HIDDEN]
};

// Grid: (rows). Few instructions matter more than anything here: nothing has fetched them before.
KERNEL(embed, Embed, 1024) {
    begin();
    u32 id = a.ids[blockIdx.x];
#pragma unroll 1
    for (u32 i = threadIdx.x; i < HIDDEN; i += 2 * 1024) {
        float x = decode(a.table, a.cols, id, i), y = decode(a.table, a.cols, id, min(i + 1024, HIDDEN - 1));
        a.hidden[(u64)blockIdx.x * HIDDEN + i] = x;
        if (i + 1024 < HIDDEN) a.hidden[(u64)blockIdx.x * HIDDEN + i + 1024] = y;
    }
}

struct Norm {
    Residual residual;
    const u32* chosen;  // rows to norm, or null for all
    Copy copies[3];
    u32 copy_count;
    u32 pad;
};

// Grid: (rows). Four columns a thread and turn, all loads of a turn in flight together.
KERNEL(rms_norm, Norm, 512) {
    __shared__ float scratch[32];
    __shared__ float4 x[HIDDEN_4];
    let_next_start();
    const Residual& r = a.residual;
    const float4* weight = (const float4*)r.weight;
    float4 norm_weight = weight[min(threadIdx.x, HIDDEN_4 - 1)];
    wait_for_previous();
    u32 row = a.chosen ? a.chosen[blockIdx.x] : blockIdx.x;
    Shares shares = expert_shares(r, row);
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < HIDDEN_4; i += blockDim.x) {
        float4 v = residual_sum(r, row, i, shares);
        if (r.sum) ((float4*)r.sum)[(u64)row * HIDDEN_4 + i] = v;
        x[i] = v;
        squares += squares_of(v);
    }
    float scale = rsqrtf(block_sum(squares, scratch) / HIDDEN + EPS);
    for (u32 i = threadIdx.x; i < HIDDEN_4; i += blockDim.x) {
        float4 w = i == threadIdx.x ? norm_weight : weight[i];
#pragma unroll
        for (u32 c = 0; c < 3; c++) {
            if (c >= a.copy_count) break;
            const Copy& copy = a.copies[c];
            store_split4(copy.hi, copy.lo, (u64)blockIdx.x * HIDDEN_PAD + i * 4, normed(x[i], scale, w, copy.cols, i));
        }
    }
}
