// A grid as it runs: its blocks in clusters, threads as fibres of one processor thread, and what is under way between them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "interface.h"

struct Block;
struct Cluster;

enum class State { READY, AT_WARP, AT_BLOCK, AT_NAMED, AT_CLUSTER, AT_GROUP, AT_MBARRIER, AT_COUNT, AT_GRID, ENDED };

// Of one warp, the lanes that live, wait at its barrier, and can go on.
struct Warp {
    unsigned first, count, live, waiting, ready, turns;
    EmulatedRoom room;
};

// A copy of Ampere's that is under way.
struct Copy {
    unsigned to, bytes, size, group;
    const void *from;
};

struct Fibre {
    EmulatedPlace place;
    void *stack_pointer;
    State state;
    Block *block;
    Warp *warp;
    uintptr_t awaited;     // address or number of what it waits for
    unsigned value;        // of it
    bool arrived;          // at the cluster's barrier, in phase `phase`
    unsigned phase;
    std::vector<Copy> copies;
    unsigned copy_groups;
    unsigned products, product_groups;   // issued and committed so far
    unsigned barriers, waits;            // passed so far
};

struct Products;   // of a warp group: wgmma.cpp

struct Group {
    unsigned live, waiting;
    std::shared_ptr<Products> products;
};

struct Named {
    unsigned arrived, threads;
};

// Dynamic shared memory comes first, then a zone that nobody may write to, then what kernels declare one by one.
struct Block {
    static constexpr unsigned ZONE = 1024, STATIC = 48 << 10;
    Cluster *cluster;
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::vector<Group> groups;
    std::vector<Fibre *> at_mbarriers;
    Named named[16];
    unsigned live, waiting;        // threads; those at __syncthreads
    bool lets_next;                // the next grid begin
    unsigned dynamic, whole;       // bytes of shared memory
    char *shared;
    std::vector<char> memory;
    char *stacks = nullptr;
};

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    unsigned live, arrived, phase;
    bool has(unsigned rank) const { return rank < blocks.size(); }
};

// A copy that delivers at the latest moment: when no thread can go on.
struct Async {
    Cluster *cluster;
    unsigned blocks, to, barrier;   // a bit for each block that gets it; places in each
    unsigned swizzle;               // mask of the bits of an address that move
    std::vector<char> seen;         // what was to be copied when it was asked for
    std::vector<char> map;          // of a box
    int place[5];
    const char *from;               // of a run of bytes; null of a value
};

struct Launch {
    void (*run)(void *);
    void *parameters;
    EmulatedIndex grid, threads;
    unsigned shared_bytes, cluster, at_once;
    bool early;   // it may begin before the one before has ended
};

struct Grid {
    Launch launch;
    Grid *before;           // in the stream, where that has not ended
    bool waited;            // some thread has come to its wait for it
    unsigned next, letting; // cluster to begin; blocks that let the next grid begin, or have ended
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<std::unique_ptr<Async>> pending;
    std::vector<Fibre *> counting;
    struct Static {
        const void *key;
        unsigned offset;
    };
    std::vector<Static> statics;
    unsigned static_bytes, passes;
    void *scheduler;
    Fibre *running;
    std::string failure;
};

// The grid after `before`, where that may not have ended. It is at its beginning.
std::unique_ptr<Grid> make_grid(const Launch &launch, Grid *before);
// Runs it until all of its blocks let the next one begin, or to its end, which is that of all before it. Gives what was wrong, or nothing.
std::string run_until_next(Grid &grid);
std::string run_to_end(Grid &grid);

Grid &own_grid();
Fibre &self();
// The running thread waits in that state until somebody wakes it.
void leave(State state);
void wake(Fibre &fibre);
// The thread ends: barriers that wait only for it open.
void leave_barriers(Fibre &fibre);
// Threads that wait for a count that has been reached. Whether there were any.
bool wake_counting();

// Whether a fault was asked for, on purpose, as a proof that tests see it: `TRIFUSE_EMULATOR_SKIP_<what>`.
bool setting(const char *name);
// Every third time of those that count here, where waits are to be skipped.
bool skips_wait(Fibre &fibre);

Block &block_at(Cluster &cluster, unsigned rank);
Block &block_of(unsigned address);
inline unsigned within(unsigned address) { return address & 0xfffff; }
// A place of that block's shared memory.
char *shared_at(Block &block, unsigned offset, unsigned bytes, unsigned alignment);
// Bytes of a copy have come to a block.
void mbarrier_complete(Block &block, unsigned barrier, unsigned bytes);
std::string mbarrier_text(uint64_t word);
// Delivers one copy. False where none is under way.
bool deliver_one();
bool under_way_to(const Cluster &cluster);
// Whether products of the thread's warp group wait for it.
bool has_products(const Fibre &fibre);
// Whether device or page-locked memory is allocated there.
bool emulated_allocated(uint64_t address, size_t bytes);
void forget_allocations();
