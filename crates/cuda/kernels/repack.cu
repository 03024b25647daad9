// From the file's rows to the device's tiles. One thread writes 16 bytes.

struct Repack {
    const u8* source;   // numbers in the file's order, from `row0` on
    const u16* params;  // scales from `row0` on: one half per row, q4tp two
    const u8* codes;    // q4tp: packed 5-bit codes from `row0` on
    u8* tiles;          // of the whole matrix, as are the two below
    u8* tile_codes;
    float* scales;
    u32 row0;           // a multiple of 16
    u32 rows;           // rows in this chunk
    u32 cols;
    u32 steps;
};

__device__ __forceinline__ bool lane_of(const Repack& a, u32 per_step, u64& unit, u32& row_tile, u32& column, u32& lane) {
    unit = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 tiles = (u64)((a.rows + 15) / 16) * a.steps * per_step;
    if (unit >= tiles * WARP) return false;
    lane = unit % WARP;
    u64 tile = unit / WARP;
    row_tile = tile / (a.steps * per_step);
    column = tile % (a.steps * per_step);
    unit += (u64)(a.row0 / 16) * a.steps * per_step * WARP;
    return true;
}

// Halves: two units of 16 bytes per lane and tile, one for each row.
KERNEL(repack_f16, Repack, 256) {
    begin();
    u64 unit;
    u32 row_tile, column, lane;
    if (!lane_of(a, 4, unit, row_tile, column, lane)) return;
    u32 row = row_tile * 16 + column % 2 * 8 + lane / 4, col = column / 2 * 32 + lane % 4 * 8;
    __align__(16) u16 out[8];
#pragma unroll
    for (u32 e = 0; e < 8; e++)
        out[e] = row < a.rows && col + e < a.cols ? ((const u16*)a.source)[(u64)row * a.cols + col + e] : 0;
    ((uint4*)a.tiles)[unit] = *(uint4*)out;
}

KERNEL(repack_q8, Repack, 256) {
    begin();
    u64 unit;
    u32 row_tile, column, lane;
    if (!lane_of(a, 2, unit, row_tile, column, lane)) return;
    u32 col = column * 32 + lane % 4 * 8;
    __align__(16) u8 out[16];
#pragma unroll
    for (u32 e = 0; e < 16; e++) {
        u32 row = row_tile * 16 + lane / 4 + e / 8 * 8, c = col + e % 8;
        out[e] = (row < a.rows && c < a.cols ? a.source[(u64)row * a.cols + c] : 0) ^ 0x80;
    }
    ((uint4*)a.tiles)[unit] = *(uint4*)out;
    u32 row = row_tile * 16 + lane;
    if (column == 0 && lane < 16) a.scales[a.row0 + row] = row < a.rows ? from_half(a.params[row]) : 0.0f;
}

KERNEL(repack_q4, Repack, 256) {
    begin();
    u64 unit;
    u32 row_tile, step, lane;
    if (!lane_of(a, 1, unit, row_tile, step, lane)) return;
    u32 groups = a.cols / 32, stride = (5 * groups + 7) / 8;
    __align__(16) u32 out[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = row_tile * 16 + lane / 4 + i % 2 * 8, group = step * 2 + i / 2;
        u32 word = 0;
        // Padding stands for zero, nibble 8.
        for (u32 e = 0; e < 8; e++) {
            u32 n = 8;
            if (row < a.rows && group < groups) {
                u32 c = lane % 4 * 8 + e;
                n = a.source[((u64)row * groups + group) * 16 + c / 2] >> 4 * (c % 2) & 15;
            }
            word |= n << 4 * (e / 2 + 4 * (e % 2));
        }
        out[i] = word;
    }
    ((uint4*)a.tiles)[unit] = *(uint4*)out;
    u32 row = row_tile * 16 + lane / 4 + lane % 2 * 8, group = step * 2 + lane % 4 / 2;
    u32 code = 0;
    if (row < a.rows && group < groups) {
        const u8* codes = a.codes + (u64)row * stride;
        u32 bit = 5 * group, two = codes[bit / 8];
        if (bit / 8 + 1 < stride) two |= codes[bit / 8 + 1] << 8;
        code = two >> bit % 8 & 31;
    }
    a.tile_codes[unit] = code;
    row = row_tile * 16 + lane / 2;
    if (step == 0) a.scales[2 * (a.row0 + row) + lane % 2] = row < a.rows ? from_half(a.params[2 * row + lane % 2]) : 0.0f;
}
