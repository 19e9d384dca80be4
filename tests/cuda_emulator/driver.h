// What the parts of the emulated driver share.
#pragma once

#include <vector>

#include "grid.h"

typedef int Status;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    CAPTURE_INVALID = 901,
    CAPTURE_ISOLATION = 905,
};

// A use that a real driver would leave undefined: better to stop here.
void require(bool condition, const char *what);
// What was wrong with this thread's last launch that failed.
const char *launch_failure();
int multiprocessors();

struct Function {
    void (*run)(void *);
    size_t parameter_bytes;
    int shared_bytes;
};

struct Recorded {
    Launch launch;
    std::vector<char> parameters;
};

struct Stream {
    bool capturing = false, invalid = false;
    std::vector<Recorded> captured;
};
