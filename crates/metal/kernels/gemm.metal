// Products with the file's matrices: y[r][o] = sum over c of x[index[r]][c] w[o][c], in f32.

struct Gemm {
    uint rows; // of y
    uint outs; // rows of w
    uint cols;
};

// Many activation rows: a tile of 32 outputs and 32 rows. 64 threads stage 32 decoded columns at a time and
// compute 4 x 4 sums each, columns in order.
// Grid: (outs / 32, rows / 32).
template <int E>
kernel void gemm_wide(constant Gemm& p [[buffer(0)]],
                      device const uchar* bytes [[buffer(1)]],
                      device const float* x [[buffer(2)]],
                      device const uint* index [[buffer(3)]],
                      device float* y [[buffer(4)]],
                      device const float* exp2s [[buffer(5)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]]) {
    threadgroup float4 ws[32][9]; // [column][output], padded
    threadgroup float4 xs[32][9]; // [column][row], padded
    threadgroup float rungs[32][33];
    threadgroup float* ws1 = (threadgroup float*)ws;
    threadgroup float* xs1 = (threadgroup float*)xs;
    Matrix m = {bytes, p.outs, p.cols};
    uint o0 = group.x * 32, r0 = group.y * 32;
    if (t < 32) Stored<E>::ladder(m, min(o0 + t, p.outs - 1), rungs[t], exp2s);

    // What this thread stages: 16 columns of one output and of one row.
    uint lane = t / 2, from = t % 2 * 16;
    uint o = min(o0 + lane, p.outs - 1), r = r0 + lane;
    device const float* row = x + (ulong)(r < p.rows ? index[r] : 0) * p.cols + from;
    // What it computes.
    uint o4 = t % 8, r4 = t / 8;
    float4 sums[4] = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
    for (uint c = 0; c < p.cols; c += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 16; k += 8) {
            float4 a, b;
            Stored<E>::decode8(m, o, c + from + k, rungs[lane], a, b);
            for (uint i = 0; i < 4; i++) {
                ws1[(from + k + i) * 36 + lane] = a[i];
                ws1[(from + k + 4 + i) * 36 + lane] = b[i];
            }
        }
        for (uint k = 0; k < 16; k += 4) {
            float4 v = r < p.rows ? *(device const float4*)(row + c + k) : float4(0.0f);
            for (uint i = 0; i < 4; i++) xs1[(from + k + i) * 36 + lane] = v[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 32; k++) {
            float4 w = ws[k][o4], v = xs[k][r4];
            for (uint i = 0; i < 4; i++) sums[i] += w * v[i];
        }
    }
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 4; j++) {
            uint to = o0 + 4 * o4 + j, at = r0 + 4 * r4 + i;
            if (to < p.outs && at < p.rows) y[(ulong)at * p.outs + to] = sums[i][j];
        }
}

