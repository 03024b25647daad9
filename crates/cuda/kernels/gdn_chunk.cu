// The causal recurrence of long commits, 32 rows at a time on tensor cores.
//
// With decays d, write strengths b, G_t = d_1 .. d_t and r(t, i) = d_{i+1} .. d_t inside a chunk, the rows'
// writes D to the memory S solve a triangular system (the WY form of a product of Householder-like steps):
//
//   (1 + A) D = b (V - G K S)       A_ti = b_t r(t, i) k_t k_i   for i < t
//   read_t = G_t q_t S + sum_{i <= t} r(t, i) (q_t k_i) D_i
//   S' = G_32 S + sum_i r(32, i) k_i (x) D_i
//
// `gdn_solve` computes T = (1 + A)^-1 b and P_ti = r(t, i) q_t k_i for all chunks at once; only what depends
// on S is left to the walk over the chunks in `gdn_chunks`. Matrices are halves (entries of T and P are at
// most 1 in size), sums and S are f32. Commits of few rows and replays run `recur` in gdn.cu, in f32.

#if SHAMROCK_SPLIT == 1
constexpr u32 CHUNK = 32;
constexpr u32 CHUNK_COLS = 32;     // columns of S of a block
constexpr u32 CHUNK_THREADS = 128;
constexpr u32 HEAD_GROUP = VALUE_HEADS / KEY_HEADS;
constexpr u32 KQ_STRIDE = DK + 8;  // halves: rows start in different banks
constexpr u32 SQUARE_STRIDE = CHUNK + 8;
constexpr u32 QK_WIDTH = 2 * KEY_WIDTH;

// A 16x16 operand a of `mma` from shared rows of halves.
__device__ __forceinline__ void load_operand(u32 (&r)[4], const u16* rows, u32 stride, u32 lane) {
    const u16* at = rows + lane / 4 * stride + lane % 4 * 2;
    r[0] = *(const u32*)at, r[1] = *(const u32*)(at + 8 * stride);
    r[2] = *(const u32*)(at + 8), r[3] = *(const u32*)(at + 8 * stride + 8);
}

// Two 16x8 operands b, side by side, from shared rows of halves.
__device__ __forceinline__ void load_columns(u32 (&r)[4], const u16* rows, u32 stride, u32 lane) {
    load_transposed(r, rows + (lane % 16) * stride + lane / 16 * 8);
}

