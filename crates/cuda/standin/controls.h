// What tests set on the stand-in. Settings hold for the process.
#pragma once
#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {
// Threads run in ascending (0), descending (1) or random (2) order.
void standin_schedule(int order);
// With 1, a stream's work is done as late as the waits for it allow; with 0 at once.
void standin_defer(int lazily);
// Device memory there is, in bytes.
void standin_memory(size_t bytes);
// Device memory in use, in bytes.
size_t standin_memory_in_use();
// The n-th allocation of device memory from now on fails; none if 0.
void standin_fail_allocation(long n);
// The n-th launch from now on breaks the device: every call fails from then on. 0 mends it.
void standin_lose_device(long n);
}
#pragma GCC visibility pop
