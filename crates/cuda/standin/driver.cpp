// A stand-in for the CUDA driver (`libcuda.so`): the calls that this crate makes, on a CPU.
//
// Streams are queues. Their work is done at once or, deferred, only when something waits for it, so
// that a missing wait between streams or before the host reads shows. Copies from pageable memory
// take their bytes when they are called, from pinned memory when they are done, as a device does.
#include <dlfcn.h>
#include <stdint.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "controls.h"
#include "runtime.h"

using namespace standin;

namespace {

enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_INVALIDATED = 901,
};

using Work = std::function<void()>;

struct Graph {
    std::vector<Work> work;
};

struct Stream {
    std::deque<Work> queue;
    unsigned long enqueued = 0, done = 0;
    Graph* capture = nullptr;
    bool running = false;
};

struct Event {
    Stream* stream = nullptr;
    unsigned long after = 0;
    double ms = 0;
};

struct Module {
    std::map<std::string, const Kernel*> kernels;
};

// Compute capability 9.9, which no device has, with the shared memory of smaller devices and few multiprocessors.
constexpr int MULTIPROCESSORS = 4;
constexpr size_t SHARED = 99 << 10, STATIC_SHARED = 48 << 10;

std::recursive_mutex mutex;
Schedule schedule = Schedule::Ascending;
bool deferred = false;
size_t memory = (size_t)8 << 30, in_use = 0;
long allocations_left = 0, launches_left = 0;
Result lost = SUCCESS;
double clock_ms = 0;
std::map<uintptr_t, size_t> device_blocks, pinned_blocks;
std::vector<Stream*> streams;
std::vector<const Kernel*>* loading;
std::map<std::string, Module*> modules;
int context;  // its address stands for the one context

struct Guard {
    std::lock_guard<std::recursive_mutex> lock{mutex};
};

bool within(const std::map<uintptr_t, size_t>& blocks, uintptr_t at, size_t bytes) {
    auto block = blocks.upper_bound(at);
    if (block == blocks.begin()) return false;
    --block;
    return at - block->first <= block->second && bytes <= block->second - (at - block->first);
}

Result refuse(const char* call, const char* why) {
    fprintf(stderr, "stand-in: %s: %s\n", call, why);
    return INVALID_VALUE;
}

// Does a stream's work up to its `until`-th piece.
void drain(Stream* s, unsigned long until) {
    if (s->running) return;
    s->running = true;
    while (s->done < until && !s->queue.empty()) {
        Work work = std::move(s->queue.front());
        s->queue.pop_front();
        if (!lost) work();
        s->done++;
    }
    s->running = false;
}

void drain_all() {
    for (Stream* s : streams) drain(s, s->enqueued);
}

Result enqueue(Stream* s, Work work) {
    if (lost) return lost;
    if (s->capture) {
        s->capture->work.push_back(std::move(work));
        return SUCCESS;
    }
    s->queue.push_back(std::move(work));
    s->enqueued++;
    if (!deferred) drain(s, s->enqueued);
    return SUCCESS;
}

void count_launch(const Launch& launch) {
    clock_ms += 1e-3;
    if (launches_left && --launches_left == 0) {
        lost = ILLEGAL_ADDRESS;
        return;
    }
    run(launch, schedule);
}

Result allocate(uint64_t* to, size_t bytes) {
    if (lost) return lost;
    if (!bytes) return INVALID_VALUE;
    if (allocations_left && --allocations_left == 0) return OUT_OF_MEMORY;
    if (in_use + bytes > memory) drain_all();  // frees that are still queued
    if (in_use + bytes > memory) return OUT_OF_MEMORY;
    // Exactly the bytes asked for, so that a sanitizer sees the first one behind them.
    void* p = nullptr;
    if (posix_memalign(&p, 256, bytes)) return OUT_OF_MEMORY;
    memset(p, 0xff, bytes);
    in_use += bytes;
    device_blocks[(uintptr_t)p] = bytes;
    *to = (uint64_t)(uintptr_t)p;
    return SUCCESS;
}

