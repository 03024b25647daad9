// A stand-in for Metal.framework on Linux: GNUstep Foundation, GCC's libobjc and the CPU shim of MSL.
// Only the methods below exist; another one raises "does not recognize selector". Misuse that Metal's
// validation layer would report prints one line and aborts.
// MSL_SHIM (folder of the shim) and CLANGXX come from run-stand-in.sh.
#define _GNU_SOURCE
#define object_getClass gcc_inline_object_getClass
#import <Foundation/Foundation.h>
#undef object_getClass
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
typedef struct {
    NSUInteger width, height, depth;
} MTLSize;
typedef int (*launch_t)(const char*, void**, const size_t*, unsigned, const uint32_t*, const uint32_t*,
                        unsigned, uint32_t);
#define PAGE 16384ul // Apple silicon
// ---- what tests set and ask
static NSUInteger working_set = 16ul << 30; // two thirds of a 24 GiB machine
static NSUInteger max_buffer = 12ul << 30;
static unsigned order = 2, fail_in, refuse_queues, macos = 15;
static NSUInteger peak, viewed;
// Bytes that one command buffer may use; returns what it was.
size_t fake_metal_set_working_set(size_t bytes) {
    size_t old = working_set;
    working_set = bytes;
    return old;
}
// maxBufferLength; returns what it was.
size_t fake_metal_set_max_buffer(size_t bytes) {
    size_t old = max_buffer;
    max_buffer = bytes;
    return old;
}
// The system's version; returns what it was.
unsigned fake_metal_set_macos(unsigned major) {
    unsigned old = macos;
    macos = major;
    return old;
}
// Order in which the threads of a threadgroup run: `order` of msl_launch.
void fake_metal_set_order(unsigned o) { order = o; }
// The n-th command buffer from now on fails, after its first half has run; 0: none.
void fake_metal_fail_in(unsigned n) { fail_in = n; }
// The next n queues that are asked for are not given.
void fake_metal_refuse_queues(unsigned n) { refuse_queues = n; }
// The most bytes of distinct no-copy buffers that one command buffer has used since the last call.
size_t fake_metal_take_peak(void) {
    size_t p = peak;
    peak = 0;
    return p;
}
// Whether kernels are compiled with AddressSanitizer.
bool fake_metal_is_sanitized(void) {
    const char* flags = getenv("FAKE_METAL_CFLAGS");
    return flags && strstr(flags, "-fsanitize=address");
}
// Bytes of the no-copy buffers that live.
size_t fake_metal_viewed(void) { return viewed; }
#define FAIL(...)                                                                                            \
    do {                                                                                                     \
        NSLog(@"FakeMetal: " __VA_ARGS__);                                                                   \
        abort();                                                                                             \
    } while (0)
// ---- pages
// Linux maps files at multiples of its own page of 4 KiB. Here they begin where a Mac's do, and the rest of the last
// page of 16 KiB is nobody else's; it stays when the file is unmapped.
void* mmap64(void* at, size_t n, int prot, int flags, int fd, off64_t offset) {
    if (at || fd < 0) return (void*)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
    size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    char* room = (char*)syscall(SYS_mmap, 0, whole + PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return room;
    char* p = (char*)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    if (p > room) munmap(room, p - room);
    if (p < room + PAGE) munmap(p + whole, room + PAGE - p);
    return (void*)syscall(SYS_mmap, p, n, prot, flags | MAP_FIXED, fd, offset);
}
// ---- the system's version
typedef struct {
    NSInteger major, minor, patch;
} NSOperatingSystemVersion;
@implementation NSProcessInfo (FakeMetal)
- (NSOperatingSystemVersion)operatingSystemVersion {
    return (NSOperatingSystemVersion){macos, 0, 0};
}
@end
// ---- the ARC entry points that GCC's libobjc lacks
id objc_retain(id o) { return [o retain]; }
void objc_release(id o) { [o release]; }
id objc_autorelease(id o) { return [o autorelease]; }
id objc_autoreleaseReturnValue(id o) { return [o autorelease]; }
id objc_retainAutoreleasedReturnValue(id o) { return [o retain]; }
void* objc_autoreleasePoolPush(void) { return [[NSAutoreleasePool alloc] init]; }
void objc_autoreleasePoolPop(void* p) { [(NSAutoreleasePool*)p release]; }
// ---- blocks
void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];
struct Block {
    void* isa;
    int flags, ref;
    void (*invoke)(void*, ...);
    struct {
        unsigned long r, size;
        void (*copy)(void*, void*);
        void (*dispose)(void*);
    }* d;
};
int fake_blocks_live;
void* _Block_copy(const void* p) {
    struct Block* b = (struct Block*)p;
    if (b->isa == _NSConcreteGlobalBlock) return b;
    if (b->flags & (1 << 24)) {
        b->ref++;
        return b;
    }
    struct Block* n = malloc(b->d->size);
    memcpy(n, b, b->d->size);
    n->flags |= 1 << 24;
    n->ref = 1;
    if (b->flags & (1 << 25)) b->d->copy(n, (void*)b);
    fake_blocks_live++;
    return n;
}
void _Block_release(const void* p) {
    struct Block* b = (struct Block*)p;
    if (!b || b->isa == _NSConcreteGlobalBlock) return;
    if (--b->ref == 0) {
        if (b->flags & (1 << 25)) b->d->dispose(b);
        free(b);
        fake_blocks_live--;
    }
}
void _Block_object_assign(void* d, const void* o, int f) { *(const void**)d = o; }
void _Block_object_dispose(const void* o, int f) {}

