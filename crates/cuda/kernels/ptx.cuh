// Types, how kernels are declared, and the instructions that CUDA C++ has no name for. No CUDA
// header is needed: half precision is handled as raw bits.
//
// Everything here has a twin in `standin/device.h`, which takes its place where kernels run on a CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef SHAMROCK_STANDIN

// A kernel and its one parameter `a`; after them threads of a block, at most, and, where registers
// are to be bounded, resident blocks.
#define KERNEL(name, Args, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Args a)

// The launch's dynamic shared memory.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]

// From Hopper on, a kernel is launched while the one before it still runs: its blocks may take
// their places, and wait until what they read has been written.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Nearest half; overflows to infinity.
__device__ __forceinline__ u16 half_bits(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

__device__ __forceinline__ float from_half(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

__device__ __forceinline__ u32 half2_sub(u32 a, u32 b) {
    u32 r;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// The largest and the smallest of a warp.
__device__ __forceinline__ u32 warp_max_bits(u32 x) {
    u32 r;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x));
    return r;
}
__device__ __forceinline__ u32 warp_min_bits(u32 x) {
    u32 r;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x));
    return r;
}

// (a & mask) | bits in one instruction.
__device__ __forceinline__ u32 and_or(u32 a, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}

// (a & mask) ^ bits in one instruction.
__device__ __forceinline__ u32 and_xor(u32 a, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}

// What passes once is to make way first in the L2 cache, so that instructions and activations stay.
__device__ __forceinline__ u64 passing() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Streaming load: weights pass once, activations stay in L1.
__device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(passing()));
    return v;
}

// Has the line at `p` brought to the L2 cache.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// c += a b for a warp: a is 16x16, b 16x8, c 16x8. With (g, t) = (lane / 4, lane % 4) a lane holds
//   a0 a1 a2 a3   rows g, g+8, g, g+8, columns 2t 2t+1 (a0, a1) and 2t+8 2t+9 (a2, a3)
//   b0 b1         rows 2t 2t+1 and 2t+8 2t+9 of column g
//   c             rows g (c[0], c[1]) and g+8, columns 2t 2t+1
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c = a b: the first of a chain.
__device__ __forceinline__ void mma_first(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

// c += a b for a warp, in signed bytes: a is 16x32, b 32x8, c 16x8. With (g, t) = (lane / 4, lane % 4) a lane holds
//   a0 a1 a2 a3   rows g, g+8, g, g+8, columns 4t .. 4t+3 (a0, a1) and 4t+16 .. 4t+19 (a2, a3)
//   b0 b1         rows 4t .. 4t+3 and 4t+16 .. 4t+19 of column g
//   c             as in `mma`
__device__ __forceinline__ void mma_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Copies 16 bytes from global to shared memory in the background. A group is what a thread has begun
// since its last group; `copies_done` waits until at most `LATER` of its groups are on their way.
__device__ __forceinline__ void copy_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}
// The same for weights.
__device__ __forceinline__ void copy_stream(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "l"(passing()) : "memory");
}
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// Four 8x8 matrices of halves from shared memory, transposed: lane i names row i % 8 (16 bytes) of
// matrix i / 8, and receives from each matrix m, in r[m], rows 2t and 2t+1 of column g.
__device__ __forceinline__ void load_transposed(u32 (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(shared_row))
                 : "memory");
}

#endif
