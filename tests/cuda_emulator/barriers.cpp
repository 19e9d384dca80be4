// Where threads wait for each other: warps, blocks, named barriers, clusters, and counters in device memory.

#include "grid.h"

template <class Which> static void wake_all(Block &block, State state, Which which) {
    for (Fibre &fibre : block.fibres) {
        if (fibre.state == state && which(fibre)) {
            wake(fibre);
        }
    }
}

static bool every(const Fibre &) { return true; }

static void open_warp(Fibre &fibre) {
    Warp &warp = *fibre.warp;
    warp.waiting = 0;
    for (unsigned i = 0; i < warp.count; i++) {
        Fibre &lane = fibre.block->fibres[warp.first + i];
        if (lane.state == State::AT_WARP) {
            wake(lane);
        }
    }
}

static void open_block(Block &block) {
    block.waiting = 0;
    wake_all(block, State::AT_BLOCK, every);
}

static void open_cluster(Cluster &cluster) {
    cluster.arrived = 0;
    cluster.phase++;
    for (auto &block : cluster.blocks) {
        wake_all(*block, State::AT_CLUSTER, every);
    }
}

extern "C" bool emulated_warp_last() { return self().warp->waiting + 1 == self().warp->live; }

extern "C" void emulated_warp_barrier() {
    Fibre &fibre = self();
    if (++fibre.warp->waiting == fibre.warp->live) {
        open_warp(fibre);
    } else {
        leave(State::AT_WARP);
    }
}

extern "C" void emulated_barrier() {
    // A fault on purpose, for the proof that tests see it.
    static const bool skip = setting("TRIFUSE_EMULATOR_SKIP_BARRIERS");
    Fibre &fibre = self();
    if (skip && fibre.barriers++ % 3 == 1) {
        return;
    }
    if (++fibre.block->waiting == fibre.block->live) {
        open_block(*fibre.block);
    } else {
        leave(State::AT_BLOCK);
    }
}

extern "C" void emulated_named_barrier(unsigned number, unsigned threads, bool waits) {
    Fibre &fibre = self();
    if (number == 0 || number > 15 || threads % 32 || threads == 0 || threads > fibre.block->fibres.size()) {
        emulated_fail("named barrier %u of %u threads: expected 1 to 15, and whole warps of the block", number, threads);
    }
    Named &barrier = fibre.block->named[number];
    if (barrier.arrived > 0 && barrier.threads != threads) {
        emulated_fail("named barrier %u of %u threads, for others of %u", number, threads, barrier.threads);
    }
    barrier.threads = threads;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        wake_all(*fibre.block, State::AT_NAMED, [&](const Fibre &other) { return other.awaited == number; });
    } else if (waits) {
        fibre.awaited = number;
        leave(State::AT_NAMED);
    }
}

extern "C" void emulated_cluster_arrive() {
    Fibre &fibre = self();
    Cluster &cluster = *fibre.block->cluster;
    if (fibre.arrived) {
        emulated_fail("it arrives at the cluster's barrier again before it has waited");
    }
    fibre.arrived = true;
    fibre.phase = cluster.phase;
    if (++cluster.arrived == cluster.live) {
        open_cluster(cluster);
    }
}

extern "C" void emulated_cluster_wait() {
    Fibre &fibre = self();
    if (!fibre.arrived) {
        emulated_fail("it waits at the cluster's barrier without having arrived");
    }
    fibre.arrived = false;
    if (fibre.phase == fibre.block->cluster->phase) {
        leave(State::AT_CLUSTER);
    }
}

void leave_barriers(Fibre &fibre) {
    Block &block = *fibre.block;
    Cluster &cluster = *block.cluster;
    Warp &warp = *fibre.warp;
    if (fibre.arrived && fibre.phase == cluster.phase) {
        cluster.arrived--;
    }
    block.groups[(&fibre - block.fibres.data()) / 128].live--;
    if (--warp.live > 0 && warp.waiting == warp.live) {
        open_warp(fibre);
    }
    if (--block.live > 0 && block.waiting == block.live) {
        open_block(block);
    }
    if (--cluster.live > 0 && cluster.arrived == cluster.live) {
        open_cluster(cluster);
    }
}

extern "C" void emulated_wait_for_count(const unsigned *counter, unsigned count) {
    Fibre &fibre = self();
    if (*(const volatile unsigned *)counter < count) {
        fibre.awaited = uintptr_t(counter);
        fibre.value = count;
        own_grid().counting.push_back(&fibre);
        leave(State::AT_COUNT);
    }
}

bool wake_counting() {
    bool any = false;
    auto &counting = own_grid().counting;
    for (size_t i = 0; i < counting.size();) {
        Fibre &fibre = *counting[i];
        if (*(const volatile unsigned *)fibre.awaited >= fibre.value) {
            wake(fibre);
            counting.erase(counting.begin() + i);
            any = true;
        } else {
            i++;
        }
    }
    return any;
}
