// Fibres: switching from one to another, the order in which they run, and what a grid does when none can.

#include "grid.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <ucontext.h>

#if !defined(__x86_64__)
#error "the emulated GPU switches fibres in x86-64 assembly"
#endif

// Saves what the calling convention asks to keep, stores the stack pointer, goes on with another stack.
extern "C" void emulated_switch(void **from, void *to);
asm(".text\n.globl emulated_switch\nemulated_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

// Not a power of two: the tops of all stacks would fall into the same sets of the processor's cache.
static const size_t STACK = (64 << 10) + 21 * 64;
static const unsigned MOST_THREADS = 1024;

struct Failure {};

static thread_local Grid *current;
Grid &own_grid() { return *current; }

static thread_local Fibre *running;
// Blocks that have ended, for their stacks.
static thread_local std::vector<std::unique_ptr<Block>> spare;

extern "C" EmulatedPlace *emulated_place() { return &running->place; }
Fibre &self() { return *running; }

bool setting(const char *name) { return getenv(name) != nullptr; }

static bool backwards() {
    static const bool set = setting("TRIFUSE_EMULATOR_BACKWARDS");
    return set;
}

bool skips_wait(Fibre &fibre) {
    static const bool set = setting("TRIFUSE_EMULATOR_SKIP_WAITS");
    return set && fibre.waits++ % 3 == 0;
}

void leave(State state) {
    Fibre &fibre = *running;
    fibre.state = state;
    fibre.warp->ready--;
    emulated_switch(&fibre.stack_pointer, own_grid().scheduler);
}

void wake(Fibre &fibre) {
    fibre.state = State::READY;
    fibre.warp->ready++;
}

// The first fault counts. A thread's stack is left as it is: nobody goes on with it.
extern "C" void emulated_fail(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    Grid &grid = own_grid();
    std::string where;
    if (running) {
        const EmulatedPlace &at = running->place;
        where = "block (" + std::to_string(at.block.x) + ", " + std::to_string(at.block.y) + ", " + std::to_string(at.block.z) + "), thread " +
                std::to_string(at.thread.x) + ": ";
    }
    grid.failure = where + text;
    if (running) {
        void *nowhere;
        emulated_switch(&nowhere, grid.scheduler);
    }
    throw Failure();
}

// An address where nothing is fails the launch too: the thread goes on there, as if it had called it.
static thread_local void *touched;
static struct sigaction before;

static void fail_at_address() { emulated_fail("it reads or writes %p, where no memory is", touched); }

static void on_fault(int signal, siginfo_t *info, void *context) {
    if (!running) {
        // Not a kernel's: again, as if this were not here.
        sigaction(signal, &before, nullptr);
        return;
    }
    touched = info->si_addr;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    registers[REG_RSP] = (registers[REG_RSP] - 256) / 64 * 64 - 8;
    registers[REG_RIP] = greg_t(fail_at_address);
}

static void watch_faults() {
    static const bool watching = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        return sigaction(SIGSEGV, &action, &before) == 0;
    }();
    (void)watching;
}

static void start() {
    Grid &grid = own_grid();
    grid.launch.run(grid.launch.parameters);
    Fibre &fibre = *running;
    if (has_products(fibre)) {
        emulated_fail("it ends while products of its warp group (wgmma) are under way");
    }
    leave_barriers(fibre);
    leave(State::ENDED);
}

