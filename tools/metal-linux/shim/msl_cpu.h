// CPU stand-in for <metal_stdlib>: each thread of a threadgroup is a fiber, each threadgroup runs on one OS
// thread. Kernel text reaches this header through prepass.py. Memory that a kernel has not written holds 0xff
// bytes (NaN as float), so a read of it shows.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <limits>
#include <algorithm>

#define kernel
#define device
#define thread
#define constant const
#define threadgroup /* local variables are rewritten by the pre-pass to MSL_TG_VAR */
#define METAL_FUNC inline
#define MSL_CPU_SHIM 1

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
#define MSL_VEC(T)                                                                                           \
    typedef T T##2 __attribute__((ext_vector_type(2)));                                                      \
    typedef T T##3 __attribute__((ext_vector_type(3)));                                                      \
    typedef T T##4 __attribute__((ext_vector_type(4)))
MSL_VEC(float);
MSL_VEC(half);
MSL_VEC(int);
MSL_VEC(uint);
MSL_VEC(short);
MSL_VEC(ushort);
MSL_VEC(char);
MSL_VEC(uchar);
static_assert(sizeof(float3) == 16 && alignof(float4) == 16 && sizeof(half4) == 8, "layout");

// A collective: its return address is its call site, so it must not be inlined, and the optimiser must not
// move or copy a call into a branch (convergent).
#define MSL_OP [[gnu::noinline, clang::convergent]]
#define MSL_SITE __builtin_return_address(0)

namespace msl {
// ---- fibers -----------------------------------------------------------------------------
enum State : uint8_t { READY, WAIT_SIMD, WAIT_TG, DONE };
struct Simd {
    uint32_t live, arrived, gen;
    uint32_t waiting; // lanes that have arrived at the current op
    uint32_t mask[2]; // active lanes of the last two ops
    alignas(16) uint8_t slot[2][32][64];
    alignas(16) uint8_t result[2][64]; // of a reduction, which the first lane to go on computes for all
    uint32_t result_of[2];             // 1 + its generation
    const void* op;
    static constexpr uint32_t MATRICES = 64;
    float matrices[MATRICES][64]; // of the lanes together
    uint32_t matrix_ops;          // operations on them that were begun
    uint32_t matrix_floor;        // that all lanes have come through, at least
    uint32_t matrix_end;          // of a lane that has returned
    const void* matrix_sites[1024];
};
struct Fiber {
    void* sp;
    State st;
    uint16_t lane, sg;
    uint3 tid;
    Simd* simd;
    uint32_t simd_gen, tg_gen;
    uint32_t index;
    uint32_t matrix_ops; // operations that this lane has come through
    uint32_t matrix_top; // matrices of it that live
};
struct Group {
    uint3 group_id, groups, tpg;
    uint32_t nthreads, live, tg_arrived, tg_gen;
    const void* tg_site;
    uint8_t* arena;
    size_t arena_used;
    void* var[64];
    void** bufs;
    void* tgmem[8];
};
extern thread_local Fiber* cur;
extern thread_local Group* grp;
void yield_(); // to the scheduler
[[noreturn]] void die(const char* why);
void* tg_get(unsigned id, size_t n, size_t al);
void let_lanes_catch_up(uint32_t op); // so that no lane is further ahead than call sites are remembered

inline void simd_complete(Simd* s) {
    s->mask[s->gen++ & 1] = s->waiting;
    s->arrived = s->waiting = 0;
}
// Waits for every live lane of the simdgroup; returns the active lanes. Where the other lanes wait at a
// threadgroup_barrier, the scheduler completes the op with the lanes that are here (runtime.cpp).
inline uint32_t simd_rendezvous(const void* op) {
    Simd* s = cur->simd;
    uint32_t gen = s->gen;
    if (s->arrived == 0) s->op = op;
    else if (s->op != op) die("simdgroup op reached from different call sites (divergent control flow)");
    s->waiting |= 1u << cur->lane;
    if (++s->arrived == s->live) simd_complete(s);
    else {
        cur->simd_gen = gen;
        cur->st = WAIT_SIMD;
        yield_();
    }
    return s->mask[gen & 1];
}
// The values that the lanes brought to one op.
template <class T> struct Lanes {
    uint8_t (*row)[64];
    uint32_t mask, gen;
    bool active(unsigned l) const { return mask >> l & 1; }
    T operator[](unsigned l) const {
        T v;
        if (l < 32 && active(l)) memcpy(&v, row[l], sizeof v);
        else memset((void*)&v, 0xff, sizeof v); // undefined in MSL: an inactive lane
        return v;
    }
};
// Publishes a value and waits. Two rows alternate, so a lane that runs ahead to its next op cannot overwrite
// a row that another lane still reads.
template <class T> inline Lanes<T> publish(const T& v, const void* op) {
    static_assert(sizeof(T) <= 64, "");
    Simd* s = cur->simd;
    auto row = s->slot[s->gen & 1];
    memcpy(row[cur->lane], &v, sizeof(T));
    uint32_t gen = s->gen;
    return {row, simd_rendezvous(op), gen};
}
template <class T, class F> inline T once(const Lanes<T>& r, F reduce) {
    Simd* s = cur->simd;
    uint32_t at = r.gen & 1;
    T v;
    if (s->result_of[at] == r.gen + 1) {
        memcpy(&v, s->result[at], sizeof v);
    } else {
        v = reduce();
        memcpy(s->result[at], &v, sizeof v);
        s->result_of[at] = r.gen + 1;
    }
    return v;
}
} // namespace msl
#define MSL_TG_VAR(id, TY, NAME, DIMS)                                                                       \
    auto& NAME =                                                                                             \
        *reinterpret_cast<std::type_identity_t<TY DIMS>*>(msl::tg_get(id, sizeof(TY DIMS), alignof(TY)))

