// Types, geometry and small primitives that every kernel shares.
//
// The geometry comes in as macros from the host (`compile.rs`): a module is compiled for one model,
// so that loops unroll and shapes fold.

constexpr u32 HIDDEN = SHAMROCK_HIDDEN;
constexpr u32 VOCAB = SHAMROCK_VOCAB;
constexpr u32 HEADS = SHAMROCK_HEADS;
constexpr u32 KV_HEADS = SHAMROCK_KV_HEADS;
constexpr u32 HEAD_DIM = SHAMROCK_HEAD_DIM;
constexpr u32 ROTARY = SHAMROCK_ROTARY;
constexpr u32 KEY_HEADS = SHAMROCK_KEY_HEADS;
constexpr u32 VALUE_HEADS = SHAMROCK_VALUE_HEADS;
constexpr u32 DK = SHAMROCK_KEY_DIM;
constexpr u32 DV = SHAMROCK_VALUE_DIM;
constexpr u32 TAPS = SHAMROCK_CONV_KERNEL;
constexpr u32 EXPERTS = SHAMROCK_EXPERTS;
constexpr u32 TOP_K = SHAMROCK_TOP_K;
constexpr bool NORM_TOPK = SHAMROCK_NORM_TOPK;
constexpr float EPS = SHAMROCK_EPS;
// 2 keeps a rounding remainder of every activation (f32-like products), 1 does not.
constexpr u32 SPLIT = SHAMROCK_SPLIT;
// Encoding of every expert matrix, the shared expert's included.
constexpr u32 EXPERT_ENCODING = SHAMROCK_EXPERT_ENCODING;

constexpr u32 KEY_WIDTH = KEY_HEADS * DK;
constexpr u32 VALUE_WIDTH = VALUE_HEADS * DV;
constexpr u32 CHANNELS = 2 * KEY_WIDTH + VALUE_WIDTH;
constexpr u32 RING = TAPS - 1;
constexpr u32 MEMORY = VALUE_HEADS * DK * DV;
// One linear layer's state: ring rows, then the associative memory.
constexpr u32 GDN_STATE = RING * CHANNELS + MEMORY;
constexpr u32 Q_WIDTH = HEADS * HEAD_DIM;
constexpr u32 KV_WIDTH = KV_HEADS * HEAD_DIM;
constexpr u32 KV_GROUP = HEADS / KV_HEADS;

// Widths of activation rows are padded to whole steps of the matrix products.
__device__ constexpr u32 padded(u32 n) { return (n + 63) / 64 * 64; }
constexpr u32 HIDDEN_PAD = padded(HIDDEN);

#if SHAMROCK_KV_HALF
typedef u16 kv_t;
#else
typedef float kv_t;
#endif

constexpr u32 COMMIT = 0, PREVIEW = 1;

// The rows of one part (commit or preview) of one step; mirrors `abi::Part`.
struct Part {
    u32 kind;
    u32 row0;       // first row in the pass
    u32 rows;
    u32 position;   // position of the first row
    u32 kv_rows;    // rows that the sequence's KV planes have room for
    u32 pad;
    kv_t* kv;       // [attention layers][k, v][kv_rows][KV_WIDTH]
    float* gdn;     // [linear layers][GDN_STATE]
    float* undo;    // [linear layers][rows][UNDO_ROW] or null
};

// What a row keeps for a rewind: raw channels, convolved channels, decay and write strength.
constexpr u32 UNDO_ROW = 2 * CHANNELS + 2 * VALUE_HEADS;

// A matrix in the device's tile layout (`layout.cuh`); mirrors `abi::Matrix`.
constexpr u32 Q4 = 0, Q8 = 1, F16 = 2;
struct Matrix {
    const u8* tiles;
    const u8* codes;      // Q4: ladder rungs, one byte per lane and step
    const float* scales;  // Q8: one per padded row; Q4: (lo, step) per padded row
    u32 encoding;
    u32 rows;
    u32 row_tiles;        // padded rows / 16
    u32 steps;            // padded columns / 64
};

// Rows by expert, filled by `group_rows`; mirrors `abi::Groups`.
struct Groups {
    uint4* work;  // [EXPERTS]: (expert, first pair, rows, 0), ascending; rows are 0 behind the last
    u32* pairs;   // row · TOP_K + slot, by expert
};

constexpr u32 WARP = 32;
constexpr u32 FULL = 0xffffffffu;

// Every kernel starts with this, or with its two halves apart.
__device__ __forceinline__ void begin() {
    let_next_start();
    wait_for_previous();
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int d = 16; d; d >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, d));
    return x;
}

// Sum over a block of up to 1024 threads, in a fixed order; `scratch` holds 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    u32 warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
    __syncthreads();
    if (threadIdx.x % WARP == 0) scratch[warp] = x;
    __syncthreads();
    x = threadIdx.x % WARP < warps ? scratch[threadIdx.x % WARP] : 0.0f;
    return warp_sum(x);
}

// For a block: whether it is the last of `count` to come here. It then sees what the others wrote before. The
// counter is zero again behind the last one, so that the next launch finds it so.
__device__ __forceinline__ bool last_to_arrive(u32* arrived, u32 count) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(arrived, count - 1) == count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
// ln(1 + e^x) without overflow.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Nearest half, saturating: a finite float never becomes an infinity.
__device__ __forceinline__ u16 to_half(float x) { return half_bits(fminf(fmaxf(x, -65504.0f), 65504.0f)); }

// Two halves, the first in the low bits.
__device__ __forceinline__ u32 half_pair(float lo, float hi) { return to_half(lo) | (u32)to_half(hi) << 16; }

// Stores an activation as half, and its rounding remainder where products keep one.
__device__ __forceinline__ void store_split(u16* hi, u16* lo, u64 at, float x) {
    u16 h = to_half(x);
    hi[at] = h;
    if (lo) lo[at] = to_half(x - from_half(h));
}

__device__ __forceinline__ float kv_load(const float* p) { return *p; }
__device__ __forceinline__ float kv_load(const u16* p) { return from_half(*p); }
__device__ __forceinline__ float4 kv_load4(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 kv_load4(const u16* p) {
    ushort4 h = *(const ushort4*)p;
    return {from_half(h.x), from_half(h.y), from_half(h.z), from_half(h.w)};
}
__device__ __forceinline__ void kv_store(float* p, float x) { *p = x; }
__device__ __forceinline__ void kv_store(u16* p, float x) { *p = to_half(x); }
