// Products with the file's matrices: y[r][o] = sum over c of x[index[r]][c] w[o][c], in f32.

struct Gemm {
    uint rows; // of y
    uint outs; // rows of w
    uint cols;
};

// Weights and activations as numbers of type T, which products of any number of rows take, so that they agree but for
// the order of their sums. As floats they are what the file says.
template <int E, typename T> struct Tile {
    // The rungs of a row, and at 32 what its sums are multiplied with at the end.
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        Stored<E>::ladder(m, row, rungs, exp2s);
        rungs[32] = 1.0f;
    }
    static void weights8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        Stored<E>::decode8(m, row, col, rungs, a, b);
    }
    static void inputs8(Matrix m, uint col, thread float4& a, thread float4& b) {}
};

// Halves keep integers exactly: the row's scale waits for the end, the columns' factors go to the activations.
template <> struct Tile<Q8_ROW, half> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        Stored<Q8_ROW>::ladder(m, row, rungs, exp2s);
        rungs[32] = rungs[0];
        rungs[0] = 1.0f;
    }
    static void weights8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        Stored<Q8_ROW>::decode8(m, row, col, rungs, a, b);
    }
    static void inputs8(Matrix m, uint col, thread float4& a, thread float4& b) {}
};

template <> struct Tile<Q8_2F, half> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        Tile<Q8_ROW, half>::ladder(m, row, rungs, exp2s);
    }
    static void weights8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        Stored<Q8_ROW>::decode8(m, row, col, rungs, a, b);
    }
    static void inputs8(Matrix m, uint col, thread float4& a, thread float4& b) {
        float4 fa, fb;
        factors8(m, col, fa, fb);
        a *= fa;
        b *= fb;
    }
};

// Rungs are relative to the row's largest, so that no ladder leaves the range of halves.
template <> struct Tile<Q4TP, half> {
    static void ladder(Matrix m, uint row, threadgroup float* rungs, device const float* exp2s) {
        Stored<Q4TP>::ladder(m, row, rungs, exp2s);
        float largest = max(rungs[0], rungs[31]);
        if (largest > 0.0f)
            for (uint i = 0; i < 32; i++) rungs[i] /= largest;
        rungs[32] = largest;
    }
    static void weights8(Matrix m, uint row, uint col, threadgroup const float* rungs, thread float4& a, thread float4& b) {
        Stored<Q4TP>::decode8(m, row, col, rungs, a, b);
    }
    static void inputs8(Matrix m, uint col, thread float4& a, thread float4& b) {}
};

// The largest half instead of infinity.
inline half narrowed(float x, half) { return half(fabs(x) > 65504.0f ? (x > 0.0f ? 65504.0f : -65504.0f) : x); }
inline float narrowed(float x, float) { return x; }

inline void rounded4(thread float4& v, half) {
    v = float4(float(narrowed(v[0], half(0.0f))), float(narrowed(v[1], half(0.0f))), float(narrowed(v[2], half(0.0f))),
               float(narrowed(v[3], half(0.0f))));
}
inline void rounded4(thread float4& v, float) {}

