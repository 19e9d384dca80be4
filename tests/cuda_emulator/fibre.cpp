// Threads of a block as fibres of one processor thread, switched only at barriers.

#include "fibre.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#if !defined(__x86_64__)
#error "the emulated GPU switches fibres in x86-64 assembly"
#endif

// Saves what the calling convention asks to keep, stores the stack pointer, goes on with another stack.
extern "C" void emulated_switch(void **from, void *to);
asm(".text\n.globl emulated_switch\nemulated_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static const size_t STACK = 64 << 10;

enum State { READY, AT_BARRIER, AT_WARP_BARRIER, ENDED };

struct Fibre {
    void *stack_pointer;
    State state;
    Place place;
    size_t barriers;   // passed so far
};

struct Block {
    void (*kernel)(void *);
    void *parameters;
    std::vector<Fibre> fibres;
    void *scheduler;   // its stack pointer
    size_t running;
};

static thread_local Block block;
static thread_local char *stacks;   // of the most threads that a block may have

extern "C" Place *emulated_place() { return &block.fibres[block.running].place; }

static void leave(State state) {
    Fibre &self = block.fibres[block.running];
    self.state = state;
    emulated_switch(&self.stack_pointer, block.scheduler);
}

extern "C" void emulated_barrier() {
    // A fault on purpose, for the proof that tests see it.
    static const bool skip = getenv("TRIFUSE_EMULATOR_SKIP_BARRIERS") != nullptr;
    if (skip && block.fibres[block.running].barriers++ % 3 == 1) {
        return;
    }
    leave(AT_BARRIER);
}
extern "C" void emulated_warp_barrier() { leave(AT_WARP_BARRIER); }

static void start() {
    block.kernel(block.parameters);
    leave(ENDED);
}

// Lets every thread of `from..to` that waits in `state` go on, if all that have not ended wait so.
static bool release(size_t from, size_t to, State state) {
    size_t waiting = 0, ended = 0;
    for (size_t i = from; i < to; i++) {
        waiting += block.fibres[i].state == state;
        ended += block.fibres[i].state == ENDED;
    }
    if (!waiting || waiting + ended < to - from) {
        return false;
    }
    for (size_t i = from; i < to; i++) {
        if (block.fibres[i].state == state) {
            block.fibres[i].state = READY;
        }
    }
    return true;
}

extern "C" void run_block(void (*kernel)(void *), void *parameters, Index3 index, Index3 grid, Index3 threads, size_t shared_bytes) {
    size_t count = size_t(threads.x) * threads.y * threads.z;
    if (!stacks) {
        stacks = (char *)mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    // NaN, so that a read before the first write shows.
    static thread_local std::vector<char> shared;
    shared.assign(shared_bytes + 1024, char(0xff));
    char *aligned = (char *)((uintptr_t(shared.data()) + 1023) / 1024 * 1024);

    block.kernel = kernel, block.parameters = parameters;
    block.fibres.resize(count);
    for (size_t i = 0; i < count; i++) {
        unsigned at = unsigned(i);
        Index3 thread = {at % threads.x, at / threads.x % threads.y, at / threads.x / threads.y};
        void **top = (void **)(stacks + (i + 1) * STACK - 16);
        *--top = nullptr;           // what `start` would return to
        *--top = (void *)start;     // what the switch returns to
        block.fibres[i] = {top - 6, READY, {thread, index, threads, grid, aligned}, 0};
    }
    bool backwards = getenv("TRIFUSE_EMULATOR_BACKWARDS") != nullptr;
    for (size_t phase = 0;; phase++) {
        bool reverse = (phase % 2 == 1) != backwards;
        for (size_t n = 0; n < count; n++) {
            size_t i = reverse ? count - 1 - n : n;
            if (block.fibres[i].state == READY) {
                block.running = i;
                emulated_switch(&block.scheduler, block.fibres[i].stack_pointer);
            }
        }
        bool moved = false;
        for (size_t warp = 0; warp < count; warp += 32) {
            moved |= release(warp, warp + 32 < count ? warp + 32 : count, AT_WARP_BARRIER);
        }
        moved |= release(0, count, AT_BARRIER);
        if (!moved) {
            break;
        }
    }
    for (const Fibre &fibre : block.fibres) {
        if (fibre.state != ENDED) {
            fprintf(stderr, "emulated driver: threads of a block wait at different barriers\n");
            abort();
        }
    }
}