// Few activation rows, where the weights' bytes are all that counts: a SIMD group reads four weight rows
// straight from the file, eight columns a lane, and keeps N sums of each. The sums of the lanes are added up
// through threadgroup memory: 4 N of them in the time of one reduction.
// Grid: (outs / 8, rows / N); 64 threads.
template <int E, int N>
kernel void gemm_narrow(constant Gemm& p [[buffer(0)]],
                        device const uchar* bytes [[buffer(1)]],
                        device const float* x [[buffer(2)]],
                        device const uint* index [[buffer(3)]],
                        device float* y [[buffer(4)]],
                        device const float* exp2s [[buffer(5)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float rungs[2][4][32];
    threadgroup float partial[2][32][33];
    Matrix m = {bytes, p.outs, p.cols};
    uint o0 = (group.x * 2 + simd) * 4, r0 = group.y * N;
    uint rows = min((uint)N, p.rows - r0);
    if (lane < 4) Stored<E>::ladder(m, min(o0 + lane, p.outs - 1), rungs[simd][lane], exp2s);
    simdgroup_barrier(mem_flags::mem_threadgroup);

    float sums[4][N];
    for (uint j = 0; j < 4; j++)
        for (uint r = 0; r < N; r++) sums[j][r] = 0.0f;
    for (uint c = lane * 8; c < p.cols; c += 256) {
        float4 a[4], b[4];
        for (uint j = 0; j < 4; j++) Stored<E>::decode8(m, min(o0 + j, p.outs - 1), c, rungs[simd][j], a[j], b[j]);
        for (uint r = 0; r < rows; r++) {
            device const float4* v = (device const float4*)(x + (ulong)index[r0 + r] * p.cols + c);
            float4 v0 = v[0], v1 = v[1];
            for (uint j = 0; j < 4; j++) sums[j][r] += dot(a[j], v0) + dot(b[j], v1);
        }
    }
    if (N == 1) {
        for (uint j = 0; j < 4; j++) {
            float sum = simd_sum(sums[j][0]);
            if (lane == 0 && o0 + j < p.outs) y[(ulong)r0 * p.outs + o0 + j] = sum;
        }
        return;
    }
    for (uint j = 0; j < 4; j++)
        for (uint r = 0; r < N; r++) partial[simd][j * N + r][lane] = sums[j][r];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint o = o0 + lane / N, r = lane % N;
    float sum = 0.0f;
    for (uint i = 0; i < 32; i++) sum += partial[simd][lane][i];
    if (lane < 4 * N && o < p.outs && r < rows) y[(ulong)(r0 + r) * p.outs + o] = sum;
}

template [[host_name("gemm_wide_f32")]] kernel decltype(gemm_wide<F32>) gemm_wide<F32>;
template [[host_name("gemm_wide_f16")]] kernel decltype(gemm_wide<F16>) gemm_wide<F16>;
template [[host_name("gemm_wide_bf16")]] kernel decltype(gemm_wide<BF16>) gemm_wide<BF16>;
template [[host_name("gemm_wide_q8_row")]] kernel decltype(gemm_wide<Q8_ROW>) gemm_wide<Q8_ROW>;
template [[host_name("gemm_wide_q8_2f")]] kernel decltype(gemm_wide<Q8_2F>) gemm_wide<Q8_2F>;
template [[host_name("gemm_wide_q4_tiled")]] kernel decltype(gemm_wide<Q4_TILED>) gemm_wide<Q4_TILED>;
template [[host_name("gemm_wide_q4tp")]] kernel decltype(gemm_wide<Q4TP>) gemm_wide<Q4TP>;

template [[host_name("gemm_8_f32")]] kernel decltype(gemm_narrow<F32, 8>) gemm_narrow<F32, 8>;
template [[host_name("gemm_8_f16")]] kernel decltype(gemm_narrow<F16, 8>) gemm_narrow<F16, 8>;
template [[host_name("gemm_8_bf16")]] kernel decltype(gemm_narrow<BF16, 8>) gemm_narrow<BF16, 8>;
template [[host_name("gemm_8_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 8>) gemm_narrow<Q8_ROW, 8>;
template [[host_name("gemm_8_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 8>) gemm_narrow<Q8_2F, 8>;
template [[host_name("gemm_8_q4_tiled")]] kernel decltype(gemm_narrow<Q4_TILED, 8>) gemm_narrow<Q4_TILED, 8>;
template [[host_name("gemm_8_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 8>) gemm_narrow<Q4TP, 8>;

template [[host_name("gemm_1_f32")]] kernel decltype(gemm_narrow<F32, 1>) gemm_narrow<F32, 1>;
template [[host_name("gemm_1_f16")]] kernel decltype(gemm_narrow<F16, 1>) gemm_narrow<F16, 1>;
template [[host_name("gemm_1_bf16")]] kernel decltype(gemm_narrow<BF16, 1>) gemm_narrow<BF16, 1>;
template [[host_name("gemm_1_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 1>) gemm_narrow<Q8_ROW, 1>;
template [[host_name("gemm_1_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 1>) gemm_narrow<Q8_2F, 1>;
template [[host_name("gemm_1_q4_tiled")]] kernel decltype(gemm_narrow<Q4_TILED, 1>) gemm_narrow<Q4_TILED, 1>;
template [[host_name("gemm_1_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 1>) gemm_narrow<Q4TP, 1>;
