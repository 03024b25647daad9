// Between the driver (`driver.cpp`) and the scheduler (`fibers.cpp`).
#pragma once
#include <vector>

#include "fibers.h"

namespace standin {

struct alignas(16) float4_t {
    float x[4];
};

// Which threads go first.
enum class Schedule : int { Ascending, Descending, Random };

struct Launch {
    const Kernel* kernel;
    Dim blocks;
    unsigned threads;
    size_t dynamic;  // bytes of dynamic shared memory
    std::vector<float4_t> argument;
};

// Runs all blocks to their end.
void run(const Launch& launch, Schedule schedule);

}  // namespace standin
