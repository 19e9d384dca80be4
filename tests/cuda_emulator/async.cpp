// Copies that count at an mbarrier: TMA and stores to other blocks. They deliver at the latest moment, when no thread can go
// on. Until then the destination holds no numbers, and what changes at the source meanwhile arrives as none.

#include "grid.h"
#include "tensor_map.h"

#include <algorithm>
#include <cstring>

// 16 bytes of a copy lie at a place that depends on the bits above those inside a pattern (see Swizzle in ptx/wgmma.cuh).
static unsigned swizzled(unsigned address, unsigned mask) { return address ^ (address >> 7 & mask) << 4; }

template <class Each> static void each_block(const Async &copy, Each each) {
    for (unsigned rank = 0; rank < copy.cluster->blocks.size(); rank++) {
        if (copy.blocks >> rank & 1) {
            each(block_at(*copy.cluster, rank));
        }
    }
}

static void ask(std::unique_ptr<Async> copy) {
    unsigned bytes = unsigned(copy->seen.size());
    if (copy->blocks >> copy->cluster->blocks.size()) {
        emulated_fail("a copy to blocks %#x of a cluster of %zu", copy->blocks, copy->cluster->blocks.size());
    }
    each_block(*copy, [&](Block &block) {
        shared_at(block, copy->barrier, 8, 8);
        memset(shared_at(block, copy->to, bytes, 16), 0xff, bytes);
    });
    own_grid().pending.push_back(std::move(copy));
    static const bool early = setting("TRIFUSE_EMULATOR_EARLY");
    if (early) {
        deliver_one();
    }
}

static std::unique_ptr<Async> copy_to(unsigned to, unsigned barrier, unsigned blocks) {
    std::unique_ptr<Async> copy(new Async());
    copy->cluster = self().block->cluster;
    copy->blocks = blocks ? blocks : 1u << self().place.rank;
    copy->to = to, copy->barrier = barrier;
    return copy;
}

static TensorMap described(const void *map, unsigned shared, unsigned axes, const int *place) {
    TensorMap tensor;
    if (!TensorMap::read(map, tensor) || tensor.axes != axes) {
        emulated_fail("TMA of %u axes by something else than a map of as many", axes);
    }
    if (shared % 128) {
        emulated_fail("TMA at %#x of shared memory, no multiple of 128", shared);
    }
    if (place[0] * i64(tensor.element) % 16) {
        emulated_fail("TMA at place %d of the contiguous axis, not on 16 bytes: an illegal instruction", place[0]);
    }
    return tensor;
}

extern "C" void emulated_tensor_load(unsigned to, const void *map, unsigned barrier, unsigned axes, const int *place, unsigned blocks) {
    TensorMap tensor = described(map, to, axes, place);
    auto copy = copy_to(to, barrier, blocks);
    copy->swizzle = tensor.swizzle;
    std::copy(place, place + axes, copy->place);
    copy->map.assign((const char *)map, (const char *)map + sizeof(TensorMap));
    copy->seen.resize(tensor.box_bytes());
    if (!tensor.read_box(copy->place, copy->seen.data(), true)) {
        emulated_fail("TMA reads memory that is not allocated");
    }
    ask(std::move(copy));
}

// At once: what a thread writes over before its store has been read goes unseen.
extern "C" void emulated_tensor_store(const void *map, unsigned from, unsigned axes, const int *place) {
    TensorMap tensor = described(map, from, axes, place);
    Block &block = *self().block;
    std::vector<char> box(tensor.box_bytes());
    shared_at(block, from, unsigned(box.size()), 16);
    for (unsigned i = 0; i < box.size(); i += 16) {
        memcpy(&box[i], block.shared + swizzled(from + i, tensor.swizzle), 16);
    }
    if (!tensor.write_box(place, box.data())) {
        emulated_fail("TMA writes memory that is not allocated");
    }
}

extern "C" void emulated_bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    if (to % 16 || uintptr_t(from) % 16 || bytes % 16 || bytes == 0) {
        emulated_fail("a bulk copy of %u bytes from %p to %#x: expected multiples of 16", bytes, from, to);
    }
    if (!emulated_allocated(uintptr_t(from), bytes)) {
        emulated_fail("a bulk copy reads %u bytes at %p that are not allocated", bytes, from);
    }
    auto copy = copy_to(to, barrier, 0);
    copy->from = (const char *)from;
    copy->seen.assign(copy->from, copy->from + bytes);
    ask(std::move(copy));
}

extern "C" void emulated_cluster_store(unsigned to, const void *value, unsigned barrier) {
    Block &block = block_of(to);
    if (&block != &block_of(barrier)) {
        emulated_fail("st.async to one block, counted in another");
    }
    auto copy = copy_to(within(to), within(barrier), 1u << block.fibres[0].place.rank);
    copy->seen.assign((const char *)value, (const char *)value + 16);
    ask(std::move(copy));
}

// Those asked for first, or last, come first: hardware promises no order.
bool deliver_one() {
    auto &pending = own_grid().pending;
    static const bool newest = setting("TRIFUSE_EMULATOR_BACKWARDS");
    if (pending.empty()) {
        return false;
    }
    auto which = newest ? pending.end() - 1 : pending.begin();
    std::unique_ptr<Async> copy = std::move(*which);
    pending.erase(which);
    std::vector<char> now = copy->seen;
    if (!copy->map.empty()) {
        TensorMap tensor;
        TensorMap::read(copy->map.data(), tensor);
        tensor.read_box(copy->place, now.data(), false);
    } else if (copy->from) {
        memcpy(now.data(), copy->from, now.size());
    }
    for (size_t i = 0; i < now.size(); i += 16) {
        if (memcmp(&now[i], &copy->seen[i], 16) != 0) {
            memset(&now[i], 0xff, 16);
        }
    }
    each_block(*copy, [&](Block &block) {
        for (unsigned i = 0; i < now.size(); i += 16) {
            memcpy(block.shared + swizzled(copy->to + i, copy->swizzle), &now[i], 16);
        }
        mbarrier_complete(block, copy->barrier, unsigned(now.size()));
    });
    return true;
}

bool under_way_to(const Cluster &cluster) {
    const auto &pending = own_grid().pending;
    return std::any_of(pending.begin(), pending.end(), [&](const auto &copy) { return copy->cluster == &cluster; });
}