namespace metal {
using ::std::is_same_v;
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
MSL_OP inline void threadgroup_barrier(mem_flags) {
    using namespace msl;
    const void* at = MSL_SITE;
    Group* g = grp;
    if (g->live != g->nthreads) die("threadgroup_barrier after some threads of the group have returned");
    if (g->tg_arrived == 0) g->tg_site = at;
    else if (g->tg_site != at)
        die("threadgroup_barrier reached from different call sites (divergent barrier)");
    if (++g->tg_arrived == g->live) {
        g->tg_arrived = 0;
        g->tg_gen++;
        return;
    }
    cur->tg_gen = g->tg_gen;
    cur->st = WAIT_TG;
    yield_();
}
MSL_OP inline void simdgroup_barrier(mem_flags) { msl::simd_rendezvous(MSL_SITE); }

// ---- simdgroup functions over the active lanes
#define MSL_REDUCE(NAME, EXPR)                                                                               \
    template <class T> MSL_OP T NAME(T v) {                                                                  \
        auto r = msl::publish(v, MSL_SITE);                                                                  \
        return msl::once(r, [&] {                                                                            \
            unsigned i = __builtin_ctz(r.mask);                                                              \
            T a = r[i];                                                                                      \
            while (++i < 32)                                                                                 \
                if (r.active(i)) {                                                                           \
                    T b = r[i];                                                                              \
                    a = (EXPR);                                                                              \
                }                                                                                            \
            return a;                                                                                        \
        });                                                                                                  \
    }
MSL_REDUCE(simd_max, a > b ? a : b)
MSL_REDUCE(simd_min, a < b ? a : b)
MSL_REDUCE(simd_product, T(a * b))
MSL_REDUCE(simd_and, T(a & b))
MSL_REDUCE(simd_or, T(a | b))
MSL_REDUCE(simd_xor, T(a ^ b))
template <class T> MSL_OP T simd_sum(T v) { // as a tree; Apple does not document its order
    auto r = msl::publish(v, MSL_SITE);
    return msl::once(r, [&] {
        T a[32];
        for (int i = 0; i < 32; i++) a[i] = r.active(i) ? r[i] : T(0);
        for (int d = 16; d; d >>= 1)
            for (int i = 0; i < d; i++) a[i] = a[i] + a[i + d];
        return a[0];
    });
}
template <class T> MSL_OP T simd_shuffle(T v, ushort l) { return msl::publish(v, MSL_SITE)[l]; }
template <class T> MSL_OP T simd_broadcast(T v, ushort l) { return msl::publish(v, MSL_SITE)[l]; }
template <class T> MSL_OP T simd_shuffle_xor(T v, ushort x) {
    return msl::publish(v, MSL_SITE)[msl::cur->lane ^ x];
}
template <class T> MSL_OP T simd_shuffle_down(T v, ushort d) { // the upper d lanes keep their value
    auto r = msl::publish(v, MSL_SITE);
    unsigned l = msl::cur->lane + d;
    return l < 32 ? r[l] : v;
}
template <class T> MSL_OP T simd_shuffle_up(T v, ushort d) { // the lower d lanes keep their value
    auto r = msl::publish(v, MSL_SITE);
    return msl::cur->lane >= d ? r[msl::cur->lane - d] : v;
}
template <class T> MSL_OP T simd_broadcast_first(T v) {
    auto r = msl::publish(v, MSL_SITE);
    return r[__builtin_ctz(r.mask)];
}
template <class T> MSL_OP T simd_prefix_exclusive_sum(T v) {
    auto r = msl::publish(v, MSL_SITE);
    T a = T(0);
    for (unsigned i = 0; i < msl::cur->lane; i++)
        if (r.active(i)) a += r[i];
    return a;
}
template <class T> MSL_OP T simd_prefix_inclusive_sum(T v) {
    auto r = msl::publish(v, MSL_SITE);
    T a = T(0);
    for (unsigned i = 0; i <= msl::cur->lane; i++)
        if (r.active(i)) a += r[i];
    return a;
}
MSL_OP inline bool simd_all(bool v) {
    auto r = msl::publish(v, MSL_SITE);
    for (int i = 0; i < 32; i++)
        if (r.active(i) && !r[i]) return false;
    return true;
}
MSL_OP inline bool simd_any(bool v) {
    auto r = msl::publish(v, MSL_SITE);
    for (int i = 0; i < 32; i++)
        if (r.active(i) && r[i]) return true;
    return false;
}

// ---- simdgroup_matrix: 8x8. A matrix of a SIMD group lives once, in the group: lanes come through the same
// operations in the same order, so the first lane to reach one does it and the others only count it. Each lane's
// object is a number in the group's stack of matrices, which constructors and destructors keep. Stores are
// meetings. A lane that skips an operation, or does another, is found at its next one or at its end.
} // namespace metal
namespace msl {
// Announces an operation; true in the lane that is to do it.
[[gnu::always_inline]] inline bool matrix_op(const void* site) {
    Simd* s = cur->simd;
    uint32_t n = cur->matrix_ops++;
    if (n >= s->matrix_end) die("simdgroup_matrix operation that a lane has returned without");
    if (n >= s->matrix_floor + 1024) let_lanes_catch_up(n);
    const void*& known = s->matrix_sites[n % 1024];
    if (n == s->matrix_ops) {
        s->matrix_ops++;
        known = site;
        return true;
    }
    if (known != site) die("simdgroup_matrix operation reached from different call sites (divergent control flow)");
    return false;
}
// A new matrix, uninitialised: NaN, if this lane is as far as any, so that no operation on it has been done.
[[gnu::always_inline]] inline uint32_t matrix_push() {
    uint32_t at = cur->matrix_top++;
    if (at >= Simd::MATRICES) die("more simdgroup matrices alive than the shim has room for");
    Simd* s = cur->simd;
    if (cur->matrix_ops == s->matrix_ops) memset(s->matrices[at], 0xff, sizeof s->matrices[at]);
    return at;
}
} // namespace msl
namespace metal {
template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "only 8x8");
    uint32_t at = msl::matrix_push(); // of the group's stack; it holds floats whatever T is
    simdgroup_matrix() {}
    MSL_OP explicit simdgroup_matrix(T d) { // diagonal
        if (msl::matrix_op(MSL_SITE))
            for (int i = 0; i < 64; i++) e()[i] = i % 9 == 0 ? float(d) : 0.0f;
    }
    simdgroup_matrix(const simdgroup_matrix& m) { *this = m; }
    MSL_OP simdgroup_matrix& operator=(const simdgroup_matrix& m) {
        if (msl::matrix_op(MSL_SITE)) memcpy(e(), m.e(), 64 * sizeof(float));
        return *this;
    }
    ~simdgroup_matrix() { msl::cur->matrix_top--; }
    float* e() const { return msl::cur->simd->matrices[at]; }
};
template <class T, int R, int C> MSL_OP simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) {
    simdgroup_matrix<T, R, C> m;
    if (msl::matrix_op(MSL_SITE))
        for (int i = 0; i < 64; i++) m.e()[i] = float(x);
    return m;
}
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
typedef ulong ulong2v __attribute__((ext_vector_type(2)));
template <class T> MSL_OP void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* p, ulong ld = 8,
                                              ulong2v o = ulong2v{0, 0}, bool tr = false) {
    if (!msl::matrix_op(MSL_SITE)) return;
    for (ulong r = 0; r < 8; r++)
        for (ulong c = 0; c < 8; c++) d.e()[r * 8 + c] = float(p[(o.y + (tr ? c : r)) * ld + o.x + (tr ? r : c)]);
}
template <class T> MSL_OP void simdgroup_store(const simdgroup_matrix<T, 8, 8>& s, T* p, ulong ld = 8,
                                               ulong2v o = ulong2v{0, 0}, bool tr = false) {
    float v[64]; // a lane that goes on before this one may have another matrix in the place
    bool mine = msl::matrix_op(MSL_SITE);
    if (mine) memcpy(v, s.e(), sizeof v);
    if (msl::simd_rendezvous(MSL_SITE) != ~0u) msl::die("simdgroup_store with missing lanes");
    if (!mine) return;
    for (ulong r = 0; r < 8; r++)
        for (ulong c = 0; c < 8; c++) p[(o.y + (tr ? c : r)) * ld + o.x + (tr ? r : c)] = T(v[r * 8 + c]);
}
template <class D, class A, class B, class C> MSL_OP void
simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                              const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
    if (!msl::matrix_op(MSL_SITE)) return;
    typedef float Row __attribute__((ext_vector_type(8), aligned(4)));
    Row rows[8], sum[8];
    memcpy(rows, b.e(), sizeof rows);
    memcpy(sum, c.e(), sizeof sum);
    for (int r = 0; r < 8; r++)
        for (int k = 0; k < 8; k++) sum[r] += a.e()[r * 8 + k] * rows[k];
    memcpy(d.e(), sum, sizeof sum);
    if constexpr (!std::is_same_v<D, float>)
        for (int i = 0; i < 64; i++) d.e()[i] = float(D(d.e()[i]));
}
template <class D, class A, class B>
MSL_OP void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b) {
    simdgroup_matrix<D, 8, 8> z(D(0));
    simdgroup_multiply_accumulate(d, a, b, z);
}