void release(uint64_t at) {
    auto block = device_blocks.find(at);
    if (block == device_blocks.end()) {
        refuse("cuMemFree", "not an allocation");
        abort();
    }
    in_use -= block->second;
    device_blocks.erase(block);
    free((void*)(uintptr_t)at);
}

struct Settings {
    Settings() {
        if (const char* order = getenv("STANDIN_SCHEDULE")) standin_schedule(atoi(order));
        if (const char* lazily = getenv("STANDIN_DEFER")) standin_defer(atoi(lazily));
    }
} settings;

}  // namespace

#define CALL extern "C" __attribute__((visibility("default"))) Result

extern "C" {
void standin_schedule(int order) { Guard g; schedule = (Schedule)order; }
void standin_defer(int lazily) { Guard g; drain_all(); deferred = lazily; }
void standin_memory(size_t bytes) { Guard g; memory = bytes; }
size_t standin_memory_in_use() { Guard g; drain_all(); return in_use; }
void standin_fail_allocation(long n) { Guard g; allocations_left = n; }
void standin_lose_device(long n) { Guard g; launches_left = n; if (!n) lost = SUCCESS; }
void standin_register(const Kernel* kernel) { if (loading) loading->push_back(kernel); }
}

// ---- device and context ----

CALL cuInit(unsigned) { return SUCCESS; }
CALL cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
CALL cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
CALL cuDeviceGet(int* device, int ordinal) { *device = 0; return ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
CALL cuDeviceGetName(char* name, int len, int) { snprintf(name, len, "CPU stand-in"); return SUCCESS; }
CALL cuDeviceTotalMem_v2(size_t* bytes, int) { Guard g; *bytes = memory; return SUCCESS; }
CALL cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = MULTIPROCESSORS; break;
        case 75: *value = 9; break;       // compute capability, major
        case 76: *value = 9; break;       // minor
        case 97: *value = SHARED; break;  // shared memory of a block, on request
        case 115: *value = 1; break;      // memory pools
        default: fprintf(stderr, "stand-in: device attribute %d\n", attribute); return INVALID_VALUE;
    }
    return SUCCESS;
}
CALL cuDevicePrimaryCtxRetain(void** to, int) { *to = &context; return SUCCESS; }
CALL cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
CALL cuCtxGetCurrent(void** to) { *to = &context; return SUCCESS; }
CALL cuCtxSetCurrent(void*) { return SUCCESS; }
CALL cuCtxSynchronize() { Guard g; drain_all(); return lost; }
CALL cuDeviceGetDefaultMemPool(void** pool, int) { *pool = &context; return SUCCESS; }
CALL cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }
CALL cuGetErrorName(Result error, const char** to) {
    switch (error) {
        case SUCCESS: *to = "CUDA_SUCCESS"; break;
        case INVALID_VALUE: *to = "CUDA_ERROR_INVALID_VALUE"; break;
        case OUT_OF_MEMORY: *to = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case ILLEGAL_ADDRESS: *to = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
        default: *to = "CUDA_ERROR_UNKNOWN";
    }
    return SUCCESS;
}
CALL cuGetErrorString(Result error, const char** to) {
    switch (error) {
        case SUCCESS: *to = "no error"; break;
        case INVALID_VALUE: *to = "invalid argument"; break;
        case OUT_OF_MEMORY: *to = "out of memory"; break;
        case ILLEGAL_ADDRESS: *to = "an illegal memory access was encountered"; break;
        default: *to = "unknown error";
    }
    return SUCCESS;
}

// ---- streams and events ----

