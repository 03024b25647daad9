// Runs a kernel's blocks one by one, a block's threads as fibers that meet at barriers (all threads)
// and exchanges (the lanes of a warp). Shared memory begins as NaN bytes; the order in which threads
// run is chosen, so that a missing barrier shows as a wrong or varying result.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime.h"

using namespace standin;

extern "C" {
Fiber* standin_fiber;
Block standin_block;
}

namespace {

constexpr size_t STACK = 256 << 10;
constexpr unsigned MOST_THREADS = 1024;

unsigned char* stacks;
Fiber fibers[MOST_THREADS];
Warp warps[MOST_THREADS / 32];
unsigned threads, live, at_barrier;
bool down;  // lanes and warps in descending order
unsigned long barriers;
void* scheduler;
const Kernel* kernel;
const void* argument;

}  // namespace

// Saves the callee-saved registers on the stack, keeps the stack pointer in *from and goes on at `to`.
extern "C" void standin_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl standin_switch
.hidden standin_switch
.type standin_switch,@function
standin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
)");
constexpr unsigned SAVED = 6;
#else
#error "standin_switch is written for x86-64: add the switch for this processor"
#endif

namespace {

bool ready(const Fiber& f) {
    switch (f.state) {
        case READY: return true;
        case AT_BARRIER: return barriers != f.waits_for;
        case AT_EXCHANGE: return f.warp->exchanges != f.waits_for;
        default: return false;
    }
}

// Waits, and goes on with the next lane of the warp that can run, or the scheduler.
void wait(State state, unsigned long count) {
    Fiber* me = standin_fiber;
    me->state = state;
    me->waits_for = count;
    const Warp& warp = *me->warp;
    unsigned lane = me->lane;
    for (unsigned i = 1; i < warp.count; i++) {
        lane = down ? (lane ? lane - 1 : warp.count - 1) : (lane + 1 < warp.count ? lane + 1 : 0);
        Fiber& next = warp.lanes[lane];
        if (!ready(next)) continue;
        next.state = READY;
        standin_fiber = &next;
        return standin_switch(&me->stack, next.stack);
    }
    standin_switch(&me->stack, scheduler);
}

void complete_barrier() {
    at_barrier = 0;
    barriers++;
}

void run_fiber() {
    kernel->run(argument);
    Warp& warp = *standin_fiber->warp;
    // Threads that have returned are not waited for.
    warp.live--, live--;
    if (warp.live && warp.arrived == warp.live) warp.arrived = 0, warp.exchanges++;
    if (live && at_barrier == live) complete_barrier();
    wait(DONE, 0);
    abort();
}

void start(unsigned i) {
    Fiber& f = fibers[i];
    void** top = (void**)(stacks + (i + 1) * STACK);
    *--top = nullptr;  // where run_fiber would return to; the stack is then aligned as after a call
    *--top = (void*)run_fiber;
    for (unsigned k = 0; k < SAVED; k++) *--top = nullptr;
    f = {top, READY, i % 32, &warps[i / 32], 0, {i, 0, 0}};
}

void run_block(Schedule schedule, unsigned& random) {
    unsigned count = (threads + 31) / 32;
    for (unsigned w = 0; w < count; w++) {
        unsigned lanes = threads - w * 32 < 32 ? threads - w * 32 : 32;
        warps[w].lanes = fibers + w * 32;
        warps[w].count = warps[w].live = lanes;
        warps[w].arrived = 0;
    }
    for (unsigned i = 0; i < threads; i++) start(i);
    live = threads, at_barrier = 0;
    while (live) {
        bool progress = false;
        random = random * 1664525 + 1013904223;
        unsigned turn = schedule == Schedule::Random ? (random >> 8) % count : 0;
        down = schedule == Schedule::Descending || (schedule == Schedule::Random && random >> 31);
        for (unsigned k = 0; k < count; k++) {
            unsigned w = (k + turn) % count;
            if (down) w = count - 1 - w;
            // A warp runs until all its lanes wait for other warps.
            const Warp& warp = warps[w];
            for (unsigned j = 0; j < warp.count; j++) {
                Fiber& f = warp.lanes[down ? warp.count - 1 - j : j];
                if (!ready(f)) continue;
                f.state = READY;
                standin_fiber = &f;
                standin_switch(&scheduler, f.stack);
                progress = true;
                break;
            }
        }
        if (!progress) {
            for (unsigned i = 0; i < threads; i++)
                if (fibers[i].state != DONE) {
                    standin_fiber = &fibers[i];
                    standin_fault(fibers[i].state == AT_BARRIER ? "deadlock: not every thread comes to this barrier"
                                                                : "deadlock: not every lane comes to this exchange");
                }
        }
    }
}

}  // namespace

extern "C" void standin_fault(const char* why) {
    Dim b = standin_block.index;
    fprintf(stderr, "stand-in: kernel %s, block (%u, %u, %u), thread %u: %s\n", standin_block.kernel, b.x, b.y, b.z,
            standin_fiber->index.x, why);
    abort();
}

extern "C" void standin_barrier() {
    at_barrier++;
    if (at_barrier == live) complete_barrier();
    else wait(AT_BARRIER, barriers);
}

extern "C" void standin_wait_for_lanes() { wait(AT_EXCHANGE, standin_fiber->warp->exchanges); }

void standin::run(const Launch& launch, Schedule schedule) {
    if (!stacks) {
        void* memory = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        stacks = (unsigned char*)memory;
    }
    kernel = launch.kernel;
    argument = launch.argument.data();
    threads = launch.threads;
    std::vector<float4_t> dynamic((launch.dynamic + sizeof(float4_t) - 1) / sizeof(float4_t));
    Dim n = launch.blocks;
    unsigned total = n.x * n.y * n.z, random = 12345;
    for (unsigned i = 0; i < total; i++) {
        unsigned at = schedule == Schedule::Descending ? total - 1 - i : i;
        memset((void*)dynamic.data(), 0xff, dynamic.size() * sizeof(float4_t));
        if (kernel->shared) memset(kernel->shared, 0xff, kernel->shared_end - kernel->shared);
        standin_block = {{at % n.x, at / n.x % n.y, at / (n.x * n.y)}, n, {threads, 1, 1}, (float*)dynamic.data(), kernel->name};
        run_block(schedule, random);
    }
}