// ---- atomics (threadgroups run on several OS threads, so these are real atomics)
enum memory_order { memory_order_relaxed = __ATOMIC_RELAXED };
template <class T> struct atomic {
    T v;
};
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;
using atomic_float = atomic<float>;
template <class T> T atomic_load_explicit(const atomic<T>* p, memory_order) {
    T r;
    __atomic_load(&p->v, &r, __ATOMIC_RELAXED);
    return r;
}
template <class T> void atomic_store_explicit(atomic<T>* p, std::type_identity_t<T> x, memory_order) {
    __atomic_store(&p->v, &x, __ATOMIC_RELAXED);
}
template <class T> T atomic_fetch_add_explicit(atomic<T>* p, std::type_identity_t<T> x, memory_order) {
    if constexpr (std::is_integral_v<T>) return __atomic_fetch_add(&p->v, x, __ATOMIC_RELAXED);
    else {
        T o, n;
        __atomic_load(&p->v, &o, __ATOMIC_RELAXED);
        do n = o + x;
        while (!__atomic_compare_exchange(&p->v, &o, &n, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return o;
    }
}
template <class T> T atomic_exchange_explicit(atomic<T>* p, std::type_identity_t<T> x, memory_order) {
    T r;
    __atomic_exchange(&p->v, &x, &r, __ATOMIC_RELAXED);
    return r;
}
#define MSL_ATOMIC(OP)                                                                                       \
    template <class T> T atomic_fetch_##OP##_explicit(atomic<T>* p, std::type_identity_t<T> x, memory_order) { \
        return __atomic_fetch_##OP(&p->v, x, __ATOMIC_RELAXED);                                              \
    }
MSL_ATOMIC(sub)
MSL_ATOMIC(max)
MSL_ATOMIC(min)
MSL_ATOMIC(and)
MSL_ATOMIC(or)

// ---- maths
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
using std::ceil;
using std::cos;
using std::fabs;
using std::floor;
using std::isinf;
using std::isnan;
using std::log;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;
inline float exp(float x) { return std::exp(x); }
inline float exp2(float x) { return std::exp2(x); }
namespace fast {
using metal::exp;
} // namespace fast
namespace precise {
using metal::exp;
using metal::log;
using metal::rsqrt;
using metal::sqrt;
} // namespace precise
template <class T> inline T max(T a, std::type_identity_t<T> b) { return a > b ? a : b; }
template <class T> inline T min(T a, std::type_identity_t<T> b) { return a < b ? a : b; }
template <class T> inline T clamp(T x, std::type_identity_t<T> a, std::type_identity_t<T> b) {
    return min(max(x, a), b);
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
template <class To, class From> inline To as_type(From f) {
    static_assert(sizeof(To) == sizeof(From));
    To t;
    memcpy(&t, &f, sizeof t);
    return t;
}
template <class T> struct numeric_limits : std::numeric_limits<T> {};
} // namespace metal
namespace msl { // vector constructors: float4(a,b,c,d) through function-like macros
template <class V, class E> inline V mk1(E x) {
    if constexpr (std::is_arithmetic_v<E> || std::is_same_v<E, half> || std::is_same_v<E, bfloat>)
        return V(x);
    else return __builtin_convertvector(x, V);
}
inline float4 mk_float4(float a, float b, float c, float d) { return float4{a, b, c, d}; }
template <class E> inline float4 mk_float4(E x) { return mk1<float4>(x); }
inline half4 mk_half4(half a, half b, half c, half d) { return half4{a, b, c, d}; }
template <class E> inline half4 mk_half4(E x) { return mk1<half4>(x); }
inline float2 mk_float2(float a, float b) { return float2{a, b}; }
template <class E> inline float2 mk_float2(E x) { return mk1<float2>(x); }
inline uint2 mk_uint2(uint a, uint b) { return uint2{a, b}; }
template <class T> T pos(uint3 v) {
    if constexpr (std::is_integral_v<T>) return T(v.x);
    else if constexpr (sizeof(T) == 2 * sizeof(v.x)) return T{v.x, v.y};
    else return T{v.x, v.y, v.z};
}
} // namespace msl
#define float4(...) msl::mk_float4(__VA_ARGS__)
#define half4(...) msl::mk_half4(__VA_ARGS__)
#define float2(...) msl::mk_float2(__VA_ARGS__)
#define uint2(...) msl::mk_uint2(__VA_ARGS__)
namespace msl {
// Arguments of a kernel template: a buffer as whatever type the instantiation has.
struct Ptr {
    void* p;
    template <class T> operator T*() const { return (T*)p; }
};
struct Ref {
    void* p;
    template <class T> operator const T&() const { return *(const T*)p; }
};
struct Entry {
    const char* name;
    void (*fn)(Group&);
    bool plain; // its threads never meet
    Entry* next;
    static Entry* head;
    Entry(const char* n, void (*f)(Group&), bool p) : name(n), fn(f), plain(p), next(head) { head = this; }
};
} // namespace msl