CALL cuStreamCreate(Stream** to, unsigned) {
    Guard g;
    if (lost) return lost;
    streams.push_back(*to = new Stream);
    return SUCCESS;
}
CALL cuStreamCreateWithPriority(Stream** to, unsigned flags, int) { return cuStreamCreate(to, flags); }
CALL cuStreamDestroy_v2(Stream* s) {
    Guard g;
    drain(s, s->enqueued);
    std::erase(streams, s);
    delete s;
    return lost;
}
CALL cuStreamSynchronize(Stream* s) {
    Guard g;
    if (s->capture) return CAPTURE_INVALIDATED;
    drain(s, s->enqueued);
    return lost;
}
CALL cuStreamWaitEvent(Stream* s, Event* e, unsigned) {
    Guard g;
    Stream* other = e->stream;
    unsigned long after = e->after;
    if (!other) return SUCCESS;
    return enqueue(s, [=] { drain(other, after); });
}
CALL cuEventCreate(Event** to, unsigned) { *to = new Event; return lost; }
CALL cuEventDestroy_v2(Event* e) { delete e; return SUCCESS; }
CALL cuEventRecord(Event* e, Stream* s) {
    Guard g;
    if (s->capture) return CAPTURE_INVALIDATED;
    e->stream = s;
    e->after = s->enqueued;
    e->ms = clock_ms;
    return lost;
}
CALL cuEventQuery(Event*) { return lost; }
CALL cuEventSynchronize(Event* e) {
    Guard g;
    if (e->stream) drain(e->stream, e->after);
    return lost;
}
CALL cuEventElapsedTime_v2(float* ms, Event* from, Event* to) { *ms = to->ms - from->ms; return lost; }
CALL cuEventElapsedTime(float* ms, Event* from, Event* to) { return cuEventElapsedTime_v2(ms, from, to); }

// ---- graphs ----

CALL cuStreamBeginCapture_v2(Stream* s, int) {
    Guard g;
    if (lost) return lost;
    s->capture = new Graph;
    return SUCCESS;
}
CALL cuStreamEndCapture(Stream* s, Graph** to) {
    Guard g;
    *to = s->capture;
    s->capture = nullptr;
    return lost;
}
CALL cuStreamIsCapturing(Stream* s, int* to) { *to = s->capture != nullptr; return SUCCESS; }
CALL cuGraphInstantiateWithFlags(Graph** to, Graph* graph, unsigned long long) { *to = new Graph(*graph); return lost; }
CALL cuGraphLaunch(Graph* graph, Stream* s) {
    Guard g;
    for (const Work& work : graph->work)
        if (Result r = enqueue(s, work)) return r;
    return lost;
}
CALL cuGraphDestroy(Graph* graph) { delete graph; return SUCCESS; }
CALL cuGraphExecDestroy(Graph* graph) {
    Guard g;
    drain_all();
    delete graph;
    return SUCCESS;
}

// ---- memory ----

