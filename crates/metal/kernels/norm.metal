// The residual stream.

struct Norm {
    uint width;
    float eps;
    uint add; // 1: `added` is added to the stream first
};

// out[i] = h / rms(h) (1 + w) for row index[i] of the stream `hidden` [rows][width].
// Grid: (rows); a multiple of 32 threads, at most 256.
kernel void norm(constant Norm& p [[buffer(0)]],
                 device float* hidden [[buffer(1)]],
                 device const float* added [[buffer(2)]],
                 device const float* weight [[buffer(3)]],
                 device const uint* index [[buffer(4)]],
                 device float* out [[buffer(5)]],
                 uint group [[threadgroup_position_in_grid]],
                 uint t [[thread_index_in_threadgroup]],
                 uint threads [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float squares[8];
    device float* h = hidden + (ulong)index[group] * p.width;
    device const float* a = added + (ulong)index[group] * p.width;
    float sum = 0.0f;
    for (uint i = t; i < p.width; i += threads) {
        float v = h[i];
        if (p.add) {
            v += a[i];
            h[i] = v;
        }
        sum += v * v;
    }
    sum = simd_sum(sum);
    if (lane == 0) squares[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < threads / 32; i++) total += squares[i];
    float scale = 1.0f / precise::sqrt(total / float(p.width) + p.eps);
    // A thread reads back only what it wrote itself.
    for (uint i = t; i < p.width; i += threads) out[(ulong)group * p.width + i] = h[i] * scale * (1.0f + weight[i]);
}
