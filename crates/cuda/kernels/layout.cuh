// The device's weight layout: tiles that a warp loads with whole 16-byte accesses and that are
// already in the register order of `mma.m16n8k16`.
//
// A matrix is cut into tiles of 16 rows by 32 columns, row tile by row tile, columns running
// fastest, both padded with zeros (rows to 16, columns to 64). Lane (g, t) = (lane / 4, lane % 4)
// of a warp owns rows g and g + 8 and columns 8t .. 8t + 7 of a tile. Products do not care about
// the order of their columns as long as both operands agree, so a lane's eight consecutive columns
// serve as columns {2t, 2t+1, 2t+8, 2t+9} of two successive k16 products, and the lane of the other
// operand reads eight consecutive activations with one access.
//
//   F16  1024 bytes a tile: row g of every lane (16 bytes each), then row g + 8
//   Q8    512 bytes a tile: 8 bytes of row g, 8 bytes of row g + 8, stored as q + 128
//   Q4    256 bytes a tile, two tiles interleaved: words (g, tile 0), (g+8, 0), (g, 1), (g+8, 1);
//         within a word column e sits at nibble e/2 + 4(e%2), so that masks give adjacent columns.
//         One code byte per lane and two tiles: lane (g, t) holds row g + 8(t%2), tile t/2.

// Weights of two tiles (64 columns) of one row tile, as loaded.
template <u32 ENC> struct Packed;
template <> struct Packed<Q4> { uint4 w; u32 code; };
template <> struct Packed<Q8> { uint4 w[2]; };
template <> struct Packed<F16> { uint4 w[4]; };

__device__ __forceinline__ void load_packed(Packed<Q4>& a, const Matrix& m, u32 tile, u32 step, u32 lane) {
    u64 at = ((u64)tile * m.steps + step) * WARP + lane;
    a.w = load_stream(m.tiles + at * 16);
    a.code = __ldg(m.codes + at);
}
__device__ __forceinline__ void load_packed(Packed<Q8>& a, const Matrix& m, u32 tile, u32 step, u32 lane) {
    const u8* p = m.tiles + (((u64)tile * m.steps + step) * 2 * WARP + lane) * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) a.w[i] = load_stream(p + i * 512);
}
__device__ __forceinline__ void load_packed(Packed<F16>& a, const Matrix& m, u32 tile, u32 step, u32 lane) {
    const u8* p = m.tiles + (((u64)tile * m.steps + step) * 4 * WARP + lane) * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) a.w[i] = load_stream(p + i * 512);
}

// Eight nibbles to four half2 of (nibble - 8): a nibble under the exponent of 1024 is 1024 + n,
// one four bits higher is 1024 + 16 n.
__device__ __forceinline__ void expand_nibbles(u32 w, u32 (&h)[4]) {
    const u32 mask = 0x000f000f, mask16 = 0x00f000f0, k1024 = 0x64006400;
    h[0] = half2_sub(and_or(w, mask, k1024), 0x64086408);
    h[1] = half2_fma(and_or(w, mask16, k1024), 0x2c002c00, 0xd480d480);
    w >>= 8;
    h[2] = half2_sub(and_or(w, mask, k1024), 0x64086408);
    h[3] = half2_fma(and_or(w, mask16, k1024), 0x2c002c00, 0xd480d480);
}

// Eight bytes (q + 128) to four half2 of q.
__device__ __forceinline__ void expand_bytes(u32 lo, u32 hi, u32 (&h)[4]) {
    const u32 k1024 = 0x64646464, k1152 = 0x64806480;
    h[0] = half2_sub(__byte_perm(lo, k1024, 0x4140), k1152);
    h[1] = half2_sub(__byte_perm(lo, k1024, 0x4342), k1152);
    h[2] = half2_sub(__byte_perm(hi, k1024, 0x4140), k1152);
    h[3] = half2_sub(__byte_perm(hi, k1024, 0x4342), k1152);
}

// The half2 columns of rows g and g + 8 in tile `j` (0 or 1) of a step.
__device__ __forceinline__ void expand(const Packed<Q4>& a, int j, u32 (&top)[4], u32 (&bottom)[4]) {
    expand_nibbles(j ? a.w.z : a.w.x, top);
    expand_nibbles(j ? a.w.w : a.w.y, bottom);
}
__device__ __forceinline__ void expand(const Packed<Q8>& a, int j, u32 (&top)[4], u32 (&bottom)[4]) {
    expand_bytes(a.w[j].x, a.w[j].y, top);
    expand_bytes(a.w[j].z, a.w[j].w, bottom);
}
__device__ __forceinline__ void expand(const Packed<F16>& a, int j, u32 (&top)[4], u32 (&bottom)[4]) {
    uint4 x = a.w[2 * j], y = a.w[2 * j + 1];
    top[0] = x.x, top[1] = x.y, top[2] = x.z, top[3] = x.w;
    bottom[0] = y.x, bottom[1] = y.y, bottom[2] = y.z, bottom[3] = y.w;
}

// A rung of a q4tp ladder. The file defines rung c by c successive products in f32, which stays
// within 31 roundings (4e-6) of this.
__device__ __forceinline__ float rung(float lo, float step, u32 code) {
    return exp2f(fmaf((float)code, step, lo));
}

// One weight, for gathers.
__device__ __forceinline__ float decode(const Matrix& m, const float* cols, u32 row, u32 col) {
    u32 tile = row / 16, r = row % 16, c = col % 32, lane = (r % 8) * 4 + c / 8, e = c % 8;
    u64 k32 = (u64)tile * m.steps * 2 + col / 32;
    float w;
    if (m.encoding == F16) {
        w = from_half(((const u16*)m.tiles)[((k32 * 2 + r / 8) * WARP + lane) * 8 + e]);
    } else if (m.encoding == Q8) {
        w = ((float)m.tiles[(k32 * WARP + lane) * 16 + r / 8 * 8 + e] - 128.0f) * m.scales[row];
    } else {
        u64 step = k32 / 2, j = k32 % 2;
        u32 word = ((const u32*)m.tiles)[(step * WARP + lane) * 4 + j * 2 + r / 8];
        float n = (float)(word >> 4 * (e / 2 + 4 * (e % 2)) & 15) - 8.0f;
        u32 code = m.codes[step * WARP + (r % 8) * 4 + j * 2 + r / 8];
        w = n * rung(m.scales[2 * row], m.scales[2 * row + 1], code);
    }
    return cols ? w * cols[col] : w;
}
