// Choosing experts where the logits are, as `shamrock_model::routing` does on the host: the same sums in the same
// order, but for the totals of a coreset, which are exact integers here and rounded doubles there.

struct Route {
    uint experts; // at most 1024
    uint top_k;   // at most 64 and `experts`
    uint rows;
    uint norm; // 1: a row's weights add up to 1
};

// Greater for the greater of two floats; 0 is left for none.
inline uint order_key(float x) {
    uint bits = as_type<uint>(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Takes the expert with the greatest key out of `keys`; of equal ones the first. All lanes of a SIMD group call it,
// and each looks at its own keys only. ~0 when none is left.
inline uint take_best(threadgroup uint* keys, uint experts, uint lane) {
    uint key = 0, at = ~0u;
    for (uint e = lane; e < experts; e += 32)
        if (keys[e] > key) {
            key = keys[e];
            at = e;
        }
    uint best = simd_max(key);
    uint first = simd_min(key == best && key > 0 ? at : ~0u);
    if (at == first && first != ~0u) keys[at] = 0;
    return first;
}

// Softmax of the router's logits [rows][experts] in place, and each row's own best: top[rows][top_k].
// Grid: (rows); 32 threads.
kernel void route_softmax(constant Route& p [[buffer(0)]],
                          device float* router [[buffer(1)]],
                          device uint* top [[buffer(2)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float powers[1024];
    threadgroup uint keys[1024];
    device float* row = router + (ulong)group * p.experts;
    float best = -INFINITY;
    for (uint e = lane; e < p.experts; e += 32) best = max(best, row[e]);
    best = simd_max(best);
    for (uint e = lane; e < p.experts; e += 32) powers[e] = precise::exp(row[e] - best);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    if (lane == 0)
        for (uint e = 0; e < p.experts; e++) sum += powers[e];
    sum = simd_broadcast(sum, 0);
    for (uint e = lane; e < p.experts; e += 32) {
        float probability = powers[e] / sum;
        row[e] = probability;
        keys[e] = order_key(probability);
    }
    for (uint n = 0; n < p.top_k; n++) {
        uint e = take_best(keys, p.experts, lane);
        if (lane == 0) top[group * p.top_k + n] = e;
    }
}

struct Coreset {
    uint experts;
    uint top_k;
    uint top_p_low; // of the fraction top_p * 2^63
    uint top_p_high;
};

// Rows of a previewed block.
struct RowRange {
    uint row0;
    uint rows;
};

// Whether a / mass < fraction / 2^63, exactly: a * 2^63 < mass * fraction, in 128 bits.
inline bool is_below(ulong a, ulong mass, ulong fraction) {
    ulong m0 = mass & 0xfffffffful, m1 = mass >> 32, f0 = fraction & 0xfffffffful, f1 = fraction >> 32;
    ulong low = m0 * f0, middle = m1 * f0 + (low >> 32), other = m0 * f1 + (middle & 0xfffffffful);
    ulong high = m1 * f1 + (middle >> 32) + (other >> 32);
    low = (other << 32) | (low & 0xfffffffful);
    return a >> 1 < high || (a >> 1 == high && a << 63 < low);
}

// The experts that a block may use: allowed[blocks][experts], 1 or 0. A row adds the probabilities of its own best,
// in units of 2^-54: of 512 rows they stay below 2^63.
// Grid: (blocks); 256 threads.
kernel void route_coreset(constant Coreset& p [[buffer(0)]],
                          device const float* router [[buffer(1)]],
                          device const uint* top [[buffer(2)]],
                          device const RowRange* blocks [[buffer(3)]],
                          device uint* allowed [[buffer(4)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_index_in_threadgroup]]) {
    threadgroup ulong totals[1024];
    RowRange block = blocks[group];
    for (uint e = t; e < p.experts; e += 256) {
        ulong total = 0;
        for (uint row = block.row0; row < block.row0 + block.rows; row++)
            for (uint n = 0; n < p.top_k; n++)
                if (top[row * p.top_k + n] == e)
                    total += (ulong)(router[(ulong)row * p.experts + e] * 18014398509481984.0f);
        totals[e] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong mass = 0, fraction = (ulong)p.top_p_high << 32 | p.top_p_low;
    for (uint e = 0; e < p.experts; e++) mass += totals[e];
    if (mass < 18014399ul) mass = 18014399ul; // 1e-9
    for (uint e = t; e < p.experts; e += 256) {
        ulong own = totals[e], before = 0;
        bool first = true;
        for (uint other = 0; other < p.experts; other++) {
            ulong total = totals[other];
            if (total > own || (total == own && other < e)) {
                before += total;
                first = false;
            }
        }
        allowed[group * p.experts + e] = first || is_below(before, mass, fraction) ? 1 : 0;
    }
}

// Each row's experts, ascending, with their weights: chosen[rows][top_k], weights[rows][top_k], counts[rows].
// block_of[row] is the row's block, whose coreset it keeps to, or ~0.
// Grid: (rows); 32 threads.
kernel void route_choose(constant Route& p [[buffer(0)]],
                         device const float* router [[buffer(1)]],
                         device const uint* block_of [[buffer(2)]],
                         device const uint* allowed [[buffer(3)]],
                         device uint* chosen [[buffer(4)]],
                         device float* weights [[buffer(5)]],
                         device uint* counts [[buffer(6)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint keys[1024];
    threadgroup uint best[64];
    device const float* row = router + (ulong)group * p.experts;
    uint block = block_of[group];
    for (uint e = lane; e < p.experts; e += 32)
        keys[e] = block == ~0u || allowed[block * p.experts + e] ? order_key(row[e]) : 0;
    uint count = 0;
    for (uint n = 0; n < p.top_k; n++) {
        uint e = take_best(keys, p.experts, lane);
        if (e == ~0u) break; // in all lanes
        if (lane == 0) best[n] = e;
        count++;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint n = 0; n < count; n++) total += row[best[n]];
    if (p.norm == 0) total = 1.0f;
    for (uint n = lane; n < count; n += 32) {
        uint place = 0;
        for (uint other = 0; other < count; other++) place += best[other] < best[n] ? 1 : 0;
        chosen[group * p.top_k + place] = best[n];
        weights[group * p.top_k + place] = row[best[n]] / total;
    }
    if (lane == 0) counts[group] = count;
}

struct Panels {
    uint experts;
    uint top_k;
    uint rows;
    uint width; // of experts
    uint hidden;
};

// Grid of an indirect dispatch.
struct Groups {
    uint x, y, z;
};

// Pairs of a row and an expert, by expert and then by row, with the tables that `combine` reads; panels
// [3][experts] of one row, of up to eight, and of more; for each of these kinds the grids of products
// with `width` and with `hidden` outputs; and the number of experts in use.
// Grid: (1); 256 threads.
kernel void route_panels(constant Panels& p [[buffer(0)]],
                         device const uint* chosen [[buffer(1)]],
                         device const float* chosen_weights [[buffer(2)]],
                         device const uint* counts [[buffer(3)]],
                         device uint* pair_rows [[buffer(4)]],
                         device uint* starts [[buffer(5)]],
                         device uint* slots [[buffer(6)]],
                         device float* weights [[buffer(7)]],
                         device Panel* panels [[buffer(8)]],
                         device Groups* grids [[buffer(9)]],
                         device uint* used [[buffer(10)]],
                         uint t [[thread_index_in_threadgroup]]) {
    threadgroup uint first[1024]; // counts, then the first pair of each expert
    for (uint e = t; e < p.experts; e += 256) {
        uint count = 0;
        for (uint row = 0; row < p.rows; row++)
            for (uint n = 0; n < counts[row]; n++) count += chosen[row * p.top_k + n] == e ? 1 : 0;
        first[e] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) {
        uint pairs = 0, most = 0, kinds[3] = {0, 0, 0};
        for (uint e = 0; e < p.experts; e++) {
            uint count = first[e], kind = count > 8 ? 2 : count > 1 ? 1 : 0;
            first[e] = pairs;
            if (count == 0) continue;
            Panel panel = {e, pairs, count};
            panels[kind * p.experts + kinds[kind]] = panel;
            kinds[kind]++;
            pairs += count;
            most = max(most, count);
        }
        for (uint kind = 0; kind < 3; kind++)
            for (uint stage = 0; stage < 2; stage++) {
                uint tile = kind == 2 ? 64 : 8;
                Groups grid = {((stage == 0 ? p.width : p.hidden) + tile - 1) / tile, kind == 2 ? (most + 31) / 32 : 1, kinds[kind]};
                grids[kind * 2 + stage] = grid;
            }
        uint start = 0;
        for (uint row = 0; row < p.rows; row++) {
            starts[row] = start;
            start += counts[row];
        }
        starts[p.rows] = start;
        used[0] = kinds[0] + kinds[1] + kinds[2];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    for (uint e = t; e < p.experts; e += 256) {
        uint pair = first[e];
        for (uint row = 0; row < p.rows; row++)
            for (uint n = 0; n < counts[row]; n++)
                if (chosen[row * p.top_k + n] == e) {
                    pair_rows[pair] = row;
                    slots[starts[row] + n] = pair;
                    weights[starts[row] + n] = chosen_weights[row * p.top_k + n];
                    pair++;
                }
    }
}
