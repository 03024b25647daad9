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

// Cosine and sine of a position's angle in a pair of columns.
__device__ __forceinline__ float2 rotation(const Attention& a, u32 position, u32 pair) {
    // Whole turns leave in double: positions are large, angles must stay exact.
    double angle = (double)position * a.frequency[pair];
    angle -= 6.283185307179586 * rint(angle * 0.15915494309189535);
    float2 turn;
    sincosf((float)angle, &turn.y, &turn.x);
    return turn;
}

constexpr u32 LANE_DIMS = (HEAD_DIM + WARP - 1) / WARP;

// A lane's share of a head's row.
template <class T> __device__ __forceinline__ void load_head(float (&x)[LANE_DIMS], const T* from) {
#pragma unroll
    for (u32 i = 0; i < LANE_DIMS; i++) x[i] = from[min(threadIdx.x % WARP + i * WARP, HEAD_DIM - 1)];
}

// For a warp: norm and rotation of a head, into shared memory `x`. `turn(pair)` is the rotation.
template <class Turn>
__device__ __forceinline__ void prepare_head(float* x, const float (&own)[LANE_DIMS], const float (&weight)[LANE_DIMS], const Turn& turn) {
    u32 lane = threadIdx.x % WARP;
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < LANE_DIMS; i++)
        if (lane + i * WARP < HEAD_DIM) squares = fmaf(own[i], own[i], squares);
    float scale = rsqrtf(warp_sum(squares) / HEAD_DIM + EPS);
#pragma unroll
    for (u32 i = 0; i < LANE_DIMS; i++)
        if (lane + i * WARP < HEAD_DIM) x[lane + i * WARP] = own[i] * scale * (1.0f + weight[i]);
    __syncwarp();
    for (u32 i = lane; i < ROTARY / 2; i += WARP) {
        float2 r = turn(i);
        float left = x[i], right = x[i + ROTARY / 2];
        x[i] = left * r.x - right * r.y;
        x[i + ROTARY / 2] = right * r.x + left * r.y;
    }
    __syncwarp();
}

__device__ __forceinline__ const float* query_of(const Attention& a, u64 row, u32 head) { return a.q + (row * HEADS + head) * 2 * HEAD_DIM; }

// For a warp: puts a prepared key and a lane's share of the value to their place among the sequence's rows.
__device__ __forceinline__ void store_key(const Part& p, u32 layer, u32 kv_head, u32 position, const float* x, const float (&value)[LANE_DIMS]) {
    u64 at = (u64)position * KV_WIDTH + kv_head * HEAD_DIM;
    kv_t *k = plane(p, layer, 0) + at, *v = plane(p, layer, 1) + at;
#pragma unroll
    for (u32 i = 0; i < LANE_DIMS; i++) {
        u32 c = threadIdx.x % WARP + i * WARP;
        if (c < HEAD_DIM) kv_store(k + c, x[c]), kv_store(v + c, value[i]);
    }
}

// Grid: (rows, HEADS + KV_HEADS); one warp.
KERNEL(attention_prepare, Attention, 32) {
    let_next_start();
    __shared__ float x[HEAD_DIM];
    u32 row = blockIdx.x, head = blockIdx.y, kv_head = head - HEADS;
    const Part p = a.parts[a.part_of[row]];
    u32 position = p.position + row - p.row0;
    float own[LANE_DIMS], weight[LANE_DIMS], value[LANE_DIMS];
    load_head(weight, head < HEADS ? a.q_norm : a.k_norm);
    auto turn = [&](u32 pair) { return rotation(a, position, pair); };
    wait_for_previous();
    if (head < HEADS) {
        load_head(own, query_of(a, row, head));
        prepare_head(x, own, weight, turn);
        float* to = a.query + (u64)row * Q_WIDTH + head * HEAD_DIM;
        for (u32 i = threadIdx.x; i < HEAD_DIM; i += WARP) to[i] = x[i] * rsqrtf((float)HEAD_DIM);
        return;
    }
    u64 from = (u64)row * KV_WIDTH + kv_head * HEAD_DIM;
    load_head(own, a.k + from);
    load_head(value, a.v + from);
    prepare_head(x, own, weight, turn);
    store_key(p, a.layer, kv_head, position, x, value);
}

