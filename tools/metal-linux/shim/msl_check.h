// Address-space and type check of MSL with clang's C++ for OpenCL front end (never executed).
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define kernel
#define device __global
#define thread __private
#define constant __constant const
#define threadgroup __local
#define MSL_TG_VAR(id, TY, NAME, DIMS)                                                                       \
    typedef TY NAME##_tgt DIMS;                                                                              \
    __local NAME##_tgt& NAME = *(__local NAME##_tgt*)0
// Keywords of OpenCL that are plain names in MSL
#define local msl_local
#define global msl_global
#define generic msl_generic
struct bfloat {
    ushort bits;
};
namespace msl {
inline float4 mk_float4(float a, float b, float c, float d) { return (float4)(a, b, c, d); }
template <class E> inline float4 mk_float4(E x) { return (float4)(x); }
template <> inline float4 mk_float4(half4 x) { return __builtin_convertvector(x, float4); }
template <> inline float4 mk_float4(char4 x) { return __builtin_convertvector(x, float4); }
template <> inline float4 mk_float4(uchar4 x) { return __builtin_convertvector(x, float4); }
} // namespace msl
#define float4(...) msl::mk_float4(__VA_ARGS__)
#define half4(...) ((half4)(__VA_ARGS__))
#define float2(...) ((float2)(__VA_ARGS__))
#define uint2(...) ((uint2)(__VA_ARGS__))
#define METAL_FUNC inline
namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define MSL_V1(N) template <class T> T N(T);
MSL_V1(simd_sum)
MSL_V1(simd_max)
MSL_V1(simd_min)
MSL_V1(simd_product)
MSL_V1(simd_and)
MSL_V1(simd_or)
MSL_V1(simd_xor)
MSL_V1(simd_broadcast_first)
MSL_V1(simd_prefix_exclusive_sum)
MSL_V1(simd_prefix_inclusive_sum)
bool simd_all(bool);
bool simd_any(bool);
#define MSL_V2(N) template <class T> T N(T, ushort);
MSL_V2(simd_shuffle)
MSL_V2(simd_shuffle_xor)
MSL_V2(simd_shuffle_down)
MSL_V2(simd_shuffle_up)
MSL_V2(simd_broadcast)
template <class To, class From> To as_type(From);
namespace precise {
MSL_V1(exp)
MSL_V1(log)
MSL_V1(sqrt)
MSL_V1(rsqrt)
} // namespace precise
// Atomics: by macro, since OpenCL has types and functions of these names.
template <class T> struct msl_atomic {
    T v;
};
#define MSL_ATOMIC_AS(AS)                                                                                    \
    template <class T> T msl_load(const volatile AS msl_atomic<T>*, memory_order);                           \
    template <class T, class U> void msl_store(volatile AS msl_atomic<T>*, U, memory_order);                 \
    template <class T, class U> T msl_rmw(volatile AS msl_atomic<T>*, U, memory_order);
MSL_ATOMIC_AS(__global)
MSL_ATOMIC_AS(__local)
#define atomic_uint metal::msl_atomic<uint>
#define atomic_int metal::msl_atomic<int>
#define atomic_float metal::msl_atomic<float>
#define atomic_load_explicit metal::msl_load
#define atomic_store_explicit metal::msl_store
#define atomic_exchange_explicit metal::msl_rmw
#define atomic_fetch_add_explicit metal::msl_rmw
#define atomic_fetch_sub_explicit metal::msl_rmw
#define atomic_fetch_max_explicit metal::msl_rmw
#define atomic_fetch_min_explicit metal::msl_rmw
#define atomic_fetch_and_explicit metal::msl_rmw
#define atomic_fetch_or_explicit metal::msl_rmw
template <class T, int R, int C> struct simdgroup_matrix {
    simdgroup_matrix() {}
    T e;
};
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
template <class T> void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const __global T*, ulong ld = 8,
                                       ulong2 o = 0, bool tr = false);
template <class T> void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const __local T*, ulong ld = 8,
                                       ulong2 o = 0, bool tr = false);
template <class T> void simdgroup_store(__private const simdgroup_matrix<T, 8, 8>&, __global T*, ulong ld = 8,
                                        ulong2 o = 0, bool tr = false);
template <class T> void simdgroup_store(__private const simdgroup_matrix<T, 8, 8>&, __local T*, ulong ld = 8,
                                        ulong2 o = 0, bool tr = false);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>&,
                                   const __private simdgroup_matrix<A, 8, 8>&,
                                   const __private simdgroup_matrix<B, 8, 8>&,
                                   const __private simdgroup_matrix<C, 8, 8>&);
} // namespace metal
