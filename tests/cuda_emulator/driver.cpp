// libcuda.so for tests without a GPU: work is done at once, on the processor. See README.md.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "driver.h"
#include "grid.h"

struct Event {
    bool captured = false;   // recorded in a stream that was capturing then
    std::chrono::steady_clock::time_point when;
};

void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "emulated driver: %s\n", what);
        abort();
    }
}

static const size_t TOTAL = size_t(1) << 30;
static std::mutex guard;
static std::map<uint64_t, size_t> live;   // allocations
static size_t used = 0;
// A pool by the addresses of its allocations: each device that is open has one of its own.
typedef std::set<uint64_t> Pool;
static std::map<uint64_t, Pool *> pool_of;

// An allocation ends at the end of its last page but for what is left of 256 bytes, and nothing is behind that page: a kernel that goes
// on there, or uses it when it is freed, is caught.
static const size_t PAGE = 4096, ALIGNMENT = 256;
static size_t mapped_bytes(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE + PAGE; }
static uint64_t mapped(size_t bytes) {
    size_t all = mapped_bytes(bytes);
    char *pages = (char *)mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(pages != MAP_FAILED && mprotect(pages + all - PAGE, PAGE, PROT_NONE) == 0, "the host has no memory left");
    return uint64_t(pages + all - PAGE - (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

// The device, as the environment wants it: by its compute capability, 80 or 90.
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}
static int arch() { return number("TRIFUSE_EMULATOR_ARCH", 80); }
int multiprocessors() { return number("TRIFUSE_EMULATOR_UNITS", 4); }

extern "C" {

Status cuInit(unsigned) {
    // Kernels look for the fibres' functions among the libraries that are open to all.
    Dl_info self;
    require(dladdr((void *)cuInit, &self) && dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD), "it does not find itself");
    return SUCCESS;
}
Status cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
Status cuGetErrorName(Status status, const char **text) {
    static thread_local std::string name;
    name = "EMULATED_" + std::to_string(status);
    return *text = name.c_str(), SUCCESS;
}
Status cuGetErrorString(Status status, const char **text) {
    return *text = status == LAUNCH_FAILED ? launch_failure() : "an emulated error", SUCCESS;
}

Status cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
Status cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
Status cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated GPU"), SUCCESS; }
Status cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = TOTAL, SUCCESS; }
Status cuDeviceGetAttribute(int *value, int which, int) {
    switch (which) {
    case 16: *value = multiprocessors(); break; // few, so that grids are longer than the device is wide
    case 18: *value = 0; break;             // integrated
    case 75: *value = arch() / 10; break;   // compute capability
    case 76: *value = arch() % 10; break;
    case 97: *value = (arch() == 90 ? 227 : arch() == 80 ? 163 : 99) << 10; break; // shared memory of a block
    case 115: *value = 1; break;            // memory pools
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
Status cuDevicePrimaryCtxRetain(void **context, int) { return *context = &guard, SUCCESS; }
Status cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Status cuCtxSetCurrent(void *context) { return context ? SUCCESS : INVALID_VALUE; }

Status cuStreamCreate(Stream **stream, unsigned) { return *stream = new Stream, SUCCESS; }
Status cuStreamDestroy_v2(Stream *stream) { return delete stream, SUCCESS; }
Status cuStreamSynchronize(Stream *stream) {
    require(!stream->capturing, "a synchronised stream captures");
    return SUCCESS;
}
Status cuEventCreate(Event **event, unsigned) { return *event = new Event, SUCCESS; }
Status cuEventDestroy_v2(Event *event) { return delete event, SUCCESS; }
Status cuEventRecord(Event *event, Stream *stream) {
    event->when = std::chrono::steady_clock::now();
    return event->captured = stream->capturing, SUCCESS;
}
Status cuEventElapsedTime(float *milliseconds, Event *first, Event *last) {
    require(!first->captured && !last->captured, "a timed event belongs to a capture");
    return *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count(), SUCCESS;
}
Status cuEventSynchronize(Event *event) {
    require(!event->captured, "a synchronised event belongs to a capture");
    return SUCCESS;
}
Status cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    require(!event->captured || stream->capturing, "a wait drags a stream into a capture");
    if (stream->capturing && !event->captured) {
        stream->invalid = true;
        return CAPTURE_ISOLATION;
    }
    return SUCCESS;
}

Status cuMemPoolCreate(Pool **pool, const void *) { return *pool = new Pool, SUCCESS; }
Status cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
Status cuMemPoolGetAttribute(void *, int, void *value) {
    std::lock_guard<std::mutex> lock(guard);
    return *(uint64_t *)value = used, SUCCESS;
}
Status cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }
Status cuMemPoolDestroy(Pool *pool) {
    std::lock_guard<std::mutex> lock(guard);
    require(pool->empty(), "the pool is destroyed before its memory is freed");
    delete pool;
    return SUCCESS;
}
Status cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, Pool *pool, Stream *stream) {
    require(!stream->capturing, "an allocation becomes part of a capture");
    require(bytes > 0, "an allocation of no bytes");
    std::lock_guard<std::mutex> lock(guard);
    if (bytes > TOTAL - used) {
        return OUT_OF_MEMORY;
    }
    *address = mapped(bytes);
    memset((void *)*address, 0xff, bytes);
    live[*address] = bytes;
    pool_of[*address] = pool;
    pool->insert(*address);
    used += bytes;
    return SUCCESS;
}
Status cuMemFreeAsync(uint64_t address, Stream *stream) {
    require(!stream->capturing, "a free becomes part of a capture");
    std::lock_guard<std::mutex> lock(guard);
    auto found = live.find(address);
    require(found != live.end(), "memory is freed that is not allocated");
    used -= found->second;
    munmap((void *)(address / PAGE * PAGE), mapped_bytes(found->second));
    pool_of[address]->erase(address);
    pool_of.erase(address);
    return live.erase(found), SUCCESS;
}
Status cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, Stream *stream) {
    require(!stream->capturing, "a fill becomes part of a capture");
    return memset((void *)address, value, bytes), SUCCESS;
}
// Page-locked memory of the host: it has addresses that the device may use too.
static std::map<uint64_t, size_t> locked;
Status cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    *memory = malloc(bytes);
    std::lock_guard<std::mutex> lock(guard);
    locked[(uint64_t)*memory] = bytes;
    return SUCCESS;
}
Status cuMemFreeHost(void *memory) {
    std::lock_guard<std::mutex> lock(guard);
    require(locked.erase((uint64_t)memory) == 1, "memory of the host is freed that is not allocated");
    return free(memory), SUCCESS;
}

}