// The gate of column `i` of a head, applied to what attention returns there.
__device__ __forceinline__ void store_gated(const Attention& a, u32 row, u32 head, u32 i, float x) {
    x *= sigmoid(a.q[((u64)row * HEADS + head) * 2 * HEAD_DIM + HEAD_DIM + i]);
    u32 at = head * HEAD_DIM + i;
    store_split(a.hi, a.lo, (u64)row * Q_PAD + at, a.out_cols ? x * a.out_cols[at] : x);
}

#if SHAMROCK_KV_HALF && SHAMROCK_SPLIT == 1
// Where so much rounding is wanted anyway: on tensor cores, with queries and softmax weights rounded to
// half. Warps work in pairs on 16 queries: of a tile of keys each takes half of the keys for the logits,
// and then half of the head's columns for the weighted sum of the values.
constexpr u32 TILE_QUERIES = 64, TILE_KEYS = 32;
constexpr u32 CHUNKS = HEAD_DIM / 8;                 // 16-byte chunks of a head's row
constexpr u32 LOGIT_STRIDE = TILE_KEYS + 4;
constexpr u32 WEIGHT_STRIDE = TILE_KEYS + 8;         // halves: rows start in different banks
constexpr u32 DIM_STEPS = HEAD_DIM / 32;             // a lane has 8 columns of 32
constexpr u32 OUT_TILES = HEAD_DIM / 16;             // tiles of 8 columns in half a head
static_assert(HEAD_DIM % 32 == 0, "a head is read 32 columns at a time");

// Where chunk c of row r lies, so that the accesses below fall into different banks: keys are read two
// rows at a time, values eight.
__device__ __forceinline__ u32 key_chunk(u32 r, u32 c) { return r * CHUNKS + (CHUNKS >= 8 ? c ^ (r & 1) << 2 : c); }
__device__ __forceinline__ u32 value_chunk(u32 r, u32 c) { return r * CHUNKS + (c ^ (r & (CHUNKS < 8 ? CHUNKS - 1 : 7))); }

struct KeyTile { uint4 keys[TILE_KEYS * CHUNKS], values[TILE_KEYS * CHUNKS]; };

// Rows s0 .. of a KV head; rows from `end` on repeat the last one.
__device__ __forceinline__ void fetch_tile(KeyTile& tile, const kv_t* keys, const kv_t* values, u32 s0, u32 end) {
    for (u32 i = threadIdx.x; i < TILE_KEYS * CHUNKS; i += 256) {
        u32 r = i / CHUNKS, c = i % CHUNKS;
        u64 at = (u64)min(s0 + r, end - 1) * KV_WIDTH + c * 8;
        copy_16(&tile.keys[key_chunk(r, c)], keys + at);
        copy_16(&tile.values[value_chunk(r, c)], values + at);
    }
}