// Grid: (chunks of the longest commit, VALUE_HEADS, commit parts). Gates become G_t and r(32, t) in place.
KERNEL(gdn_solve, Mixer, CHUNK_THREADS) {
    begin();
    __shared__ __align__(16) u16 k[CHUNK][KQ_STRIDE], q[CHUNK][KQ_STRIDE];
    __shared__ float products[2][CHUNK][CHUNK + 1], gate[2][CHUNK];
    const Part p = a.parts[blockIdx.z];
    u32 t0 = blockIdx.x * CHUNK, head = blockIdx.y, key = head / HEAD_GROUP;
    if (t0 >= p.rows) return;
    u32 rows = min(CHUNK, p.rows - t0), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u64 row0 = p.row0 + t0;
    if (threadIdx.x < 2 * CHUNK) {
        u32 t = threadIdx.x % CHUNK, which = threadIdx.x / CHUNK;
        // Rows behind the end keep the memory as it is and write nothing.
        gate[which][t] = t < rows ? a.gates[((row0 + t) * 2 + which) * VALUE_HEADS + head] : which == 0 ? 1.0f : 0.0f;
    }
    for (u32 i = threadIdx.x; i < CHUNK * DK / 4; i += CHUNK_THREADS) {
        u32 t = i / (DK / 4), c = i % (DK / 4) * 4;
        const float* from = a.rows + (row0 + t) * CHANNELS + key * DK + c;
        float4 x = {}, y = {};
        if (t < rows) x = *(const float4*)from, y = *(const float4*)(from + KEY_WIDTH);
        uint2 xh = {half_pair(x.x, x.y), half_pair(x.z, x.w)}, yh = {half_pair(y.x, y.y), half_pair(y.z, y.w)};
        *(uint2*)&q[t][c] = xh, *(uint2*)&k[t][c] = yh;
        if (t < rows && head % HEAD_GROUP == 0) {
            u16* to = a.qk + (row0 + t) * QK_WIDTH + key * DK + c;
            *(uint2*)to = xh, *(uint2*)(to + KEY_WIDTH) = yh;
        }
    }
    __syncthreads();
    // k k and q k: a warp has 16 rows of one of them.
    {
        u32 which = warp / 2, m = warp % 2 * 16;
        float c[CHUNK / 8][4] = {};
#pragma unroll
        for (u32 d = 0; d < DK; d += 16) {
            u32 left[4];
            load_operand(left, which ? &q[m][d] : &k[m][d], KQ_STRIDE, lane);
#pragma unroll
            for (u32 n = 0; n < CHUNK / 8; n++) {
                const u16* right = &k[n * 8 + lane / 4][d + lane % 4 * 2];
                mma(c[n], left[0], left[1], left[2], left[3], *(const u32*)right, *(const u32*)(right + 8));
            }
        }
#pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) products[which][m + lane / 4 + i / 2 * 8][n * 8 + lane % 4 * 2 + i % 2] = c[n][i];
    }
    __syncthreads();
    u16* out = a.squares + ((row0 * VALUE_HEADS + head) * 2 + warp) * CHUNK + lane;
    constexpr u32 NEXT_ROW = VALUE_HEADS * 2 * CHUNK;
    if (warp == 0) {
        // Column `lane` of T, row by row from the ones above.
        float column[CHUNK], ratio = 1.0f, write = gate[1][lane];
#pragma unroll
        for (u32 t = 0; t < CHUNK; t++) {
            if (lane < t) ratio *= gate[0][t];
            float left = lane < t ? gate[1][t] * ratio * products[0][t][lane] : 0.0f;
            float sum = lane == t ? 1.0f : 0.0f;
#pragma unroll
            for (u32 i = 0; i < t; i++) sum = fmaf(-__shfl_sync(FULL, left, i), column[i], sum);
            column[t] = sum;
            if (t < rows) out[t * NEXT_ROW] = to_half(sum * write);
        }
    } else if (warp == 1) {
        float ratio = 1.0f, decay = 1.0f, until = 1.0f;
        for (u32 t = 0; t < CHUNK; t++) {
            if (lane < t) ratio *= gate[0][t];
            decay *= gate[0][t];
            if (lane == t) until = decay;
            if (t < rows) out[t * NEXT_ROW] = lane <= t ? to_half(ratio * products[1][t][lane]) : 0;
        }
        if (lane < rows) {
            a.gates[((row0 + lane) * 2) * VALUE_HEADS + head] = until;
            a.gates[((row0 + lane) * 2 + 1) * VALUE_HEADS + head] = ratio;
        }
    }
}

struct ChunkStage {
    u16 k[CHUNK][KQ_STRIDE], q[CHUNK][KQ_STRIDE];
    u16 squares[2][CHUNK][SQUARE_STRIDE];  // T, P
};

struct ChunkShared {
    ChunkStage stages[2];
    u16 memory[DK][SQUARE_STRIDE];      // S as halves
    u16 missing[CHUNK][SQUARE_STRIDE];  // V - G K S
    u16 writes[CHUNK][SQUARE_STRIDE];   // D
    u16 kept[CHUNK][SQUARE_STRIDE];     // D as it is left at the chunk's end
};

// c += 16 rows of a chunk's square times 16 columns of one value a row.
__device__ __forceinline__ void multiply_square(float (&c)[2][4], const u16* square, const u16* columns, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < CHUNK; i += 16) {
        u32 left[4], x[4];
        load_operand(left, square + i, SQUARE_STRIDE, lane);
        load_columns(x, columns + i * SQUARE_STRIDE, SQUARE_STRIDE, lane);
#pragma unroll
        for (u32 n = 0; n < 2; n++) mma(c[n], left[0], left[1], left[2], left[3], x[2 * n], x[2 * n + 1]);
    }
}

