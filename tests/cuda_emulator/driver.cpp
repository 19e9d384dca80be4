// libcuda.so for tests without a GPU: work is done at once, on the processor. See README.md.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "fibre.h"

typedef int Status;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, CAPTURE_INVALID = 901, CAPTURE_ISOLATION = 905 };

// A use that a real driver would leave undefined: better to stop here.
static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "emulated driver: %s\n", what);
        abort();
    }
}

struct Function {
    void (*run)(void *);
    size_t parameter_bytes;
    int shared_bytes;
};

struct Launch {
    Function *function;
    unsigned grid[3], block[3], shared;
    std::vector<char> parameters;
};

struct Stream {
    bool capturing = false, invalid = false;
    std::vector<Launch> captured;
};

struct Event {
    bool captured = false;   // recorded in a stream that was capturing then
    std::chrono::steady_clock::time_point when;
};

static const size_t TOTAL = size_t(1) << 30;
static std::mutex guard;
static std::map<uint64_t, size_t> live;   // allocations
static size_t used = 0;

static void run(const Launch &launch) {
    // Blocks in order; a real device promises none.
    for (unsigned z = 0; z < launch.grid[2]; z++) {
        for (unsigned y = 0; y < launch.grid[1]; y++) {
            for (unsigned x = 0; x < launch.grid[0]; x++) {
                run_block(launch.function->run, (void *)launch.parameters.data(), {x, y, z}, {launch.grid[0], launch.grid[1], launch.grid[2]},
                          {launch.block[0], launch.block[1], launch.block[2]}, launch.shared);
            }
        }
    }
}

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
Status cuGetErrorString(Status, const char **text) { return *text = "an emulated error", SUCCESS; }

Status cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
Status cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
Status cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated GPU"), SUCCESS; }
Status cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = TOTAL, SUCCESS; }
Status cuDeviceGetAttribute(int *value, int which, int) {
    switch (which) {
    case 16: *value = 4; break;             // multiprocessors: few, so that grids are longer than the device is wide
    case 18: *value = 0; break;             // integrated
    case 75: *value = 8; break;             // compute capability
    case 76: *value = 0; break;
    case 97: *value = 163 << 10; break;     // shared memory of a block
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

Status cuMemPoolCreate(void **pool, const void *) { return *pool = &live, SUCCESS; }
Status cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
Status cuMemPoolGetAttribute(void *, int, void *value) {
    std::lock_guard<std::mutex> lock(guard);
    return *(uint64_t *)value = used, SUCCESS;
}
Status cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }
Status cuMemPoolDestroy(void *) {
    std::lock_guard<std::mutex> lock(guard);
    require(live.empty(), "the pool is destroyed before its memory is freed");
    return SUCCESS;
}
Status cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, void *, Stream *stream) {
    require(!stream->capturing, "an allocation becomes part of a capture");
    require(bytes > 0, "an allocation of no bytes");
    std::lock_guard<std::mutex> lock(guard);
    if (bytes > TOTAL - used) {
        return OUT_OF_MEMORY;
    }
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    require(memory, "the host has no memory left");
    memset(memory, 0xff, bytes);
    *address = (uint64_t)memory;
    live[*address] = bytes;
    used += bytes;
    return SUCCESS;
}
Status cuMemFreeAsync(uint64_t address, Stream *stream) {
    require(!stream->capturing, "a free becomes part of a capture");
    std::lock_guard<std::mutex> lock(guard);
    auto found = live.find(address);
    require(found != live.end(), "memory is freed that is not allocated");
    memset((void *)address, 0xff, found->second);
    used -= found->second;
    live.erase(found);
    free((void *)address);
    return SUCCESS;
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

static bool within(const std::map<uint64_t, size_t> &all, uint64_t address, size_t bytes) {
    auto after = all.upper_bound(address);
    return after != all.begin() && address + bytes <= std::prev(after)->first + std::prev(after)->second;
}
// Whether the range lies in one allocation.
static bool inside(uint64_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(guard);
    return within(live, address, bytes) || within(locked, address, bytes);
}
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

Status cuStreamBeginCapture_v2(Stream *stream, int) {
    require(!stream->capturing, "a stream captures already");
    stream->capturing = true, stream->invalid = false;
    return stream->captured.clear(), SUCCESS;
}
Status cuStreamEndCapture(Stream *stream, std::vector<Launch> **graph) {
    require(stream->capturing, "a stream does not capture");
    stream->capturing = false;
    *graph = stream->invalid ? nullptr : new std::vector<Launch>(stream->captured);
    return stream->invalid ? CAPTURE_INVALID : SUCCESS;
}
Status cuGraphInstantiateWithFlags(std::vector<Launch> **exec, std::vector<Launch> *graph, unsigned long long) {
    return *exec = new std::vector<Launch>(*graph), SUCCESS;
}
Status cuGraphDestroy(std::vector<Launch> *graph) { return delete graph, SUCCESS; }
Status cuGraphExecDestroy(std::vector<Launch> *exec) { return delete exec, SUCCESS; }
Status cuGraphLaunch(std::vector<Launch> *exec, Stream *stream) {
    require(!stream->capturing, "a graph is replayed in a capture");
    for (const Launch &launch : *exec) {
        run(launch);
    }
    return SUCCESS;
}

// An image is a mark, the length, and a shared object: see compiler.cpp.
Status cuModuleLoadData(void **module, const char *image) {
    uint64_t length;
    if (memcmp(image, "EMULATED", 8) != 0) {
        return INVALID_IMAGE;
    }
    memcpy(&length, image + 8, 8);
    char path[] = "/tmp/trifuse-emulated-XXXXXX";
    int file = mkstemp(path);
    require(file >= 0 && write(file, image + 16, length) == ssize_t(length), "no room in /tmp");
    close(file);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) {
        fprintf(stderr, "emulated driver: %s\n", dlerror());
    }
    unlink(path);
    return *module ? SUCCESS : INVALID_IMAGE;
}
Status cuModuleUnload(void *module) { return dlclose(module), SUCCESS; }
Status cuModuleGetFunction(Function **function, void *module, const char *name) {
    void *run = dlsym(module, (std::string("emulated_run_") + name).c_str());
    void *size = dlsym(module, (std::string("emulated_size_") + name).c_str());
    if (!run || !size) {
        return NOT_FOUND;
    }
    *function = new Function{(void (*)(void *))run, *(size_t *)size, 0};
    return SUCCESS;
}
Status cuFuncSetAttribute(Function *function, int which, int value) {
    require(which == 8, "an attribute that is not emulated");
    return function->shared_bytes = value, SUCCESS;
}

struct Config {
    unsigned grid[3], block[3], shared;
    Stream *stream;
    void *attributes;
    unsigned attribute_count;
};
Status cuLaunchKernelEx(const Config *config, Function *function, void **parameters, void **) {
    Launch launch = {function, {}, {}, config->shared, {}};
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    unsigned long threads = 1ul * config->block[0] * config->block[1] * config->block[2];
    if (!config->grid[0] || !config->grid[1] || !config->grid[2] || config->grid[1] > 65535 || config->grid[2] > 65535 || threads == 0 || threads > 1024 ||
        config->shared > unsigned(function->shared_bytes)) {
        return INVALID_VALUE;
    }
    const char *bytes = (const char *)parameters[0];
    launch.parameters.assign(bytes, bytes + function->parameter_bytes);
    if (config->stream->capturing) {
        config->stream->captured.push_back(launch);
    } else {
        run(launch);
    }
    return SUCCESS;
}
}
