// Fibers, scheduler and launcher of the CPU shim. See msl_launch.h.
#include "msl_cpu.h"
#include "msl_launch.h"
#undef thread
#undef kernel
#undef device
#undef constant
#undef threadgroup
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#include <sys/mman.h>
namespace msl {
thread_local Fiber* cur;
thread_local Group* grp;
Entry* Entry::head;
static thread_local void* sched_sp;
static thread_local void (*cur_fn)(Group&);
#if defined(__x86_64__)
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,@function
msl_switch:            # (void** save, void* to)
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  retq
)");
#else
#error "msl_switch is written for x86-64 only: add the switch for this processor here"
#endif
extern "C" void msl_switch(void** save, void* to);
void yield_() {
    if (!sched_sp) die("a helper of this kernel has threads meet, which prepass.py looks for in kernels only");
    msl_switch(&cur->sp, sched_sp);
}
void die(const char* why) {
    fprintf(stderr, "MSL-CPU: %s: threadgroup (%u,%u,%u) thread (%u,%u,%u) simdgroup %u lane %u\n", why,
            grp->group_id.x, grp->group_id.y, grp->group_id.z, cur->tid.x, cur->tid.y, cur->tid.z, cur->sg,
            cur->lane);
    abort();
}
void* tg_get(unsigned id, size_t n, size_t al) {
    Group* g = grp;
    if (id >= 64) die("too many threadgroup variables");
    if (!g->var[id]) {
        g->arena_used = (g->arena_used + al - 1) & ~(al - 1);
        if (g->arena_used + n > 32768) die("threadgroup memory over 32 KiB");
        g->var[id] = memset(g->arena + g->arena_used, 0xff, n); // not written yet: NaN
        g->arena_used += n;
    }
    return g->var[id];
}
static void finish() {
    Fiber* f = cur;
    Simd* s = f->simd;
    if (s->matrix_ops != f->matrix_ops) die("a lane returned without a simdgroup_matrix operation of others");
    s->matrix_end = f->matrix_ops;
    f->st = DONE;
    s->live--;
    grp->live--;
    if (s->live && s->arrived == s->live) simd_complete(s);
    if (grp->live && grp->tg_arrived == grp->live)
        die("threadgroup_barrier: thread returned while others wait at it");
    void* dummy;
    msl_switch(&dummy, sched_sp);
    abort();
}
static void entry() {
    cur_fn(*grp);
    finish();
}
static const size_t STACK = 64 * 1024;
static thread_local std::vector<Fiber>* fibers;
void let_lanes_catch_up(uint32_t op) {
    uint32_t from = cur->index / 32 * 32, to = std::min(from + 32, grp->nthreads);
    for (uint32_t turns = 0;; turns++) {
        uint32_t floor = ~0u;
        for (uint32_t i = from; i < to; i++) floor = std::min(floor, (*fibers)[i].matrix_ops);
        cur->simd->matrix_floor = floor;
        if (op < floor + 1024) return;
        if (turns > 1000) die("simdgroup_matrix operations that other lanes do not come to");
        yield_();
    }
}
struct Worker {
    uint8_t* stacks = nullptr;
    size_t n = 0;
    std::vector<Fiber> f;
    std::vector<Simd> s;
    uint8_t* arena;
    Worker() { arena = (uint8_t*)aligned_alloc(128, 32768); }
    ~Worker() {
        if (stacks) munmap(stacks, n * STACK);
        free(arena);
    }
    // Threads that never meet, one after the other.
    void run_plain(void (*fn)(Group&), Group& g, uint32_t order) {
        Fiber x{};
        Simd nobody{};
        nobody.live = 32; // a collective would wait, see yield_
        x.simd = &nobody;
        grp = &g;
        cur = &x;
        sched_sp = nullptr;
        for (unsigned k = 0; k < g.nthreads; k++) {
            unsigned i = order & 1 ? g.nthreads - 1 - k : k;
            x.lane = i & 31;
            x.sg = i >> 5;
            x.index = i;
            x.tid = uint3{i % g.tpg.x, i / g.tpg.x % g.tpg.y, i / (g.tpg.x * g.tpg.y)};
            fn(g);
        }
    }
    void run(void (*fn)(Group&), Group g, const size_t* tg_len, unsigned ntg, uint32_t order) {
        if (g.nthreads > n) {
            if (stacks) munmap(stacks, n * STACK);
            n = g.nthreads;
            stacks = (uint8_t*)mmap(0, n * STACK, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            f.resize(n);
            s.resize((n + 31) / 32);
        }
        unsigned nsg = (g.nthreads + 31) / 32;
        g.arena = arena;
        g.arena_used = 0;
        memset(g.var, 0, sizeof g.var);
        for (unsigned i = 0; i < ntg; i++) {
            g.tgmem[i] = arena + g.arena_used;
            g.arena_used += (tg_len[i] + 15) & ~15ul;
            if (g.arena_used > 32768) {
                fprintf(stderr, "threadgroup memory over 32 KiB\n");
                abort();
            }
            memset(g.tgmem[i], 0xff, tg_len[i]);
        }
        g.live = g.nthreads;
        g.tg_arrived = 0;
        g.tg_gen = 0;
        grp = &g;
        cur_fn = fn;
        fibers = &f;
        for (unsigned i = 0; i < nsg; i++) {
            unsigned l = std::min(32u, g.nthreads - i * 32);
            s[i].live = l;
            s[i].arrived = s[i].waiting = s[i].gen = 0;
            s[i].result_of[0] = s[i].result_of[1] = 0;
            s[i].matrix_ops = s[i].matrix_floor = 0;
            s[i].matrix_end = ~0u;
        }
        for (unsigned i = 0; i < g.nthreads; i++) {
            Fiber& x = f[i];
            x.st = READY;
            x.lane = i & 31;
            x.sg = i >> 5;
            x.simd = &s[i >> 5];
            x.index = i;
            x.matrix_ops = x.matrix_top = 0;
            x.tid = uint3{i % g.tpg.x, i / g.tpg.x % g.tpg.y, i / (g.tpg.x * g.tpg.y)};
            void** sp = (void**)(stacks + (i + 1) * STACK);
            *--sp = nullptr;
            *--sp = nullptr;
            *--sp = nullptr;
            *--sp = (void*)entry;
            for (int k = 0; k < 6; k++) *--sp = nullptr;
            x.sp = sp;
        }
        uint32_t rnd = order;
        while (g.live) {
            bool progress = false;
            rnd = rnd * 1664525 + 1013904223;
            uint32_t rot = (rnd >> 8) % nsg;
            for (unsigned k = 0; k < nsg; k++) {
                unsigned sg = order == 0 ? k : order == 1 ? nsg - 1 - k : (k + rot) % nsg;
                unsigned lo = sg * 32, hi = std::min(lo + 32, g.nthreads);
                for (bool again = true; again;) {
                    again = false;
                    for (unsigned j = lo; j < hi; j++) {
                        Fiber& x = f[order == 1 || (order > 1 && rnd >> 31) ? hi - 1 - (j - lo) : j];
                        if (x.st == DONE || (x.st == WAIT_SIMD && x.simd->gen == x.simd_gen) ||
                            (x.st == WAIT_TG && g.tg_gen == x.tg_gen))
                            continue;
                        x.st = READY;
                        cur = &x;
                        msl_switch(&sched_sp, x.sp);
                        progress = again = true;
                    }
                }
            }
            // Everyone waits. Lanes in a simdgroup op whose other lanes are at a threadgroup_barrier are the
            // active lanes of a divergent op: the barrier is uniform, so they must come through the op first.
            if (!progress)
                for (unsigned i = 0; i < nsg; i++)
                    if (s[i].arrived) {
                        simd_complete(&s[i]);
                        progress = true;
                    }
            if (!progress) {
                unsigned c[4]{};
                for (unsigned i = 0; i < g.nthreads; i++) c[f[i].st]++;
                fprintf(stderr,
                        "MSL-CPU: %u threads wait at a threadgroup_barrier, %u have returned; barrier arrived %u "
                        "of %u\n",
                        c[WAIT_TG], c[DONE], g.tg_arrived, g.live);
                for (unsigned i = 0; i < g.nthreads; i++)
                    if (f[i].st != DONE) {
                        cur = &f[i];
                        die("deadlock: threadgroup_barrier not reached by every thread");
                    }
            }
        }
    }
};
// Threads that stay from launch to launch: to start one costs more than most launches.
class Pool {
    std::mutex lock;
    std::condition_variable wake, idle;
    const std::function<void()>* job = nullptr;
    unsigned threads = 0, tickets = 0, busy = 0;
    void loop() {
        std::unique_lock l(lock);
        for (;;) {
            wake.wait(l, [&] { return tickets > 0; });
            tickets--;
            auto* work = job;
            l.unlock();
            (*work)();
            l.lock();
            if (--busy == 0) idle.notify_one();
        }
    }