// The allocation that a kernel of this thread has read last: it reads row after row of the same.
static thread_local uint64_t known_begin, known_end;
void forget_allocations() { known_begin = known_end = 0; }

static bool holds(const std::map<uint64_t, size_t> &all, uint64_t address, size_t bytes) {
    auto after = all.upper_bound(address);
    if (after == all.begin() || address + bytes > std::prev(after)->first + std::prev(after)->second) {
        return false;
    }
    known_begin = std::prev(after)->first;
    known_end = known_begin + std::prev(after)->second;
    return true;
}
// Whether the range lies in one allocation.
static bool inside(uint64_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(guard);
    return holds(live, address, bytes) || holds(locked, address, bytes);
}
bool emulated_allocated(uint64_t address, size_t bytes) {
    return (known_begin <= address && address + bytes <= known_end) || inside(address, bytes);
}

extern "C" {

Status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream) {
    require(!stream->capturing && inside(to, bytes), "a copy to memory that is not allocated, or in a capture");
    return memcpy((void *)to, from, bytes), SUCCESS;
}
Status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream) {
    require(!stream->capturing && inside(from, bytes), "a copy from memory that is not allocated, or in a capture");
    return memcpy(to, (void *)from, bytes), SUCCESS;
}

Status cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream *stream) {
    require(!stream->capturing && inside(from, bytes) && inside(to, bytes), "a copy of memory that is not allocated, or in a capture");
    return memcpy((void *)to, (void *)from, bytes), SUCCESS;
}
}
