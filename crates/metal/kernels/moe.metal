// Around the products of the experts.

struct Gather {
    uint width;
};

// Row r of y is row index[r] of x, [..][width] both.
// Grid: (width / 64, rows); 64 threads.
kernel void gather(constant Gather& p [[buffer(0)]],
                   device const float* x [[buffer(1)]],
                   device const uint* index [[buffer(2)]],
                   device float* y [[buffer(3)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint t [[thread_index_in_threadgroup]]) {
    uint c = group.x * 64 + t, r = group.y;
    if (c < p.width) y[(ulong)r * p.width + c] = x[(ulong)index[r] * p.width + c];
}

struct Elements {
    uint count;
};

// gate = silu(gate) * up
kernel void silu_up(constant Elements& p [[buffer(0)]],
                    device float* gate [[buffer(1)]],
                    device const float* up [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    if (i < p.count) gate[i] = silu(gate[i]) * up[i];
}

struct Combine {
    uint width;
};

// Adds to row r of the stream the gated shared expert and the routed ones, in ascending order: those of row
// r are pairs starts[r] .. starts[r + 1], each a row of `routed` and its weight.
// Grid: (width / 64, rows); 64 threads.
kernel void combine(constant Combine& p [[buffer(0)]],
                    device float* hidden [[buffer(1)]],
                    device const float* shared_out [[buffer(2)]],
                    device const float* shared_gate [[buffer(3)]],
                    device const float* routed [[buffer(4)]],
                    device const uint* starts [[buffer(5)]],
                    device const uint* slots [[buffer(6)]],
                    device const float* weights [[buffer(7)]],
                    uint2 group [[threadgroup_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]]) {
    uint c = group.x * 64 + t, r = group.y;
    if (c >= p.width) return;
    float sum = shared_out[(ulong)r * p.width + c] * sigmoid(shared_gate[r]);
    for (uint i = starts[r]; i < starts[r + 1]; i++) sum += weights[i] * routed[(ulong)slots[i] * p.width + c];
    hidden[(ulong)r * p.width + c] += sum;
}
