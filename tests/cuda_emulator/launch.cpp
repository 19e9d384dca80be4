// Modules, launches, and graphs of them. Work is done at once.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

#include "driver.h"

static thread_local std::string failure;

const char *launch_failure() { return failure.c_str(); }

// A grid and its parameters, aligned as a kernel wants them.
struct Running {
    std::unique_ptr<void, decltype(&free)> parameters;
    std::unique_ptr<Grid> grid;

    Running(const Recorded &recorded, Grid *before) : parameters(aligned_alloc(64, (recorded.parameters.size() + 63) / 64 * 64), free) {
        memcpy(parameters.get(), recorded.parameters.data(), recorded.parameters.size());
        Launch launch = recorded.launch;
        launch.parameters = parameters.get();
        grid = make_grid(launch, before);
    }
};

static Status told(const std::string &wrong) {
    if (wrong.empty()) {
        return SUCCESS;
    }
    failure = wrong;
    fprintf(stderr, "emulated GPU: %s\n", wrong.c_str());
    return LAUNCH_FAILED;
}

static Status run(const Recorded &recorded) { return told(run_to_end(*Running(recorded, nullptr).grid)); }

// One after another, each of those that may begin before the one before has ended as soon as all of that one's blocks let it; and that one goes
// on only when it is waited for. Of four in a row the first has ended: memory is not endless.
static Status run_overlapping(const std::vector<Recorded> &all) {
    std::deque<Running> open;
    std::string wrong;
    for (size_t i = 0; i < all.size() && wrong.empty(); i++) {
        bool early = all[i].launch.early, last = i + 1 == all.size() || !all[i + 1].launch.early;
        while (!open.empty() && wrong.empty() && (!early || open.size() > 2)) {
            wrong = run_to_end(*open.front().grid);
            open.pop_front();
            if (!open.empty()) {
                open.front().grid->before = nullptr;
            }
        }
        if (wrong.empty()) {
            open.emplace_back(all[i], open.empty() ? nullptr : open.back().grid.get());
            wrong = last ? run_to_end(*open.back().grid) : run_until_next(*open.back().grid);
        }
    }
    return told(wrong);
}

struct Attribute {
    int id, padding;
    unsigned value[16];
};
struct Config {
    unsigned grid[3], block[3], shared;
    Stream *stream;
    const Attribute *attributes;
    unsigned count;
};

// The launch that a configuration wants; false where a driver refuses it.
static bool understood(const Config &config, const Function &function, Launch &launch) {
    const unsigned *grid = config.grid, *block = config.block;
    unsigned long threads = 1ul * block[0] * block[1] * block[2];
    launch = {function.run, nullptr, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, config.shared, 1, unsigned(multiprocessors()), false};
    bool cooperative = false;
    for (unsigned i = 0; i < config.count; i++) {
        const Attribute &attribute = config.attributes[i];
        switch (attribute.id) {
        case 2: cooperative = attribute.value[0] != 0; break;
        case 4:
            require(attribute.value[1] == 1 && attribute.value[2] == 1, "a cluster that is not a row of blocks");
            launch.cluster = attribute.value[0];
            break;
        case 6: launch.early = attribute.value[0] != 0; break;
        default: require(false, "an attribute of a launch that is not emulated");
        }
    }
    if (cooperative) {
        launch.at_once = grid[0] * grid[1] * grid[2];
    }
    return grid[0] && grid[1] && grid[2] && grid[1] <= 65535 && grid[2] <= 65535 && threads > 0 && threads <= 1024 && launch.cluster >= 1 &&
           launch.cluster <= 8 && grid[0] % launch.cluster == 0 && config.shared <= unsigned(function.shared_bytes);
}

extern "C" {

Status cuLaunchKernelEx(const Config *config, Function *function, void **parameters, void **) {
    Recorded recorded;
    if (!understood(*config, *function, recorded.launch)) {
        return INVALID_VALUE;
    }
    const char *bytes = (const char *)parameters[0];
    recorded.parameters.assign(bytes, bytes + function->parameter_bytes);
    if (config->stream->capturing) {
        return config->stream->captured.push_back(recorded), SUCCESS;
    }
    return run(recorded);
}

// One block a multiprocessor, and always room for one cluster.
Status cuOccupancyMaxActiveClusters(int *count, Function *function, const Config *config) {
    Launch launch;
    if (!understood(*config, *function, launch)) {
        return INVALID_VALUE;
    }
    *count = multiprocessors() / int(launch.cluster);
    return *count = *count > 0 ? *count : 1, SUCCESS;
}

Status cuStreamBeginCapture_v2(Stream *stream, int) {
    require(!stream->capturing, "a stream captures already");
    stream->capturing = true, stream->invalid = false;
    return stream->captured.clear(), SUCCESS;
}
Status cuStreamEndCapture(Stream *stream, std::vector<Recorded> **graph) {
    require(stream->capturing, "a stream does not capture");
    stream->capturing = false;
    *graph = stream->invalid ? nullptr : new std::vector<Recorded>(stream->captured);
    return stream->invalid ? CAPTURE_INVALID : SUCCESS;
}
Status cuGraphInstantiateWithFlags(std::vector<Recorded> **exec, std::vector<Recorded> *graph, unsigned long long) {
    return *exec = new std::vector<Recorded>(*graph), SUCCESS;
}
Status cuGraphDestroy(std::vector<Recorded> *graph) { return delete graph, SUCCESS; }
Status cuGraphExecDestroy(std::vector<Recorded> *exec) { return delete exec, SUCCESS; }
Status cuGraphLaunch(std::vector<Recorded> *exec, Stream *stream) {
    require(!stream->capturing, "a graph is replayed in a capture");
    // To begin before the kernel before has ended is allowed, never promised.
    static const bool overlap = setting("TRIFUSE_EMULATOR_OVERLAP");
    if (overlap) {
        return run_overlapping(*exec);
    }
    for (const Recorded &recorded : *exec) {
        if (Status status = run(recorded)) {
            return status;
        }
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
    // How a multiprocessor divides its memory, which is 9, changes nothing here.
    require(which == 8 || which == 9, "an attribute that is not emulated");
    return function->shared_bytes = which == 8 ? value : function->shared_bytes, SUCCESS;
}
}