// Of FEW queries, no more than a tile, a block makes its own, and those keys of this pass that are among its
// keys: no other block reads them. Where one split has all keys it gates the result, too. Other keys, which
// nothing in the pass writes, and rotations are made ready before the wait.
template <bool FEW> __device__ __forceinline__ void attend(const Attention& a) {
    let_next_start();
    if (!FEW) wait_for_previous();
    DYNAMIC_SHARED(shared);
    KeyTile* tiles = (KeyTile*)shared;                     // [2]
    float* logits = (float*)(tiles + 2);                   // [TILE_QUERIES][LOGIT_STRIDE]
    float* correct = logits + TILE_QUERIES * LOGIT_STRIDE; // [TILE_QUERIES]
    u16* weights = (u16*)(correct + TILE_QUERIES);         // [TILE_QUERIES][WEIGHT_STRIDE]
    // FEW: queries until the second tile is needed, and a head per warp until logits are.
    u16* queries = (u16*)(tiles + 1);
    static_assert(TILE_QUERIES * HEAD_DIM * sizeof(u16) == sizeof(KeyTile) && 8 * HEAD_DIM <= TILE_QUERIES * LOGIT_STRIDE,
                  "queries and heads fit where they are put");

    const Part p = a.parts[blockIdx.z];
    u32 kv_head = blockIdx.y % KV_HEADS, split = blockIdx.y / KV_HEADS;
    u32 first = blockIdx.x * TILE_QUERIES, count = p.rows * KV_GROUP;
    if (first >= count) return;
    u32 last_row = min(first + TILE_QUERIES - 1, count - 1) / KV_GROUP;
    u32 visible = p.kind == PREVIEW ? p.position + p.rows : p.position + last_row + 1;
    u32 all = (visible + TILE_KEYS - 1) / TILE_KEYS, per = (all + a.splits - 1) / a.splits;
    u32 start = min(split * per * TILE_KEYS, visible), end = min(start + per * TILE_KEYS, visible);
    const kv_t* keys = plane(p, a.layer, 0) + kv_head * HEAD_DIM;
    const kv_t* values = plane(p, a.layer, 1) + kv_head * HEAD_DIM;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    if (!FEW) {
        if (start < end) fetch_tile(tiles[0], keys, values, start, end);
    } else {
        // Keys that were here before the pass, and all else that it does not write.
        u32 here = min(end, p.position);
        if (start < here) fetch_tile(tiles[0], keys, values, start, here);
        else if (start < end)
            for (u32 i = threadIdx.x; i < sizeof(KeyTile) / 16; i += 256) ((uint4*)tiles)[i] = {0, 0, 0, 0};
        __shared__ float2 turns[(TILE_QUERIES + KV_GROUP - 1) / KV_GROUP][ROTARY / 2];
        for (u32 i = threadIdx.x; i < p.rows * (ROTARY / 2); i += 256) {
            u32 r = i / (ROTARY / 2), pair = i % (ROTARY / 2);
            turns[r][pair] = rotation(a, p.position + r, pair);
        }
        if (a.out_cols)
            for (u32 i = threadIdx.x * 32; i < KV_GROUP * HEAD_DIM; i += 256 * 32) prefetch(a.out_cols + kv_head * KV_GROUP * HEAD_DIM + i);
        float own[LANE_DIMS], key[LANE_DIMS], value[LANE_DIMS], q_norm[LANE_DIMS], k_norm[LANE_DIMS];
        load_head(q_norm, a.q_norm);
        load_head(k_norm, a.k_norm);
        end_copy_group();
        copies_done<0>();
        wait_for_previous();
        __syncthreads();
        float* x = logits + warp * HEAD_DIM;
        for (u32 n = warp; n < count; n += 8) {
            u32 r = n / KV_GROUP, row = p.row0 + r, position = p.position + r;
            auto turn = [&](u32 pair) { return turns[r][pair]; };
            // A warp that begins a row takes its key as well.
            bool makes_key = n % KV_GROUP == 0 && position >= start && position < end;
            load_head(own, query_of(a, row, kv_head * KV_GROUP + n % KV_GROUP));
            if (makes_key) {
                load_head(key, a.k + (u64)row * KV_WIDTH + kv_head * HEAD_DIM);
                load_head(value, a.v + (u64)row * KV_WIDTH + kv_head * HEAD_DIM);
            }
            prepare_head(x, own, q_norm, turn);
#pragma unroll
            for (u32 i = 0; i < LANE_DIMS; i++) {
                u32 c = lane + i * WARP;
                if (c < HEAD_DIM) queries[value_chunk(n, c / 8) * 8 + c % 8] = to_half(x[c] * rsqrtf((float)HEAD_DIM));
            }
            __syncwarp();
            if (!makes_key) continue;
            prepare_head(x, key, k_norm, turn);
            store_key(p, a.layer, kv_head, position, x, value);
            u32 at = position - start;
#pragma unroll
            for (u32 i = 0; i < LANE_DIMS; i++) {
                u32 c = lane + i * WARP;
                if (c >= HEAD_DIM || at >= TILE_KEYS) continue;
                ((u16*)tiles[0].keys)[key_chunk(at, c / 8) * 8 + c % 8] = to_half(x[c]);
                ((u16*)tiles[0].values)[value_chunk(at, c / 8) * 8 + c % 8] = to_half(value[i]);
            }
            __syncwarp();
        }
        __syncthreads();
    }
    end_copy_group();

    u32 query = warp / 2 * 16 + g, side = warp % 2;  // of the rows g and g + 8 of the pair's 16
    u32 q[DIM_STEPS][2][4];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 n = min(first + query + r * 8, count - 1);
        const float* from = a.query + (u64)(p.row0 + n / KV_GROUP) * Q_WIDTH + (kv_head * KV_GROUP + n % KV_GROUP) * HEAD_DIM + t * 8;
#pragma unroll
        for (u32 d = 0; d < DIM_STEPS; d++) {
            if (FEW) {
                uint4 x = ((const uint4*)queries)[value_chunk(n, d * 4 + t)];
                q[d][0][r] = x.x, q[d][0][2 + r] = x.y, q[d][1][r] = x.z, q[d][1][2 + r] = x.w;
                continue;
            }
            float4 x = *(const float4*)(from + d * 32), y = *(const float4*)(from + d * 32 + 4);
            q[d][0][r] = half_pair(x.x, x.y), q[d][0][2 + r] = half_pair(x.z, x.w);
            q[d][1][r] = half_pair(y.x, y.y), q[d][1][2 + r] = half_pair(y.z, y.w);
        }
    }
    // The softmax of query row `own` is kept by four lanes, each with every fourth run of 8 keys.
    u32 own = threadIdx.x / 4, own_row = min(first + own, count - 1) / KV_GROUP;
    u32 sees = p.kind == PREVIEW ? visible : p.position + own_row + 1;
    const float none = __int_as_float(0xff800000);
    float top = none, mass = 0.0f, out[OUT_TILES][4] = {};
    for (u32 s0 = start, buffer = 0; s0 < end; s0 += TILE_KEYS, buffer ^= 1) {
        copies_done<0>();
        __syncthreads();  // this tile is here, and the other one's last readers are done
        const KeyTile& tile = tiles[buffer];
        if (s0 + TILE_KEYS < end) fetch_tile(tiles[buffer ^ 1], keys, values, s0 + TILE_KEYS, end);
        end_copy_group();
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            float c[4] = {}, other[4] = {};  // two chains, neither of which waits for the other
            u32 key = side * 16 + n * 8 + g;
#pragma unroll
            for (u32 d = 0; d < DIM_STEPS; d++) {
                uint4 k = tile.keys[key_chunk(key, d * 4 + t)];
                mma(c, q[d][0][0], q[d][0][1], q[d][0][2], q[d][0][3], k.x, k.y);
                mma(other, q[d][1][0], q[d][1][1], q[d][1][2], q[d][1][3], k.z, k.w);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) c[i] += other[i];
            float* to = logits + query * LOGIT_STRIDE + side * 16 + n * 8 + t * 2;
            to[0] = c[0], to[1] = c[1];
            to[8 * LOGIT_STRIDE] = c[2], to[8 * LOGIT_STRIDE + 1] = c[3];
        }
        __syncthreads();
        float x[8], higher = top, sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 s = t * 8 + i;
            x[i] = s0 + s < min(end, sees) ? logits[own * LOGIT_STRIDE + s] : none;
            higher = fmaxf(higher, x[i]);
        }
        higher = fmaxf(higher, __shfl_xor_sync(FULL, higher, 1));
        higher = fmaxf(higher, __shfl_xor_sync(FULL, higher, 2));
        u32 pairs[4];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            // A row that has seen nothing yet keeps zeros.
            x[i] = higher == none ? 0.0f : expf(x[i] - higher);
            sum += x[i];
            if (i % 2) pairs[i / 2] = half_pair(x[i - 1], x[i]);
        }
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        float shrink = higher == none ? 1.0f : expf(top - higher);
        mass = mass * shrink + sum;
        top = higher;
        *(uint4*)(weights + own * WEIGHT_STRIDE + t * 8) = {pairs[0], pairs[1], pairs[2], pairs[3]};
        if (t == 0) correct[own] = shrink;
        __syncthreads();
        float upper = correct[query], lower = correct[query + 8];