  public:
    // Runs `work` here and on up to `helpers` other threads at the same time.
    void run(unsigned helpers, const std::function<void()>& work) {
        {
            std::lock_guard l(lock);
            for (; threads < helpers; threads++) std::thread([this] { loop(); }).detach();
            job = &work;
            tickets = busy = helpers;
        }
        if (helpers) wake.notify_all();
        work();
        std::unique_lock l(lock);
        busy -= tickets; // helpers that did not wake in time
        tickets = 0;
        idle.wait(l, [&] { return busy == 0; });
    }
};
} // namespace msl
extern "C" int msl_launch(const char* name, void** bufs, const size_t* tg_len, unsigned ntg,
                          const uint32_t groups[3], const uint32_t tpg[3], unsigned nworkers,
                          uint32_t order) {
    using namespace msl;
    Entry* e = Entry::head;
    while (e && strcmp(e->name, name)) e = e->next;
    if (!e) return 1;
    if (tpg[0] * tpg[1] * tpg[2] > 1024) return 2;
    std::atomic<uint32_t> next{0};
    uint32_t total = groups[0] * groups[1] * groups[2];
    auto work = [&] {
        static thread_local Worker w;
        for (uint32_t i; (i = next++) < total;) {
            Group g{};
            g.groups = uint3{groups[0], groups[1], groups[2]};
            g.tpg = uint3{tpg[0], tpg[1], tpg[2]};
            g.nthreads = tpg[0] * tpg[1] * tpg[2];
            uint32_t q = order == 1 ? total - 1 - i : i;
            g.group_id = uint3{q % groups[0], q / groups[0] % groups[1], q / (groups[0] * groups[1])};
            g.bufs = bufs;
            if (e->plain) w.run_plain(e->fn, g, order);
            else w.run(e->fn, g, tg_len, ntg, order);
        }
    };
    static Pool* pool = new Pool; // never ends, as its threads do not
    pool->run(total < 8 ? 0 : nworkers - 1, work);
    return 0;
}
extern "C" int msl_has(const char* n) {
    for (auto* e = msl::Entry::head; e; e = e->next)
        if (!strcmp(e->name, n)) return 1;
    return 0;
}
