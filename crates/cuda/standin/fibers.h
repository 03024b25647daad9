// What kernels that run on a CPU see of the scheduler (`fibers.cpp`): who they are, and where they
// wait for one another. A block's threads are fibers of one host thread; blocks run one by one.
#pragma once
#include <cstddef>

namespace standin {

struct Dim {
    unsigned x, y, z;
};

// What a lane hands to its warp: operands of a shuffle or of a matrix product.
struct alignas(16) Slot {
    unsigned char bytes[64];
};

enum State : unsigned { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Warp;

struct Fiber {
    void* stack;
    State state;
    unsigned lane;
    Warp* warp;
    unsigned long waits_for;  // count of barriers or exchanges when the wait began
    Dim index;
};

struct Warp {
    Fiber* lanes;
    unsigned count, live, arrived, what;
    unsigned long exchanges;
    Slot slots[2][32];
};

struct Block {
    Dim index, blocks, threads;
    float* dynamic;  // shared memory of the launch
    const char* kernel;
};

using Thunk = void (*)(const void* argument);

struct Kernel {
    const char* name;
    Thunk run;
    size_t argument_bytes;
    unsigned max_threads;
    unsigned char *shared, *shared_end;  // its module's static shared memory
};

}  // namespace standin

#pragma GCC visibility push(default)
extern "C" {
// The running fiber and its block. Plain variables: the driver runs one launch at a time.
extern standin::Fiber* standin_fiber;
extern standin::Block standin_block;

// Waits for all threads of the block.
void standin_barrier();
// Waits for the other lanes of the warp.
void standin_wait_for_lanes();
// Ends the process with the kernel, the block and the thread in the message.
[[noreturn]] void standin_fault(const char* why);
// A module makes its kernels known when it is loaded.
void standin_register(const standin::Kernel* kernel);
}
#pragma GCC visibility pop

namespace standin {

// Hands `mine` to the warp, waits for its other lanes and returns what all have handed over. `what`
// must be the same for all. Slots stay until the next exchange but one.
template <typename T> inline const Slot* exchange(unsigned what, const T& mine) {
    static_assert(sizeof mine <= sizeof(Slot));
    Warp& warp = *standin_fiber->warp;
    if (warp.arrived && warp.what != what) standin_fault("lanes of one warp are at different instructions");
    Slot* slots = warp.slots[warp.exchanges % 2];
    __builtin_memcpy(slots[standin_fiber->lane].bytes, &mine, sizeof mine);
    warp.what = what;
    if (++warp.arrived == warp.live) warp.arrived = 0, warp.exchanges++;
    else standin_wait_for_lanes();
    return slots;
}

}  // namespace standin