// Many activation rows: a tile of 64 outputs and 32 rows. 128 threads stage 32 columns at a time, in rows of
// 40 so that they meet few others' banks; each of the four SIMD groups multiplies 32 outputs and 16 rows of them
// in matrices of 8 by 8, and the sums leave through threadgroup memory.
// `pool` holds the columns, 96 rows of 40, and later the sums, 32 by 64; `rungs` are 64 rows of 33.
template <int E, typename T>
inline void wide_tile(Matrix m, device const float* x, device const uint* index, device float* y, uint rows,
                      uint o0, uint r0, device const float* exp2s, threadgroup float* pool,
                      threadgroup float* rungs, uint t, uint simd) {
    threadgroup T* ws = (threadgroup T*)pool;
    threadgroup T* xs = ws + 64 * 40;
    if (t < 64) Tile<E, T>::ladder(m, min(o0 + t, m.rows - 1), rungs + t * 33, exp2s);

    // What this thread stages: 16 columns of one output and 8 of one row.
    uint lane = t / 2, from = t % 2 * 16, own = t / 4, own_from = t % 4 * 8;
    uint o = min(o0 + lane, m.rows - 1), r = r0 + own;
    device const float* row = x + (ulong)(r < rows ? index[r] : 0) * m.cols + own_from;
    // What its SIMD group computes.
    uint out0 = simd % 2 * 32, row0 = simd / 2 * 16;
    bool works = o0 + out0 < m.rows && r0 + row0 < rows;
    simdgroup_matrix<float, 8, 8> sums[2][4];
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 4; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint c = 0; c < m.cols; c += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 16; k += 8) {
            float4 a, b;
            Tile<E, T>::weights8(m, o, c + from + k, rungs + lane * 33, a, b);
            for (uint i = 0; i < 4; i++) {
                ws[lane * 40 + from + k + i] = T(a[i]);
                ws[lane * 40 + from + k + 4 + i] = T(b[i]);
            }
        }
        float4 a = float4(0.0f), b = float4(0.0f);
        if (r < rows) {
            a = *(device const float4*)(row + c);
            b = *(device const float4*)(row + c + 4);
            Tile<E, T>::inputs8(m, c + own_from, a, b);
        }
        for (uint i = 0; i < 4; i++) {
            xs[own * 40 + own_from + i] = narrowed(a[i], T(0.0f));
            xs[own * 40 + own_from + 4 + i] = narrowed(b[i], T(0.0f));
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 32 && works; k += 8) {
            simdgroup_matrix<T, 8, 8> v[2], w[4];
            for (uint i = 0; i < 2; i++) simdgroup_load(v[i], xs + (row0 + 8 * i) * 40 + k, 40);
            for (uint j = 0; j < 4; j++) simdgroup_load(w[j], ws + (out0 + 8 * j) * 40 + k, 40, 0, true);
            for (uint i = 0; i < 2; i++)
                for (uint j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[i][j], v[i], w[j], sums[i][j]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 2 && works; i++)
        for (uint j = 0; j < 4; j++) simdgroup_store(sums[i][j], pool + (row0 + 8 * i) * 64 + out0 + 8 * j, 64);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint to = t % 64;
    if (o0 + to >= m.rows) return;
    for (uint i = t / 64; i < 32 && r0 + i < rows; i += 2)
        y[(ulong)(r0 + i) * m.rows + o0 + to] = pool[i * 64 + to] * rungs[to * 33 + 32];
}

// Few activation rows, where the weights' bytes are all that counts: a SIMD group reads four weight rows
// straight from the file, eight columns a lane, and keeps N sums of each. The sums of the lanes are added up
// through threadgroup memory: 4 N of them in the time of one reduction. Two SIMD groups with outputs from `o0` on.
// `rungs` are 4 rows of 33 of each SIMD group, `partial` 32 rows of 33.
template <int E, int N, typename T>
inline void narrow_tile(Matrix m, device const float* x, device const uint* index, device float* y, uint rows,
                        uint o0, uint r0, device const float* exp2s, threadgroup float* rungs,
                        threadgroup float* partial, uint lane, uint simd) {
    rungs += simd * 132;
    partial += simd * 32 * 33;
    o0 += simd * 4;
    rows = min((uint)N, rows - r0);
    if (lane < 4) Tile<E, T>::ladder(m, min(o0 + lane, m.rows - 1), rungs + lane * 33, exp2s);
    simdgroup_barrier(mem_flags::mem_threadgroup);

    float sums[4][N];
    for (uint j = 0; j < 4; j++)
        for (uint r = 0; r < N; r++) sums[j][r] = 0.0f;
    for (uint c = lane * 8; c < m.cols; c += 256) {
        float4 a[4], b[4];
        for (uint j = 0; j < 4; j++) {
            Tile<E, T>::weights8(m, min(o0 + j, m.rows - 1), c, rungs + j * 33, a[j], b[j]);
            rounded4(a[j], T(0.0f));
            rounded4(b[j], T(0.0f));
        }
        for (uint r = 0; r < rows; r++) {
            device const float4* v = (device const float4*)(x + (ulong)index[r0 + r] * m.cols + c);
            float4 v0 = v[0], v1 = v[1];
            Tile<E, T>::inputs8(m, c, v0, v1);
            rounded4(v0, T(0.0f));
            rounded4(v1, T(0.0f));
            for (uint j = 0; j < 4; j++) sums[j][r] += dot(a[j], v0) + dot(b[j], v1);
        }
    }
    if (N == 1) {
        for (uint j = 0; j < 4; j++) {
            float sum = simd_sum(sums[j][0]);
            if (lane == 0 && o0 + j < m.rows) y[(ulong)r0 * m.rows + o0 + j] = sum * rungs[j * 33 + 32];
        }
        return;
    }
    for (uint j = 0; j < 4; j++)
        for (uint r = 0; r < N; r++) partial[(j * N + r) * 33 + lane] = sums[j][r];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint o = o0 + lane / N, r = lane % N;
    float sum = 0.0f;
    for (uint i = 0; i < 32; i++) sum += partial[lane * 33 + i];
    if (lane < 4 * N && o < m.rows && r < rows)
        y[(ulong)(r0 + r) * m.rows + o] = sum * rungs[lane / N * 33 + 32];
}