#pragma unroll
        for (u32 n = 0; n < OUT_TILES; n++) out[n][0] *= upper, out[n][1] *= upper, out[n][2] *= lower, out[n][3] *= lower;
#pragma unroll
        for (u32 step = 0; step < TILE_KEYS / 16; step++) {
            const u16* w = weights + query * WEIGHT_STRIDE + step * 16 + t * 2;
            u32 a0 = *(const u32*)w, a1 = *(const u32*)(w + 8 * WEIGHT_STRIDE);
            u32 a2 = *(const u32*)(w + 8), a3 = *(const u32*)(w + 8 * WEIGHT_STRIDE + 8);
            // Lane i names a row of keys 0..7 or 8..15 (i / 8 % 2) of the first or second tile (i / 16).
            u32 row = step * 16 + lane % 16;
#pragma unroll
            for (u32 n = 0; n < OUT_TILES; n += 2) {
                u32 v[4];
                load_transposed(v, &tile.values[value_chunk(row, side * OUT_TILES + n + lane / 16)]);
                mma(out[n], a0, a1, a2, a3, v[0], v[1]);
                mma(out[n + 1], a0, a1, a2, a3, v[2], v[3]);
            }
        }
    }
    copies_done<0>();
    if (FEW && a.splits == 1) {
        // What few warps hold goes to all, by way of shared memory: in tiles' place, which nobody reads any more.
        __syncthreads();
        float* all = (float*)tiles;  // [count][HEAD_DIM]
        static_assert(TILE_QUERIES * HEAD_DIM * sizeof(float) <= 2 * sizeof(KeyTile), "sums fit where keys and values were");
        if (t == 0) correct[own] = mass;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 n = query + r * 8;
            if (n >= count) continue;
            float* to = all + n * HEAD_DIM + side * (HEAD_DIM / 2) + t * 2;
#pragma unroll
            for (u32 i = 0; i < OUT_TILES; i++) *(float2*)(to + i * 8) = {out[i][2 * r], out[i][2 * r + 1]};
        }
        __syncthreads();
        constexpr u32 AHEAD = 4;  // loads in flight before the first store
        for (u32 base = threadIdx.x; base < count * (HEAD_DIM / 2); base += AHEAD * 256) {
            float2 gate[AHEAD], factor[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u32 i = min(base + j * 256, count * (HEAD_DIM / 2) - 1), n = i / (HEAD_DIM / 2), col = i % (HEAD_DIM / 2) * 2;
                u32 head = kv_head * KV_GROUP + n % KV_GROUP;
                gate[j] = *(const float2*)(query_of(a, p.row0 + n / KV_GROUP, head) + HEAD_DIM + col);
                factor[j] = a.out_cols ? *(const float2*)(a.out_cols + head * HEAD_DIM + col) : float2{1.0f, 1.0f};
            }
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u32 i = base + j * 256, n = i / (HEAD_DIM / 2), col = i % (HEAD_DIM / 2) * 2;
                if (n >= count) break;
                float2 x = *(const float2*)(all + n * HEAD_DIM + col);
                float scale = 1.0f / correct[n];
                *(u32*)(a.hi + (u64)(p.row0 + n / KV_GROUP) * Q_PAD + (kv_head * KV_GROUP + n % KV_GROUP) * HEAD_DIM + col) =
                    half_pair(x.x * scale * sigmoid(gate[j].x) * factor[j].x, x.y * scale * sigmoid(gate[j].y) * factor[j].y);
            }
        }
        return;
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 n = first + query + r * 8;
        if (n >= count) continue;
        u64 row = (u64)split * a.rows + p.row0 + n / KV_GROUP;
        float* to = a.partial + (row * HEADS + kv_head * KV_GROUP + n % KV_GROUP) * PARTIAL + side * (HEAD_DIM / 2) + t * 2;
#pragma unroll
        for (u32 i = 0; i < OUT_TILES; i++) *(float2*)(to + i * 8) = {out[i][2 * r], out[i][2 * r + 1]};
    }
    if (t == 0 && first + own < count) {
        u64 row = (u64)split * a.rows + p.row0 + own_row;
        float* to = a.partial + (row * HEADS + kv_head * KV_GROUP + (first + own) % KV_GROUP) * PARTIAL + HEAD_DIM;
        to[0] = top;
        to[1] = mass;
    }
}

// Grid: (tiles of 64 queries of the longest part, KV_HEADS · splits, parts); 256 threads. The queries
// of a KV head are its rows times the heads that share it.
KERNEL(attention, Attention, 256) { attend<false>(a); }
KERNEL(attention_few, Attention, 256) { attend<true>(a); }
#else
// In f32.
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
#endif

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
        store_gated(a, row, head, i, x / mass);
    }
}