__device__ __forceinline__ void fetch_chunk(ChunkStage& stage, const Mixer& a, u64 row0, u32 rows, u32 head) {
    u32 key = head / HEAD_GROUP;
    for (u32 i = threadIdx.x; i < CHUNK * DK / 8; i += CHUNK_THREADS) {
        u32 t = i / (DK / 8), c = i % (DK / 8) * 8;
        const u16* from = a.qk + (row0 + t) * QK_WIDTH + key * DK + c;
        if (t < rows) copy_16(&stage.q[t][c], from), copy_16(&stage.k[t][c], from + KEY_WIDTH);
        else *(uint4*)&stage.q[t][c] = uint4{}, *(uint4*)&stage.k[t][c] = uint4{};
    }
    for (u32 i = threadIdx.x; i < 2 * CHUNK * CHUNK / 8; i += CHUNK_THREADS) {
        u32 t = i / (CHUNK / 8) / 2, which = i / (CHUNK / 8) % 2, c = i % (CHUNK / 8) * 8;
        if (t < rows) copy_16(&stage.squares[which][t][c], a.squares + (((row0 + t) * VALUE_HEADS + head) * 2 + which) * CHUNK + c);
        else *(uint4*)&stage.squares[which][t][c] = uint4{};
    }
}

// Grid: (VALUE_HEADS, DV / 32, commit parts). A block walks over the chunks with 32 columns of a head's
// memory; in registers each warp has every fourth run of 16 key dims of them. Results of the other
// products are cut into 16 rows by 16 columns a warp.
KERNEL(gdn_chunks, Mixer, CHUNK_THREADS) {
    begin();
    DYNAMIC_SHARED(dynamic);
    ChunkShared& shared = *(ChunkShared*)dynamic;
    const Part p = a.parts[blockIdx.z];
    float* state = p.gdn + (u64)a.layer * GDN_STATE;
    u32 head = blockIdx.x, col0 = blockIdx.y * CHUNK_COLS, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 g = lane / 4, t2 = lane % 4 * 2, m = warp % 2 * 16, n = warp / 2 * 16;
    float* memory = state + RING * CHANNELS + (u64)head * DK * DV + col0;
    constexpr u32 RUNS = (DK / 16 + 3) / 4;  // of 16 key dims, of a warp
    const float scale = rsqrtf((float)DK);

    float s[RUNS][CHUNK_COLS / 8][4];
#pragma unroll
    for (u32 r = 0; r < RUNS; r++)
#pragma unroll
        for (u32 c = 0; c < CHUNK_COLS / 8; c++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 dim = min((r * 4 + warp) * 16, DK - 16) + g + i * 8;
                float2 x = *(const float2*)(memory + (u64)dim * DV + c * 8 + t2);
                s[r][c][2 * i] = x.x, s[r][c][2 * i + 1] = x.y;
            }
    fetch_chunk(shared.stages[0], a, p.row0, min(CHUNK, p.rows), head);
    end_copy_group();
    for (u32 t0 = 0, at = 0; t0 < p.rows; t0 += CHUNK, at ^= 1) {
        u32 rows = min(CHUNK, p.rows - t0);
        u64 row0 = p.row0 + t0;
        const ChunkStage& stage = shared.stages[at];
        // This lane's values, decays to its rows, and from its rows on.
        float value[2][4], until[2], after[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u64 row = row0 + min(m + g + i * 8, rows - 1);
            bool there = m + g + i * 8 < rows;
            until[i] = a.gates[row * 2 * VALUE_HEADS + head];
            after[i] = there ? a.gates[(row * 2 + 1) * VALUE_HEADS + head] : 0.0f;
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                float2 x = *(const float2*)(a.rows + row * CHANNELS + 2 * KEY_WIDTH + head * DV + col0 + n + c * 8 + t2);
                value[c][2 * i] = there ? x.x : 0.0f, value[c][2 * i + 1] = there ? x.y : 0.0f;
            }
        }
        float all = a.gates[(row0 + rows - 1) * 2 * VALUE_HEADS + head];
#pragma unroll
        for (u32 r = 0; r < RUNS; r++)
            if ((r * 4 + warp) * 16 < DK)
#pragma unroll
                for (u32 c = 0; c < CHUNK_COLS / 8; c++)
#pragma unroll
                    for (u32 i = 0; i < 2; i++)
                        *(u32*)&shared.memory[(r * 4 + warp) * 16 + g + i * 8][c * 8 + t2] = half_pair(s[r][c][2 * i], s[r][c][2 * i + 1]);
        copies_done<0>();
        __syncthreads();
        if (t0 + CHUNK < p.rows) fetch_chunk(shared.stages[at ^ 1], a, row0 + CHUNK, min(CHUNK, p.rows - t0 - CHUNK), head);
        end_copy_group();

        float ks[2][4] = {}, qs[2][4] = {};
#pragma unroll
        for (u32 d = 0; d < DK; d += 16) {
            u32 k[4], q[4], x[4];
            load_operand(k, &stage.k[m][d], KQ_STRIDE, lane);
            load_operand(q, &stage.q[m][d], KQ_STRIDE, lane);
            load_columns(x, &shared.memory[d][n], SQUARE_STRIDE, lane);
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                mma(ks[c], k[0], k[1], k[2], k[3], x[2 * c], x[2 * c + 1]);
                mma(qs[c], q[0], q[1], q[2], q[3], x[2 * c], x[2 * c + 1]);
            }
        }
