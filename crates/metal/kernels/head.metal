// What becomes of logits: shaping and picks.

// One scored row.
struct ScoredRow {
    uint shaping; // index into `shapings`, or ~0: logits stay as they are
    uint probe;   // id whose probability is wanted, or ~0
    float length; // bias of stop ids
    float think;  // bias of the id that ends thinking
};

// Response processing of one part. Ranges are of `words`.
struct Shaping {
    uint forbidden, forbidden_end;
    uint counts, counts_end; // of pairs (id, count)
    uint stops, stops_end;
    uint think_id; // or ~0 when closed or unset
    float presence, frequency, repetition;
};

struct Vocab {
    uint size;
    uint chunks; // that share a row in `pick_chunks`
};

// Shapes the logits [rows][vocab] in place; ids within one phase are distinct.
// Grid: (scored rows); 64 threads.
kernel void shape(constant Vocab& p [[buffer(0)]],
                  device float* logits [[buffer(1)]],
                  device const ScoredRow* rows [[buffer(2)]],
                  device const Shaping* shapings [[buffer(3)]],
                  device const uint* words [[buffer(4)]],
                  uint group [[threadgroup_position_in_grid]],
                  uint t [[thread_index_in_threadgroup]]) {
    ScoredRow row = rows[group];
    if (row.shaping == ~0u) return;
    Shaping s = shapings[row.shaping];
    device float* l = logits + (ulong)group * p.size;
    for (uint i = s.forbidden + t; i < s.forbidden_end; i += 64)
        if (words[i] < p.size) l[words[i]] = -INFINITY;
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = s.counts + t; i < s.counts_end; i += 64) {
        uint id = words[2 * i];
        if (id >= p.size) continue;
        float v = l[id] - float(words[2 * i + 1]) * s.frequency - s.presence;
        if (s.repetition != 1.0f) v = v < 0.0f ? v * s.repetition : v / s.repetition;
        l[id] = v;
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = s.stops + t; i < s.stops_end; i += 64)
        if (words[i] < p.size) l[words[i]] += row.length;
    threadgroup_barrier(mem_flags::mem_device);
    if (t == 0 && s.think_id < p.size) l[s.think_id] += row.think;
}

// Running facts of a softmax: the two best logits, and with d = l - best the sums of e^d and d e^d.
struct Softmax {
    float best, second;
    uint id;
    float mass, weighted;
};

inline void join(thread Softmax& a, Softmax b) {
    if (b.best == -INFINITY) return;
    if (a.best == -INFINITY) {
        a = b;
        return;
    }
    bool other = b.best > a.best || (b.best == a.best && b.id < a.id);
    float best = other ? b.best : a.best, da = a.best - best, db = b.best - best;
    float ea = precise::exp(da), eb = precise::exp(db);
    // With d' = d + shift: sum of d' e^d' = e^shift (sum of d e^d + shift * sum of e^d)
    a.weighted = ea * (a.weighted + da * a.mass) + eb * (b.weighted + db * b.mass);
    a.mass = ea * a.mass + eb * b.mass;
    a.second = max(min(a.best, b.best), max(a.second, b.second));
    a.best = best;
    if (other) a.id = b.id;
}

// Grid: (chunks, scored rows); 32 threads.
kernel void pick_chunks(constant Vocab& p [[buffer(0)]],
                        device const float* logits [[buffer(1)]],
                        device Softmax* partial [[buffer(2)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup Softmax lanes[32];
    uint per = (p.size + p.chunks - 1) / p.chunks, begin = group.x * per, end = min(begin + per, p.size);
    device const float* l = logits + (ulong)group.y * p.size;
    Softmax s = {-INFINITY, -INFINITY, 0, 0.0f, 0.0f};
    for (uint i = begin + lane; i < end; i += 32) {
        Softmax one = {l[i], -INFINITY, i, 1.0f, 0.0f};
        join(s, one);
    }
    lanes[lane] = s;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane > 0) return;
    for (uint i = 1; i < 32; i++) join(s, lanes[i]);
    partial[(ulong)group.y * p.chunks + group.x] = s;
}

struct Pick {
    uint token;
    float probability, runner_up, entropy, probe;
};

// Grid: (scored rows); 1 thread.
kernel void pick_join(constant Vocab& p [[buffer(0)]],
                      device const float* logits [[buffer(1)]],
                      device const ScoredRow* rows [[buffer(2)]],
                      device const Softmax* partial [[buffer(3)]],
                      device Pick* picks [[buffer(4)]],
                      uint row [[threadgroup_position_in_grid]]) {
    Softmax s = {-INFINITY, -INFINITY, 0, 0.0f, 0.0f};
    for (uint i = 0; i < p.chunks; i++) join(s, partial[(ulong)row * p.chunks + i]);
    Pick pick = {0, 0.0f, 0.0f, 0.0f, 0.0f};
    if (s.best != -INFINITY) {
        uint probe = rows[row].probe;
        pick.token = s.id;
        pick.probability = 1.0f / s.mass;
        pick.runner_up = precise::exp(s.second - s.best) / s.mass;
        pick.entropy = precise::log(s.mass) - s.weighted / s.mass;
        if (probe < p.size) pick.probe = precise::exp(logits[(ulong)row * p.size + probe] - s.best) / s.mass;
    }
    picks[row] = pick;
}
