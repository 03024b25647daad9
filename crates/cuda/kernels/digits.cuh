// Products of one row with quantised weights, in integers. The row is rounded to multiples of its largest over 2^15, or
// over 2^22 where it is to be as good as f32, and cut into digits of eight bits, which are two or three of the eight columns
// that `mma` multiplies at once. So weights of 8 bits are multiplied nearly as they are, those of 4 bits after three
// operations on eight of them, a third of what it takes to make halves of them; and sums are exact.

constexpr u32 DIGITS = SPLIT == 2 ? 3 : 2;
constexpr float LARGEST = DIGITS == 2 ? 32512.0f : 4194303.0f;

// What makes a row's numbers multiples of the unit.
__device__ __forceinline__ float units_of(float largest) { return largest > 0.0f ? LARGEST / largest : 0.0f; }

// A multiple of the unit as its digits, one a byte.
__device__ __forceinline__ u32 digits_of(float x) {
    // Floats from 1.5 · 2^23 on count in ones, and so do their bits. A digit is from -128 to 127: a byte of the number plus
    // 128 in every digit, less 128 again.
    constexpr u32 MIDDLE = DIGITS == 2 ? 0x8080 : 0x808080;
    return (__float_as_uint(__fadd_rn(x, 12582912.0f)) - 0x4b400000u + MIDDLE) ^ MIDDLE;
}

// Eight neighbours from a column on that is a multiple of eight, into planes `width` apart, at `to`: in the order in which
// words of 4-bit weights have theirs, or as they are.
template <u32 ENC> __device__ __forceinline__ void put8(u8* to, u32 width, const float (&x)[8], float by) {
    u32 d[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) d[i] = digits_of(x[ENC == Q4 ? i % 2 * 4 + i / 2 : i] * by);
#pragma unroll
    for (u32 p = 0; p < DIGITS; p++) {
        const u32 pick = p == 0 ? 0x40 : p == 1 ? 0x51 : 0x62;
        u32 a = __byte_perm(d[0], d[1], pick), b = __byte_perm(d[2], d[3], pick), c = __byte_perm(d[4], d[5], pick), e = __byte_perm(d[6], d[7], pick);
        *(uint2*)(to + p * width) = {__byte_perm(a, b, 0x5410), __byte_perm(c, e, 0x5410)};
    }
}

// A lane's digits of the 32 columns from `x` on: those of one digit, or none.
__device__ __forceinline__ uint2 load_digits(const u8* x, u32 width) {
    uint2 b = {0, 0};
    if (threadIdx.x % WARP < 4 * DIGITS) b = *(const uint2*)(x + threadIdx.x % WARP / 4 * width + threadIdx.x % 4 * 8);
    return b;
}

// A lane's part of the products of rows g and g + 8: of the first two digits where t is 0, of the third where it is 1.
struct Rows { float upper, lower; };

// acc += rows of tile `j` of a step times the digits of its 32 columns. `scale` is the lane's rung of a ladder.
__device__ __forceinline__ void multiply_digits(Rows& acc, const Packed<Q4>& w, int j, float scale, uint2 b) {
    u32 lane = threadIdx.x % WARP, top = j ? w.w.z : w.w.x, bottom = j ? w.w.w : w.w.y;
    const u32 mask = 0xf0f0f0f0, minus_8 = 0x80808080;  // as the 16-fold of a weight
    int c[4] = {};
    mma_bytes(c, and_xor(top << 4, mask, minus_8), and_xor(bottom << 4, mask, minus_8), and_xor(top, mask, minus_8), and_xor(bottom, mask, minus_8), b.x, b.y);
    float upper = __shfl_sync(FULL, scale, (lane & ~3u) + 2 * j), lower = __shfl_sync(FULL, scale, (lane & ~3u) + 2 * j + 1);
    // Of 32 columns, so that the sum of two digits' products fits.
    acc.upper = fmaf(upper, (float)(c[0] + 256 * c[1]), acc.upper), acc.lower = fmaf(lower, (float)(c[2] + 256 * c[3]), acc.lower);
}
__device__ __forceinline__ void multiply_digits(Rows& acc, const Packed<Q8>& w, int j, float, uint2 b) {
    const u32 minus_128 = 0x80808080;
    int c[4] = {};
    mma_bytes(c, w.w[j].x ^ minus_128, w.w[j].z ^ minus_128, w.w[j].y ^ minus_128, w.w[j].w ^ minus_128, b.x, b.y);
    acc.upper += (float)(c[0] + 256 * c[1]), acc.lower += (float)(c[2] + 256 * c[3]);
}

// A lane's rung, for weights that come as their 16-fold.
__device__ __forceinline__ float scale_of(const Packed<Q4>& w, Ladder ladder) { return rung(ladder.lo - 4.0f, ladder.step, w.code); }
__device__ __forceinline__ float scale_of(const Packed<Q8>&, Ladder) { return 1.0f; }

// All digits together, in lanes with t = 0.
__device__ __forceinline__ void join_digits(Rows& acc) {
    if constexpr (DIGITS == 3) {
        float third = threadIdx.x % 4 == 0 ? 1.0f : 65536.0f;
        acc.upper *= third, acc.lower *= third;
        acc.upper += __shfl_xor_sync(FULL, acc.upper, 1), acc.lower += __shfl_xor_sync(FULL, acc.lower, 1);
    }
}