#pragma unroll
        for (u32 c = 0; c < 2; c++)
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                *(u32*)&shared.missing[m + g + i * 8][n + c * 8 + t2] =
                    half_pair(fmaf(-until[i], ks[c][2 * i], value[c][2 * i]), fmaf(-until[i], ks[c][2 * i + 1], value[c][2 * i + 1]));
        __syncthreads();

        float d[2][4] = {};
        multiply_square(d, &stage.squares[0][m][0], &shared.missing[0][n], lane);
#pragma unroll
        for (u32 c = 0; c < 2; c++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 row = m + g + i * 8, col = n + c * 8 + t2;
                *(u32*)&shared.writes[row][col] = half_pair(d[c][2 * i], d[c][2 * i + 1]);
                *(u32*)&shared.kept[row][col] = half_pair(after[i] * d[c][2 * i], after[i] * d[c][2 * i + 1]);
            }
        __syncthreads();

        float o[2][4] = {};
        multiply_square(o, &stage.squares[1][m][0], &shared.writes[0][n], lane);
#pragma unroll
        for (u32 c = 0; c < 2; c++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                if (m + g + i * 8 >= rows) continue;
                float2 x = {scale * fmaf(until[i], qs[c][2 * i], o[c][2 * i]), scale * fmaf(until[i], qs[c][2 * i + 1], o[c][2 * i + 1])};
                *(float2*)(a.read + (row0 + m + g + i * 8) * VALUE_WIDTH + head * DV + col0 + n + c * 8 + t2) = x;
            }
#pragma unroll
        for (u32 r = 0; r < RUNS; r++) {
            if ((r * 4 + warp) * 16 >= DK) continue;
#pragma unroll
            for (u32 c = 0; c < CHUNK_COLS / 8; c++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) s[r][c][i] *= all;
#pragma unroll
            for (u32 i = 0; i < CHUNK; i += 16) {
                u32 left[4];
                // k transposed: key dims are the rows of this operand.
                load_transposed(left, &stage.k[i + lane / 16 * 8 + lane % 8][(r * 4 + warp) * 16 + lane / 8 % 2 * 8]);
#pragma unroll
                for (u32 c = 0; c < CHUNK_COLS / 8; c += 2) {
                    u32 x[4];
                    load_columns(x, &shared.kept[i][c * 8], SQUARE_STRIDE, lane);
                    mma(s[r][c], left[0], left[1], left[2], left[3], x[0], x[1]);
                    mma(s[r][c + 1], left[0], left[1], left[2], left[3], x[2], x[3]);
                }
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < RUNS; r++)
        if ((r * 4 + warp) * 16 < DK)
#pragma unroll
            for (u32 c = 0; c < CHUNK_COLS / 8; c++)
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    float2 x = {s[r][c][2 * i], s[r][c][2 * i + 1]};
                    *(float2*)(memory + (u64)((r * 4 + warp) * 16 + g + i * 8) * DV + c * 8 + t2) = x;
                }
    u32 block = blockIdx.y * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
    keep_ring(a, p, state, block * blockDim.x + threadIdx.x, CHANNELS, blocks * blockDim.x);
}
#endif
