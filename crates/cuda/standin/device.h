// The device language on a CPU: what the kernels use of CUDA C++, and the twins of `ptx.cuh`.
// Stands before every kernel module that the stand-in for NVRTC compiles.
#pragma once
#define SHAMROCK_STANDIN 1
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "fibers.h"

#define __device__
#define __forceinline__ inline
// One section holds all of a module's shared memory, so that every block finds it poisoned.
#define __shared__ static __attribute__((section("standin_shared")))
#define __align__(n) __attribute__((aligned(n)))

extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_standin_shared[], __stop_standin_shared[];

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

#define threadIdx (standin_fiber->index)
#define blockIdx (standin_block.index)
#define blockDim (standin_block.threads)
#define gridDim (standin_block.blocks)

// Internal linkage for everything, shared memory above all: `nvrtc.cpp` closes this behind the module.
namespace {

struct Registration {
    template <typename Args, void (*RUN)(const Args&)> static void thunk(const void* argument) {
        RUN(*static_cast<const Args*>(argument));
    }
    Registration(const char* name, standin::Thunk run, size_t bytes, unsigned threads)
        : kernel{name, run, bytes, threads, __start_standin_shared, __stop_standin_shared} {
        standin_register(&kernel);
    }
    standin::Kernel kernel;
};

constexpr unsigned first_of(unsigned threads, unsigned = 0) { return threads; }
#define KERNEL(name, Args, ...)                                                                               \
    void name(const Args& a);                                                                                 \
    const Registration name##_registration(#name, Registration::thunk<Args, name>, sizeof(Args), first_of(__VA_ARGS__)); \
    void name(const Args& a)
#define DYNAMIC_SHARED(name) float* const name = standin_block.dynamic

// ---- CUDA C++ ----

enum What : unsigned { SHUFFLE, SYNC, PRODUCT, MATRICES };

inline void __syncthreads() { standin_barrier(); }
inline void __syncwarp() { standin::exchange(SYNC, 0); }

template <typename T> T from_lane(T x, unsigned from) {
    const standin::Slot* slots = standin::exchange(SHUFFLE, x);
    std::memcpy(&x, slots[from].bytes, sizeof x);
    return x;
}
inline void whole_warp(unsigned mask) {
    if (mask != 0xffffffffu) standin_fault("only whole warps shuffle here");
}
template <typename T> T __shfl_sync(unsigned mask, T x, int from) {
    whole_warp(mask);
    return from_lane(x, from & 31);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T x, int d) {
    whole_warp(mask);
    return from_lane(x, (standin_fiber->lane ^ d) & 31);
}
template <typename T> T __shfl_up_sync(unsigned mask, T x, unsigned d) {
    whole_warp(mask);
    unsigned lane = standin_fiber->lane;
    return from_lane(x, lane < d ? lane : lane - d);
}

inline unsigned __ballot_sync(unsigned mask, bool x) {
    whole_warp(mask);
    const standin::Slot* slots = standin::exchange(SHUFFLE, x);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++) bits |= (unsigned)*(const bool*)slots[i].bytes << i;
    return bits;
}