@interface FMBuffer : NSObject {
  @public
    void* p;
    NSUInteger n;
    struct Block* dealloc_;
    BOOL own;
    void* twin; // what kernels reach a no-copy buffer by its address through, if it was asked for
}
@end
// Kernels that are handed an address, and not a buffer, may only follow it where the command buffer makes the
// buffer resident: its pages are mapped a second time, and closed but for that time.
static void stray(int signal) {
    static const char say[] = "FakeMetal: a kernel followed an address to memory that is not resident\n";
    write(2, say, sizeof say - 1);
    _exit(134);
}
@implementation FMBuffer
- (uint64_t)gpuAddress {
    if (own) return (uint64_t)p; // the heap, which AddressSanitizer watches
    if (!twin) {
        signal(SIGSEGV, stray);
        signal(SIGBUS, stray);
        twin = mremap(p, 0, n, MREMAP_MAYMOVE);
        if (twin == MAP_FAILED) FAIL(@"no second mapping of a no-copy buffer: it must be of a shared mapping");
        mprotect(twin, n, PROT_NONE);
    }
    return (uint64_t)twin;
}
- (void*)contents {
    return p;
}
- (NSUInteger)length {
    return n;
}
- (void)dealloc {
    if (own) free(p);
    else viewed -= n;
    if (twin) munmap(twin, n);
    if (dealloc_) {
        dealloc_->invoke(dealloc_, p, n);
        _Block_release(dealloc_);
    }
    [super dealloc];
}
@end
@interface FMFunction : NSObject {
  @public
    NSString* name;
    launch_t launch;
}
@end
@implementation FMFunction
- (NSString*)name {
    return name;
}
@end
@interface FMPipeline : FMFunction
@end
@implementation FMPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return 1024;
}
- (NSUInteger)threadExecutionWidth {
    return 32;
}
@end
@interface MTLCompileOptions : NSObject {
    NSUInteger v;
    NSInteger m;
}
@end
@implementation MTLCompileOptions
- (void)setLanguageVersion:(NSUInteger)x {
    v = x;
}
- (BOOL)respondsToSelector:(SEL)s {
    return (macos >= 15 || !sel_isEqual(s, @selector(setMathMode:))) && [super respondsToSelector:s];
}
- (void)setMathMode:(NSInteger)x {
    if (macos < 15) FAIL(@"setMathMode: is of macOS 15");
    m = x;
}
- (void)setFastMathEnabled:(BOOL)x {
}
@end
@interface FMLibrary : NSObject {
  @public
    void* so;
}
@end
@implementation FMLibrary
- (id)newFunctionWithName:(NSString*)n {
    NSAutoreleasePool* pool = [NSAutoreleasePool new]; // the caller may have none
    int (*has)(const char*) = dlsym(so, "msl_has");
    FMFunction* f = nil;
    if (has([n UTF8String])) {
        f = [FMFunction new];
        f->name = [n copy];
        f->launch = (launch_t)dlsym(so, "msl_launch");
    }
    [pool release];
    return f;
}
@end
typedef struct {
    FMPipeline* p;
    void* b[31];
    FMBuffer* from[31]; // the buffer that b[i] points into, nil for setBytes
    size_t tg[8];
    unsigned ntg;
    uint32_t g[3], t[3];
    const uint32_t* indirect; // where g is found when it runs
    BOOL concurrent, barrier; // barrier: what came before must be done
} Disp;
// After a failure a queue may ignore whatever else it is given; this one always does.
@interface FMQueue : NSObject {
  @public
    BOOL failed;
}
@end
@interface FMCommandBuffer : NSObject {
  @public
    FMQueue* queue;
    Disp* d;
    unsigned n;
    NSMutableSet* resident; // by useResources
    NSMutableArray* keep; // the data of setBytes; the buffers, where references are retained
    BOOL retains;
    NSError* error;
    NSUInteger status;
    double t0, t1;
}
@end
@interface FMEncoder : NSObject {
  @public
    FMCommandBuffer* cb;
    Disp cur;
}
@end
@implementation FMEncoder
- (void)setComputePipelineState:(id)p {
    cur.p = p;
}
- (void)setBuffer:(FMBuffer*)b offset:(NSUInteger)o atIndex:(NSUInteger)i {
    if (i > 30) FAIL(@"buffer index %lu over 30", (unsigned long)i);
    if (o >= b->n) FAIL(@"offset %lu past the end of a buffer of %lu bytes", (unsigned long)o, (unsigned long)b->n);
    if (cb->retains) [cb->keep addObject:b];
    cur.b[i] = (char*)b->p + o;
    cur.from[i] = b;
}
- (void)setBytes:(const void*)p length:(NSUInteger)n atIndex:(NSUInteger)i {
    if (i > 30) FAIL(@"buffer index %lu over 30", (unsigned long)i);
    if (n > 4096) FAIL(@"setBytes of %lu bytes: over 4 KiB", (unsigned long)n);
    NSData* d = [NSData dataWithBytes:p length:n];
    [cb->keep addObject:d];
    cur.b[i] = (void*)[d bytes];
    cur.from[i] = nil;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)n atIndex:(NSUInteger)i {
    if (i > 7) FAIL(@"threadgroup memory index %lu: the shim has 8", (unsigned long)i);
    if (n % 16) FAIL(@"threadgroup memory length %lu is not a multiple of 16", (unsigned long)n);
    cur.tg[i] = n;
    if (cur.ntg <= i) cur.ntg = i + 1;
}
- (void)memoryBarrierWithScope:(NSUInteger)s {
    cur.barrier = YES;
}
- (void)useResources:(FMBuffer* const*)r count:(NSUInteger)n usage:(NSUInteger)u {
    if (u != 1) FAIL(@"useResources with usage %lu: the stand-in knows reading only", (unsigned long)u);
    for (NSUInteger i = 0; i < n; i++) {
        [cb->resident addObject:[NSValue valueWithPointer:r[i]]];
        if (cb->retains) [cb->keep addObject:r[i]];
    }
}
- (void)dispatchThreadgroupsWithIndirectBuffer:(FMBuffer*)b
                          indirectBufferOffset:(NSUInteger)o
                         threadsPerThreadgroup:(MTLSize)t {
    if (o % 4 || o + 12 > b->n) FAIL(@"no room for a grid at %lu of %lu bytes", (unsigned long)o, (unsigned long)b->n);
    if (cb->retains) [cb->keep addObject:b];
    cur.indirect = (const uint32_t*)((char*)b->p + o);
    [self dispatchThreadgroups:(MTLSize){1, 1, 1} threadsPerThreadgroup:t];
    cur.indirect = 0;
}
- (void)dispatchThreadgroups:(MTLSize)g threadsPerThreadgroup:(MTLSize)t {
    if (!cur.p) FAIL(@"dispatch without a pipeline");
    if (!g.width || !g.height || !g.depth) FAIL(@"%@: no threadgroups", cur.p->name);
    cur.g[0] = g.width;
    cur.g[1] = g.height;
    cur.g[2] = g.depth;
    cur.t[0] = t.width;
    cur.t[1] = t.height;
    cur.t[2] = t.depth;
    cb->d = realloc(cb->d, (cb->n + 1) * sizeof(Disp));
    cb->d[cb->n++] = cur;
    cur.barrier = NO;
}
- (void)endEncoding {
}
@end
@implementation FMCommandBuffer
- (id)computeCommandEncoderWithDispatchType:(NSUInteger)t {
    FMEncoder* e = [[FMEncoder new] autorelease];
    e->cb = self;
    e->cur.concurrent = t == 1;
    e->cur.barrier = YES; // an encoder starts after the one before it
    if (!keep) keep = [NSMutableArray new];
    if (!resident) resident = [NSMutableSet new];
    return e;
}
- (id)computeCommandEncoder {
    return [self computeCommandEncoderWithDispatchType:0];
}
static void run(Disp* d) {
    if (d->indirect) { // not written yet, or garbage, if beyond what a grid may be
        memcpy(d->g, d->indirect, sizeof d->g);
        for (int i = 0; i < 3; i++)
            if (d->g[i] > 1 << 20) FAIL(@"%@: an indirect grid of %u threadgroups", d->p->name, d->g[i]);
        if (!d->g[0] || !d->g[1] || !d->g[2]) return;
    }
    int rc = d->p->launch([d->p->name UTF8String], d->b, d->tg, d->ntg, d->g, d->t, 2, order);
    if (rc) FAIL(@"%@: %@", d->p->name, rc == 2 ? @"over 1024 threads in a threadgroup" : @"no such kernel");
}
- (void)failWithCode:(NSInteger)code saying:(NSString*)what {
    queue->failed = YES;
    status = 5;
    error = [[NSError errorWithDomain:@"MTLCommandBufferErrorDomain"
                                 code:code
                             userInfo:[NSDictionary dictionaryWithObject:what
                                                                  forKey:NSLocalizedDescriptionKey]] retain];
}
// Dispatches of a concurrent encoder between two barriers run in reverse, so that a missing barrier shows.
- (void)commit {
    if (status) FAIL(@"command buffer committed twice");
    NSAutoreleasePool* pool = [NSAutoreleasePool new];
    NSMutableSet* used = [NSMutableSet set];
    NSUInteger bytes = 0, views = 0;
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < 31; k++) {
            FMBuffer* b = d[i].from[k];
            NSValue* key = [NSValue valueWithPointer:b];
            if (!b || [used containsObject:key]) continue;
            [used addObject:key];
            bytes += b->n;
            if (!b->own) views += b->n;
        }
    for (NSValue* key in resident) {
        FMBuffer* b = [key pointerValue];
        if (b->twin) mprotect(b->twin, b->n, PROT_READ);
        if ([used containsObject:key]) continue;
        bytes += b->n;
        if (!b->own) views += b->n;
    }
    [pool release];
    if (views > peak) peak = views;
    if (queue->failed) {
        n = 0;
        [self failWithCode:4 saying:@"Ignored (for causing prior/excessive GPU errors)"];
    } else if (fail_in && --fail_in == 0) {
        n /= 2;
        [self failWithCode:8 saying:@"Insufficient Memory"];
    } else if (bytes > working_set) {
        n = 0;
        [self failWithCode:8 saying:@"Insufficient Memory"];
    }
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (unsigned i = 0; i < n;) {
        unsigned j = i + 1;
        while (d[i].concurrent && j < n && !d[j].barrier) j++;
        for (unsigned k = j; k-- > i;) run(&d[k]);
        i = j;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    for (NSValue* key in resident) {
        FMBuffer* held = [key pointerValue];
        if (held->twin) mprotect(held->twin, held->n, PROT_NONE);
    }
    t0 = a.tv_sec + a.tv_nsec * 1e-9;
    t1 = b.tv_sec + b.tv_nsec * 1e-9;
    if (!status) status = 4; // completed
}
- (void)waitUntilCompleted {
}
- (NSUInteger)status {
    return status;
}
- (NSError*)error {
    return error;
}
- (double)GPUStartTime {
    return t0;
}
- (double)GPUEndTime {
    return t1;
}
- (void)dealloc {
    free(d);
    [keep release];
    [resident release];
    [error release];
    [queue release];
    [super dealloc];
}
@end
@implementation FMQueue
- (id)commandBufferWithUnretainedReferences {
    FMCommandBuffer* c = [[FMCommandBuffer new] autorelease];
    c->queue = [self retain];
    return c;
}
- (id)commandBuffer {
    FMCommandBuffer* c = [self commandBufferWithUnretainedReferences];
    c->retains = YES;
    return c;
}
@end
@interface FMDevice : NSObject
@end
@implementation FMDevice
- (id)newCommandQueue {
    if (refuse_queues && refuse_queues--) return nil;
    return [FMQueue new];
}
- (BOOL)supportsFamily:(NSInteger)family {
    return family >= 1001 && family <= 1009; // an M4's
}
- (NSUInteger)maxBufferLength {
    return max_buffer;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return working_set;
}
- (id)newBufferWithLength:(NSUInteger)n options:(NSUInteger)o {
    if (!n || n > max_buffer) return nil;
    FMBuffer* b = [FMBuffer new];
    b->n = n;
    b->own = YES;
    if (posix_memalign(&b->p, PAGE, n)) return nil; // of this very length, so that AddressSanitizer sees its end
    memset(b->p, 0xff, n);
    return b;
}
- (id)newBufferWithBytesNoCopy:(void*)p length:(NSUInteger)n options:(NSUInteger)o deallocator:(id)blk {
    if ((uintptr_t)p % PAGE || n % PAGE || !n) {
        NSLog(@"FakeMetal: newBufferWithBytesNoCopy: pointer or length is not a multiple of the page");
        return nil;
    }
    if (n > max_buffer) return nil;
    FMBuffer* b = [FMBuffer new];
    b->p = p;
    b->n = n;
    b->dealloc_ = blk ? _Block_copy(blk) : 0;
    viewed += n;
    return b;
}
// Collectives know each other by call site, which the optimiser must not double by copying the ends of
// blocks. Compiles with FAKE_METAL_CFLAGS on top, into FAKE_METAL_CACHE if that is set.
- (id)newLibraryWithSource:(NSString*)s options:(id)o error:(NSError**)e {
    const char *tmp = getenv("TMPDIR"), *cache = getenv("FAKE_METAL_CACHE"), *flags = getenv("FAKE_METAL_CFLAGS");
    if (!flags) flags = "";
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (const char* c = [s UTF8String]; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    for (const char* c = flags; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    char path[4096], so_path[4096];
    snprintf(path, sizeof path, "%s/fakemetal-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(path)) FAIL(@"cannot create %s", path);
    snprintf(so_path, sizeof so_path, cache ? "%s/%016lx.so" : "%s/k.so", cache ? cache : path, hash);
    NSString* dir = [NSString stringWithUTF8String:path];
    BOOL built = cache && access(so_path, R_OK) == 0;
    if (!built) {
        [s writeToFile:[dir stringByAppendingString:@"/k.metal"]
            atomically:NO
              encoding:NSUTF8StringEncoding
                 error:0];
        NSString* cmd = [NSString
            stringWithFormat:@"unset LD_PRELOAD; cd '%@' && S='%s' && (python3 \"$S/prepass.py\" k.metal > k.cpp && "
                             @"%s -std=c++20 -O2 -mf16c -mfma -ffp-contract=off -ftls-model=initial-exec -fvisibility=hidden "
                             @"-mllvm -jump-threading-threshold=0 -mllvm -disable-early-taildup "
                             @"-mllvm -disable-tail-duplicate -mllvm -tail-dup-placement=0 %s -shared -fPIC \"-I$S\" "
                             @"-w k.cpp \"$S/runtime.cpp\" -o k.so -lpthread && "
                             @"{ [ k.so -ef '%s' ] || mv k.so '%s'; }) > log 2>&1",
                             dir, MSL_SHIM, CLANGXX, flags, so_path, so_path];
        built = system([cmd UTF8String]) == 0;
    }
    FMLibrary* lib = nil;
    NSString* log;
    if (!built) {
        log = [NSString stringWithContentsOfFile:[dir stringByAppendingString:@"/log"]];
    } else {
        void* so = dlopen(so_path, RTLD_NOW | RTLD_LOCAL);
        if (so) {
            lib = [FMLibrary new];
            lib->so = so;
        } else log = [NSString stringWithUTF8String:dlerror()];
    }
    [[NSFileManager defaultManager] removeFileAtPath:dir handler:nil];
    if (!lib && e)
        *e = [NSError errorWithDomain:@"MTLLibraryErrorDomain"
                                 code:3
                             userInfo:[NSDictionary dictionaryWithObject:log ? log : @"?"
                                                                  forKey:NSLocalizedDescriptionKey]];
    return lib;
}
- (id)newComputePipelineStateWithFunction:(FMFunction*)f error:(NSError**)e {
    FMPipeline* p = [FMPipeline new];
    p->name = [f->name copy];
    p->launch = f->launch;
    return p;
}
@end
Class object_getClass(id o) { return o ? *(Class*)o : 0; }
id MTLCreateSystemDefaultDevice(void) { return [FMDevice new]; }