// Grid: (outs / 64, rows / 32); 128 threads.
template <int E, typename T>
kernel void gemm_wide(constant Gemm& p [[buffer(0)]],
                      device const uchar* bytes [[buffer(1)]],
                      device const float* x [[buffer(2)]],
                      device const uint* index [[buffer(3)]],
                      device float* y [[buffer(4)]],
                      device const float* exp2s [[buffer(5)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float pool[sizeof(T) == 2 ? 2048 : 3840];
    threadgroup float rungs[2112];
    Matrix m = {bytes, p.outs, p.cols};
    wide_tile<E, T>(m, x, index, y, p.rows, group.x * 64, group.y * 32, exp2s, pool, rungs, t, simd);
}

// Grid: (outs / 8, rows / N); 64 threads.
template <int E, int N, typename T>
kernel void gemm_narrow(constant Gemm& p [[buffer(0)]],
                        device const uchar* bytes [[buffer(1)]],
                        device const float* x [[buffer(2)]],
                        device const uint* index [[buffer(3)]],
                        device float* y [[buffer(4)]],
                        device const float* exp2s [[buffer(5)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float rungs[264];
    threadgroup float partial[2112];
    Matrix m = {bytes, p.outs, p.cols};
    narrow_tile<E, N, T>(m, x, index, y, p.rows, group.x * 8, group.y * N, exp2s, rungs, partial, lane, simd);
}

// A panel: an expert's rows, which are pairs `first` to `first + rows`.
struct Panel {
    uint expert;
    uint first;
    uint rows;
};

// Where a matrix begins.
struct Address {
    device const uchar* bytes;
};

// Products of a layer's experts that the device has chosen: panel z of `panels`, whose expert's matrix is found in
// `matrices`. Pairs are rows of y; pair i's activations are row index[i] of x.
// Grid: (outs / 64, rows of the largest panel / 32, panels); 128 threads.
template <int E, typename T>
kernel void experts_wide(constant Gemm& p [[buffer(0)]],
                         device const Address* matrices [[buffer(1)]],
                         device const float* x [[buffer(2)]],
                         device const uint* index [[buffer(3)]],
                         device float* y [[buffer(4)]],
                         device const float* exp2s [[buffer(5)]],
                         device const Panel* panels [[buffer(6)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint t [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float pool[sizeof(T) == 2 ? 2048 : 3840];
    threadgroup float rungs[2112];
    Panel panel = panels[group.z];
    if (group.y * 32 >= panel.rows) return;
    Matrix m = {matrices[panel.expert].bytes, p.outs, p.cols};
    wide_tile<E, T>(m, x, index + panel.first, y + (ulong)panel.first * p.outs, panel.rows, group.x * 64, group.y * 32,
                    exp2s, pool, rungs, t, simd);
}

// Grid: (outs / 8, 1, panels), of which none has more than N rows; 64 threads.
template <int E, int N, typename T>
kernel void experts_narrow(constant Gemm& p [[buffer(0)]],
                           device const Address* matrices [[buffer(1)]],
                           device const float* x [[buffer(2)]],
                           device const uint* index [[buffer(3)]],
                           device float* y [[buffer(4)]],
                           device const float* exp2s [[buffer(5)]],
                           device const Panel* panels [[buffer(6)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float rungs[264];
    threadgroup float partial[2112];
    Panel panel = panels[group.z];
    Matrix m = {matrices[panel.expert].bytes, p.outs, p.cols};
    narrow_tile<E, N, T>(m, x, index + panel.first, y + (ulong)panel.first * p.outs, panel.rows, group.x * 8, 0, exp2s,
                      rungs, partial, lane, simd);
}

template [[host_name("gemm_wide_f32")]] kernel decltype(gemm_wide<F32, float>) gemm_wide<F32, float>;
template [[host_name("gemm_wide_f16")]] kernel decltype(gemm_wide<F16, float>) gemm_wide<F16, float>;
template [[host_name("gemm_wide_bf16")]] kernel decltype(gemm_wide<BF16, float>) gemm_wide<BF16, float>;
template [[host_name("gemm_wide_q8_row")]] kernel decltype(gemm_wide<Q8_ROW, float>) gemm_wide<Q8_ROW, float>;
template [[host_name("gemm_wide_q8_2f")]] kernel decltype(gemm_wide<Q8_2F, float>) gemm_wide<Q8_2F, float>;
template [[host_name("gemm_wide_q4_tiled")]] kernel decltype(gemm_wide<Q4_TILED, float>) gemm_wide<Q4_TILED, float>;
template [[host_name("gemm_wide_q4tp")]] kernel decltype(gemm_wide<Q4TP, float>) gemm_wide<Q4TP, float>;
template [[host_name("gemm_8_f32")]] kernel decltype(gemm_narrow<F32, 8, float>) gemm_narrow<F32, 8, float>;
template [[host_name("gemm_8_f16")]] kernel decltype(gemm_narrow<F16, 8, float>) gemm_narrow<F16, 8, float>;
template [[host_name("gemm_8_bf16")]] kernel decltype(gemm_narrow<BF16, 8, float>) gemm_narrow<BF16, 8, float>;
template [[host_name("gemm_8_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 8, float>) gemm_narrow<Q8_ROW, 8, float>;
template [[host_name("gemm_8_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 8, float>) gemm_narrow<Q8_2F, 8, float>;
template [[host_name("gemm_8_q4_tiled")]] kernel decltype(gemm_narrow<Q4_TILED, 8, float>) gemm_narrow<Q4_TILED, 8, float>;
template [[host_name("gemm_8_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 8, float>) gemm_narrow<Q4TP, 8, float>;
template [[host_name("gemm_1_f32")]] kernel decltype(gemm_narrow<F32, 1, float>) gemm_narrow<F32, 1, float>;
template [[host_name("gemm_1_f16")]] kernel decltype(gemm_narrow<F16, 1, float>) gemm_narrow<F16, 1, float>;
template [[host_name("gemm_1_bf16")]] kernel decltype(gemm_narrow<BF16, 1, float>) gemm_narrow<BF16, 1, float>;
template [[host_name("gemm_1_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 1, float>) gemm_narrow<Q8_ROW, 1, float>;
template [[host_name("gemm_1_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 1, float>) gemm_narrow<Q8_2F, 1, float>;
template [[host_name("gemm_1_q4_tiled")]] kernel decltype(gemm_narrow<Q4_TILED, 1, float>) gemm_narrow<Q4_TILED, 1, float>;
template [[host_name("gemm_1_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 1, float>) gemm_narrow<Q4TP, 1, float>;
template [[host_name("gemm_wide_half_q8_row")]] kernel decltype(gemm_wide<Q8_ROW, half>) gemm_wide<Q8_ROW, half>;
template [[host_name("gemm_wide_half_q8_2f")]] kernel decltype(gemm_wide<Q8_2F, half>) gemm_wide<Q8_2F, half>;
template [[host_name("gemm_wide_half_q4tp")]] kernel decltype(gemm_wide<Q4TP, half>) gemm_wide<Q4TP, half>;
template [[host_name("gemm_8_half_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 8, half>) gemm_narrow<Q8_ROW, 8, half>;
template [[host_name("gemm_8_half_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 8, half>) gemm_narrow<Q8_2F, 8, half>;
template [[host_name("gemm_8_half_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 8, half>) gemm_narrow<Q4TP, 8, half>;
template [[host_name("gemm_1_half_q8_row")]] kernel decltype(gemm_narrow<Q8_ROW, 1, half>) gemm_narrow<Q8_ROW, 1, half>;
template [[host_name("gemm_1_half_q8_2f")]] kernel decltype(gemm_narrow<Q8_2F, 1, half>) gemm_narrow<Q8_2F, 1, half>;
template [[host_name("gemm_1_half_q4tp")]] kernel decltype(gemm_narrow<Q4TP, 1, half>) gemm_narrow<Q4TP, 1, half>;

template [[host_name("experts_wide_f32")]] kernel decltype(experts_wide<F32, float>) experts_wide<F32, float>;
template [[host_name("experts_wide_f16")]] kernel decltype(experts_wide<F16, float>) experts_wide<F16, float>;
template [[host_name("experts_wide_bf16")]] kernel decltype(experts_wide<BF16, float>) experts_wide<BF16, float>;
template [[host_name("experts_wide_q8_row")]] kernel decltype(experts_wide<Q8_ROW, float>) experts_wide<Q8_ROW, float>;
template [[host_name("experts_wide_q8_2f")]] kernel decltype(experts_wide<Q8_2F, float>) experts_wide<Q8_2F, float>;
template [[host_name("experts_wide_q4_tiled")]] kernel decltype(experts_wide<Q4_TILED, float>) experts_wide<Q4_TILED, float>;
template [[host_name("experts_wide_q4tp")]] kernel decltype(experts_wide<Q4TP, float>) experts_wide<Q4TP, float>;
template [[host_name("experts_8_f32")]] kernel decltype(experts_narrow<F32, 8, float>) experts_narrow<F32, 8, float>;
template [[host_name("experts_8_f16")]] kernel decltype(experts_narrow<F16, 8, float>) experts_narrow<F16, 8, float>;
template [[host_name("experts_8_bf16")]] kernel decltype(experts_narrow<BF16, 8, float>) experts_narrow<BF16, 8, float>;
template [[host_name("experts_8_q8_row")]] kernel decltype(experts_narrow<Q8_ROW, 8, float>) experts_narrow<Q8_ROW, 8, float>;
template [[host_name("experts_8_q8_2f")]] kernel decltype(experts_narrow<Q8_2F, 8, float>) experts_narrow<Q8_2F, 8, float>;
template [[host_name("experts_8_q4_tiled")]] kernel decltype(experts_narrow<Q4_TILED, 8, float>) experts_narrow<Q4_TILED, 8, float>;
template [[host_name("experts_8_q4tp")]] kernel decltype(experts_narrow<Q4TP, 8, float>) experts_narrow<Q4TP, 8, float>;
template [[host_name("experts_1_f32")]] kernel decltype(experts_narrow<F32, 1, float>) experts_narrow<F32, 1, float>;
template [[host_name("experts_1_f16")]] kernel decltype(experts_narrow<F16, 1, float>) experts_narrow<F16, 1, float>;
template [[host_name("experts_1_bf16")]] kernel decltype(experts_narrow<BF16, 1, float>) experts_narrow<BF16, 1, float>;
template [[host_name("experts_1_q8_row")]] kernel decltype(experts_narrow<Q8_ROW, 1, float>) experts_narrow<Q8_ROW, 1, float>;
template [[host_name("experts_1_q8_2f")]] kernel decltype(experts_narrow<Q8_2F, 1, float>) experts_narrow<Q8_2F, 1, float>;
template [[host_name("experts_1_q4_tiled")]] kernel decltype(experts_narrow<Q4_TILED, 1, float>) experts_narrow<Q4_TILED, 1, float>;
template [[host_name("experts_1_q4tp")]] kernel decltype(experts_narrow<Q4TP, 1, float>) experts_narrow<Q4TP, 1, float>;
template [[host_name("experts_wide_half_q8_row")]] kernel decltype(experts_wide<Q8_ROW, half>) experts_wide<Q8_ROW, half>;
template [[host_name("experts_wide_half_q8_2f")]] kernel decltype(experts_wide<Q8_2F, half>) experts_wide<Q8_2F, half>;
template [[host_name("experts_wide_half_q4tp")]] kernel decltype(experts_wide<Q4TP, half>) experts_wide<Q4TP, half>;
template [[host_name("experts_8_half_q8_row")]] kernel decltype(experts_narrow<Q8_ROW, 8, half>) experts_narrow<Q8_ROW, 8, half>;
template [[host_name("experts_8_half_q8_2f")]] kernel decltype(experts_narrow<Q8_2F, 8, half>) experts_narrow<Q8_2F, 8, half>;
template [[host_name("experts_8_half_q4tp")]] kernel decltype(experts_narrow<Q4TP, 8, half>) experts_narrow<Q4TP, 8, half>;
template [[host_name("experts_1_half_q8_row")]] kernel decltype(experts_narrow<Q8_ROW, 1, half>) experts_narrow<Q8_ROW, 1, half>;
template [[host_name("experts_1_half_q8_2f")]] kernel decltype(experts_narrow<Q8_2F, 1, half>) experts_narrow<Q8_2F, 1, half>;
template [[host_name("experts_1_half_q4tp")]] kernel decltype(experts_narrow<Q4TP, 1, half>) experts_narrow<Q4TP, 1, half>;