CALL cuMemAlloc_v2(uint64_t* to, size_t bytes) { Guard g; return allocate(to, bytes); }
CALL cuMemAllocAsync(uint64_t* to, size_t bytes, Stream*) { Guard g; return allocate(to, bytes); }
CALL cuMemFree_v2(uint64_t at) { Guard g; drain_all(); release(at); return lost; }
CALL cuMemFreeAsync(uint64_t at, Stream* s) {
    Guard g;
    if (lost) {
        release(at);
        return lost;
    }
    return enqueue(s, [=] { release(at); });
}
CALL cuMemGetInfo_v2(size_t* unused, size_t* total) {
    Guard g;
    drain_all();
    *unused = memory - in_use;
    *total = memory;
    return lost;
}
CALL cuMemHostAlloc(void** to, size_t bytes, unsigned) {
    Guard g;
    if (lost) return lost;
    if (posix_memalign(to, 4096, bytes)) return OUT_OF_MEMORY;
    memset(*to, 0xff, bytes);
    pinned_blocks[(uintptr_t)*to] = bytes;
    return SUCCESS;
}
CALL cuMemFreeHost(void* at) {
    Guard g;
    drain_all();
    pinned_blocks.erase((uintptr_t)at);
    free(at);
    return lost;
}
CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* s) {
    Guard g;
    if (!within(device_blocks, to, bytes)) return refuse("cuMemcpyHtoDAsync", "the target is outside of any allocation");
    if (within(pinned_blocks, (uintptr_t)from, bytes)) return enqueue(s, [=] { memcpy((void*)to, from, bytes); });
    std::vector<char> staged((const char*)from, (const char*)from + bytes);
    return enqueue(s, [to, staged = std::move(staged)] { memcpy((void*)to, staged.data(), staged.size()); });
}
CALL cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* s) {
    Guard g;
    if (!within(device_blocks, from, bytes)) return refuse("cuMemcpyDtoHAsync", "the source is outside of any allocation");
    return enqueue(s, [=] { memcpy(to, (const void*)from, bytes); });
}
CALL cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* s) {
    Guard g;
    if (!within(device_blocks, to, bytes) || !within(device_blocks, from, bytes))
        return refuse("cuMemcpyDtoDAsync", "a range is outside of any allocation");
    return enqueue(s, [=] { memcpy((void*)to, (const void*)from, bytes); });
}
CALL cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream* s) {
    Guard g;
    if (!within(device_blocks, at, bytes)) return refuse("cuMemsetD8Async", "the range is outside of any allocation");
    return enqueue(s, [=] { memset((void*)at, value, bytes); });
}

// ---- modules and launches ----

// An image is the path of a shared object, see `nvrtc.cpp`. Loaded once and kept.
CALL cuModuleLoadData(Module** to, const void* image) {
    Guard g;
    if (lost) return lost;
    std::string path = (const char*)image;
    Module*& module = modules[path];
    if (!module) {
        std::vector<const Kernel*> found;
        loading = &found;
        void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        loading = nullptr;
        if (!object) {
            fprintf(stderr, "stand-in: %s\n", dlerror());
            return INVALID_IMAGE;
        }
        module = new Module;
        for (const Kernel* kernel : found) module->kernels[kernel->name] = kernel;
    }
    *to = module;
    return SUCCESS;
}
CALL cuModuleUnload(Module*) { return SUCCESS; }
CALL cuModuleGetFunction(const Kernel** to, Module* module, const char* name) {
    auto kernel = module->kernels.find(name);
    if (kernel == module->kernels.end()) return NOT_FOUND;
    *to = kernel->second;
    return SUCCESS;
}
CALL cuFuncGetAttribute(int* value, int attribute, const Kernel* kernel) {
    if (attribute != 1) return INVALID_VALUE;  // static shared memory
    size_t bytes = kernel->shared_end - kernel->shared;
    *value = bytes < STATIC_SHARED ? bytes : STATIC_SHARED;
    return SUCCESS;
}
CALL cuFuncSetAttribute(const Kernel*, int, int) { return SUCCESS; }

struct LaunchConfig {
    unsigned blocks[3], threads[3], shared;
    Stream* stream;
    void* attributes;
    unsigned attribute_count;
};

CALL cuLaunchKernelEx(const LaunchConfig* config, const Kernel* kernel, void** parameters, void**) {
    Guard g;
    const unsigned *b = config->blocks, *t = config->threads;
    if (!b[0] || !b[1] || !b[2] || b[1] > 65535 || b[2] > 65535) return refuse(kernel->name, "blocks out of range");
    if (t[0] > kernel->max_threads || t[1] != 1 || t[2] != 1 || t[0] == 0) return refuse(kernel->name, "threads beyond the launch bounds");
    if (config->shared > SHARED) return refuse(kernel->name, "too much shared memory");
    Launch launch = {kernel, {b[0], b[1], b[2]}, t[0], config->shared, {}};
    launch.argument.resize((kernel->argument_bytes + 15) / 16);
    memcpy((void*)launch.argument.data(), parameters[0], kernel->argument_bytes);
    return enqueue(config->stream, [launch = std::move(launch)] { count_launch(launch); });
}