static void begin_block(Grid &grid, Block &block, Cluster &cluster, unsigned number, unsigned rank) {
    const Launch &launch = grid.launch;
    unsigned count = launch.threads.x * launch.threads.y * launch.threads.z;
    if (!block.stacks) {
        block.stacks = (char *)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    block.cluster = &cluster;
    block.dynamic = (launch.shared_bytes + 15) / 16 * 16;
    block.whole = block.dynamic + Block::ZONE + Block::STATIC;
    // NaN, so that a read before the first write shows.
    block.memory.assign(block.whole + 1024, char(0xff));
    block.shared = (char *)((uintptr_t(block.memory.data()) + 1023) / 1024 * 1024);
    block.live = count, block.waiting = 0, block.lets_next = false;
    block.at_mbarriers.clear();
    memset(block.named, 0, sizeof block.named);
    block.warps.resize((count + 31) / 32);
    for (unsigned i = 0; i < block.warps.size(); i++) {
        Warp &warp = block.warps[i];
        warp.first = i * 32, warp.count = count - i * 32 < 32 ? count - i * 32 : 32;
        warp.live = warp.ready = warp.count, warp.waiting = warp.turns = 0;
    }
    block.groups.assign((count + 127) / 128, {});
    for (unsigned i = 0; i < block.groups.size(); i++) {
        block.groups[i].live = count - i * 128 < 128 ? count - i * 128 : 128;
    }
    EmulatedIndex blocks = launch.grid, index = {number % blocks.x, number / blocks.x % blocks.y, number / blocks.x / blocks.y};
    block.fibres.resize(count);
    for (unsigned i = 0; i < count; i++) {
        EmulatedIndex thread = {i % launch.threads.x, i / launch.threads.x % launch.threads.y, i / launch.threads.x / launch.threads.y};
        void **top = (void **)((uintptr_t(block.stacks) + (i + 1) * STACK) / 64 * 64);
        *--top = nullptr;           // keeps the stack as the calling convention wants it
        *--top = nullptr;           // what `start` would return to
        *--top = nullptr;
        *--top = (void *)start;     // what the switch returns to
        Fibre &fibre = block.fibres[i];
        fibre.place = {thread, index, launch.threads, blocks, rank, launch.cluster, block.shared, &block.warps[i / 32].room, 0};
        fibre.stack_pointer = top - 6;
        fibre.state = State::READY;
        fibre.block = &block, fibre.warp = &block.warps[i / 32];
        fibre.arrived = false;
        fibre.copies.clear();
        fibre.copy_groups = fibre.products = fibre.product_groups = fibre.barriers = fibre.waits = 0;
    }
}

// The blocks of a cluster lie beside each other along x.
static void begin_cluster(Grid &grid, unsigned number) {
    std::unique_ptr<Cluster> cluster(new Cluster());
    unsigned across = grid.launch.grid.x / grid.launch.cluster, size = grid.launch.cluster;
    for (unsigned rank = 0; rank < size; rank++) {
        std::unique_ptr<Block> block;
        if (spare.empty()) {
            block.reset(new Block());
        } else {
            block = std::move(spare.back());
            spare.pop_back();
        }
        begin_block(grid, *block, *cluster, number / across * grid.launch.grid.x + number % across * size + rank, rank);
        cluster->live += block->live;
        cluster->blocks.push_back(std::move(block));
    }
    grid.clusters.push_back(std::move(cluster));
}

static void let_next(Grid &grid, Block &block) {
    grid.letting += !block.lets_next;
    block.lets_next = true;
}

extern "C" void emulated_grid_launch_next() { let_next(own_grid(), *self().block); }

extern "C" void emulated_grid_wait() {
    // A fault on purpose, for the proof that tests see it.
    static const bool skip = setting("TRIFUSE_EMULATOR_SKIP_GRID_WAITS");
    own_grid().waited = true;
    if (own_grid().before && !skip) {
        leave(State::AT_GRID);
    }
}

static void end_block(Grid &grid, std::unique_ptr<Block> block) {
    let_next(grid, *block);
    block->groups.clear();
    for (unsigned i = 0; i < Block::ZONE; i++) {
        if (block->shared[block->dynamic + i] != char(0xff) && grid.failure.empty()) {
            grid.failure = "a kernel writes past the end of its dynamic shared memory, " + std::to_string(block->dynamic + i) + " of " +
                           std::to_string(block->dynamic) + " bytes";
        }
    }
    spare.push_back(std::move(block));
}

// A warp goes on until none of its lanes can. First to last, then last to first, so that a missing __syncwarp shows.
static void run_warp(Grid &grid, Block &block, Warp &warp) {
    while (warp.ready) {
        bool reverse = (warp.turns++ % 2 == 1) != backwards();
        for (unsigned n = 0; n < warp.count; n++) {
            Fibre &fibre = block.fibres[warp.first + (reverse ? warp.count - 1 - n : n)];
            if (fibre.state == State::READY) {
                running = &fibre;
                emulated_switch(&grid.scheduler, fibre.stack_pointer);
                running = nullptr;
                if (!grid.failure.empty()) {
                    throw Failure();
                }
            }
        }
    }
}

// Every warp that can go on, in one order and then in the other. Whether there was one.
static bool run_all(Grid &grid) {
    bool ran = false, reverse = (grid.passes++ % 2 == 1) != backwards();
    for (size_t n = 0; n < grid.clusters.size(); n++) {
        Cluster &cluster = *grid.clusters[reverse ? grid.clusters.size() - 1 - n : n];
        for (size_t m = 0; m < cluster.blocks.size(); m++) {
            Block &block = *cluster.blocks[reverse ? cluster.blocks.size() - 1 - m : m];
            for (size_t i = 0; i < block.warps.size(); i++) {
                Warp &warp = block.warps[reverse ? block.warps.size() - 1 - i : i];
                if (warp.ready) {
                    run_warp(grid, block, warp);
                    ran = true;
                }
            }
        }
    }
    return ran;
}

// What all threads wait for that have not ended.
static std::string waits(const Grid &grid) {
    std::map<std::string, unsigned> counts;
    for (const auto &cluster : grid.clusters) {
        for (const auto &block : cluster->blocks) {
            for (const Fibre &fibre : block->fibres) {
                char text[200];
                std::string what;
                switch (fibre.state) {
                case State::AT_WARP: what = "for their warp"; break;
                case State::AT_BLOCK: what = "at __syncthreads"; break;
                case State::AT_NAMED: what = "at named barrier " + std::to_string(fibre.awaited); break;
                case State::AT_CLUSTER: what = "at the cluster's barrier"; break;
                case State::AT_GROUP: what = "for their warp group's products"; break;
                case State::AT_GRID: what = "for the grid before"; break;
                case State::AT_COUNT: what = "for a count of " + std::to_string(fibre.value) + " in device memory"; break;
                case State::AT_MBARRIER:
                    snprintf(text, sizeof text, "for the phase of parity %u of the mbarrier at %#lx (%s)", fibre.value, fibre.awaited,
                             mbarrier_text(*(uint64_t *)(block->shared + fibre.awaited)).c_str());
                    what = text;
                    break;
                default: continue;
                }
                counts["of block " + std::to_string(fibre.place.block.x) + " warp " + std::to_string(fibre.place.thread.x / 32) + " " + what]++;
            }
        }
    }
    std::string text = "nothing can go on: ";
    unsigned shown = 0;
    for (const auto &[what, count] : counts) {
        text += (shown ? "; " : "") + std::to_string(count) + " threads wait, " + what;
        if (++shown == 24) {
            return text + "; and " + std::to_string(counts.size() - shown) + " more";
        }
    }
    return text;
}

static void retire_clusters(Grid &grid) {
    for (size_t i = 0; i < grid.clusters.size();) {
        Cluster &cluster = *grid.clusters[i];
        if (cluster.live > 0) {
            i++;
            continue;
        }
        if (under_way_to(cluster)) {
            emulated_fail("a block ends while copies to its shared memory are under way");
        }
        for (auto &block : cluster.blocks) {
            end_block(grid, std::move(block));
        }
        grid.clusters.erase(grid.clusters.begin() + i);
    }
}

std::unique_ptr<Grid> make_grid(const Launch &launch, Grid *before) {
    std::unique_ptr<Grid> grid(new Grid());
    grid->launch = launch;
    grid->before = before;
    return grid;
}

// The grid before ends, at the latest moment, and those that wait for it go on. Whether there were any.
static bool end_before(Grid &grid) {
    std::string wrong = grid.before ? run_to_end(*grid.before) : "";
    grid.before = nullptr;
    if (!wrong.empty()) {
        grid.failure = wrong;
        throw Failure();
    }
    bool any = false;
    for (auto &cluster : grid.clusters) {
        for (auto &block : cluster->blocks) {
            for (Fibre &fibre : block->fibres) {
                if (fibre.state == State::AT_GRID) {
                    wake(fibre);
                    any = true;
                }
            }
        }
    }
    return any;
}

static std::string run(Grid &grid, bool to_end) {
    Grid *other = current;
    current = &grid;
    forget_allocations();
    watch_faults();
    const Launch &launch = grid.launch;
    unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z, all = blocks / launch.cluster;
    unsigned at_once = launch.at_once / launch.cluster ? launch.at_once / launch.cluster : 1;
    try {
        while ((to_end || grid.letting < blocks) && (grid.next < all || !grid.clusters.empty())) {
            while (grid.clusters.size() < at_once && grid.next < all) {
                begin_cluster(grid, grid.next++);
            }
            bool ran = run_all(grid);
            size_t before = grid.clusters.size();
            retire_clusters(grid);
            if (!ran && grid.clusters.size() == before && !wake_counting() && !deliver_one() && !end_before(grid)) {
                emulated_fail("%s", waits(grid).c_str());
            }
        }
        if (to_end && grid.before && !grid.waited) {
            emulated_fail("it has begun early and ends without a wait: the next launch takes its end for the end of all before it");
        }
        if (to_end) {
            end_before(grid);
        }
    } catch (Failure &) {
        for (auto &cluster : grid.clusters) {
            for (auto &block : cluster->blocks) {
                if (block) {
                    end_block(grid, std::move(block));
                }
            }
        }
        grid.clusters.clear();
    }
    running = nullptr;
    current = other;
    return grid.failure;
}

std::string run_until_next(Grid &grid) { return run(grid, false); }

std::string run_to_end(Grid &grid) { return run(grid, true); }