template <typename T> T __ldg(const T* p) { return *p; }
template <typename T> T atomicAdd(T* at, T x) {
    T before = *at;
    *at = before + x;
    return before;
}
inline unsigned atomicOr(unsigned* at, unsigned x) {
    unsigned before = *at;
    *at = before | x;
    return before;
}
// Adds one, or starts over behind `last`.
inline unsigned atomicInc(unsigned* at, unsigned last) {
    unsigned before = *at;
    *at = before >= last ? 0 : before + 1;
    return before;
}
inline void __threadfence() {}
template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(b) : T(a);
}
inline float __int_as_float(int x) {
    float f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline unsigned __float_as_uint(float x) {
    unsigned u;
    std::memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}

// ---- ptx.cuh ----

inline void let_next_start() {}
inline void wait_for_previous() {}

inline _Float16 as_half(unsigned short bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return h;
}
inline unsigned short half_bits(_Float16 h) {
    unsigned short bits;
    std::memcpy(&bits, &h, 2);
    return bits;
}
inline unsigned short half_bits(float x) { return half_bits((_Float16)x); }
inline float from_half(unsigned short bits) { return (float)as_half(bits); }
inline unsigned pack(float lo, float hi) { return half_bits(lo) | (unsigned)half_bits(hi) << 16; }
inline float low(unsigned pair) { return from_half(pair & 0xffff); }
inline float high(unsigned pair) { return from_half(pair >> 16); }

// A product of halves is exact in f32. The sum rounds twice, which the kernels' numbers (integers up
// to 1151) do not see.
inline unsigned half2_sub(unsigned a, unsigned b) { return pack(low(a) - low(b), high(a) - high(b)); }
inline unsigned half2_fma(unsigned a, unsigned b, unsigned c) {
    return pack(low(a) * low(b) + low(c), high(a) * high(b) + high(c));
}
inline unsigned warp_max_bits(unsigned x) {
    for (int d = 16; d; d >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
inline unsigned warp_min_bits(unsigned x) {
    for (int d = 16; d; d >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
inline unsigned and_or(unsigned a, unsigned mask, unsigned bits) { return (a & mask) | bits; }
inline uint4 load_stream(const void* p) {
    if ((uintptr_t)p % 16) standin_fault("a 16-byte load from an address that is not a multiple of 16");
    return *(const uint4*)p;
}

inline void prefetch(const void*) {}

struct Operands {
    float a[8], b[4];
};

inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    Operands mine = {{low(a0), high(a0), low(a1), high(a1), low(a2), high(a2), low(a3), high(a3)},
                     {low(b0), high(b0), low(b1), high(b1)}};
    const standin::Slot* slots = standin::exchange(PRODUCT, mine);
    unsigned g = standin_fiber->lane / 4, t = standin_fiber->lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        float sum = c[i];
        for (unsigned k = 0; k < 4; k++) {
            const float* a = ((const Operands*)slots[g * 4 + k].bytes)->a + i / 2 * 2;
            const float* b = ((const Operands*)slots[(t * 2 + i % 2) * 4 + k].bytes)->b;
            sum += a[0] * b[0] + a[1] * b[1] + a[4] * b[2] + a[5] * b[3];
        }
        c[i] = sum;
    }
}

inline void mma_first(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    for (float& x : c) x = 0;
    mma(c, a0, a1, a2, a3, b0, b1);
}

inline unsigned and_xor(unsigned a, unsigned mask, unsigned bits) { return (a & mask) ^ bits; }

struct Bytes {
    unsigned a[4], b[2];
};
inline void mma_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    Bytes mine = {{a0, a1, a2, a3}, {b0, b1}};
    const standin::Slot* slots = standin::exchange(PRODUCT, mine);
    unsigned g = standin_fiber->lane / 4, t = standin_fiber->lane % 4;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++) {
            const signed char* a = (const signed char*)((const Bytes*)slots[g * 4 + k].bytes)->a;
            const signed char* b = (const signed char*)((const Bytes*)slots[(t * 2 + i % 2) * 4 + k].bytes)->b;
            for (unsigned j = 0; j < 8; j++) c[i] += a[(j / 4 * 2 + i / 2) * 4 + j % 4] * b[j];
        }
}

// Copies happen when they are waited for, the target holds NaN bytes until then.
struct Copy16 {
    void* to;
    const void* from;
    unsigned long group;
};
struct Copies {
    std::vector<Copy16> begun;
    unsigned long groups = 0;
};
Copies copies_of[1024];

inline void copy_16(void* shared, const void* global) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) standin_fault("a copy of 16 bytes that is not aligned");
    Copies& mine = copies_of[threadIdx.x];
    std::memset(shared, 0xff, 16);
    mine.begun.push_back({shared, global, mine.groups});
}
inline void copy_stream(void* shared, const void* global) { copy_16(shared, global); }
inline void end_copy_group() { copies_of[threadIdx.x].groups++; }
template <int LATER> void copies_done() {
    Copies& mine = copies_of[threadIdx.x];
    size_t kept = 0;
    for (const Copy16& copy : mine.begun) {
        if (copy.group + LATER < mine.groups) std::memcpy(copy.to, copy.from, 16);
        else mine.begun[kept++] = copy;
    }
    mine.begun.resize(kept);
}

inline void load_transposed(unsigned (&r)[4], const void* shared_row) {
    if ((uintptr_t)shared_row % 16) standin_fault("a row of a matrix that is not aligned");
    const standin::Slot* slots = standin::exchange(MATRICES, shared_row);
    unsigned g = standin_fiber->lane / 4, t = standin_fiber->lane % 4;
    for (unsigned m = 0; m < 4; m++) {
        unsigned short half[2];
        for (unsigned i = 0; i < 2; i++) {
            const unsigned short* row;
            std::memcpy(&row, slots[m * 8 + 2 * t + i].bytes, sizeof row);
            half[i] = row[g];
        }
        r[m] = half[0] | (unsigned)half[1] << 16;
    }
}
