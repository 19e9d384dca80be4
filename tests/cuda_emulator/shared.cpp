// Shared memory: addresses in it, in a block's own and in its cluster's, and the copies of Ampere into it.

#include "grid.h"

#include <cstring>

// An address in the cluster has one more than the block's rank above the bits of the place.
static const unsigned RANK_BITS = 20;

extern "C" unsigned emulated_remote(unsigned address, unsigned rank) {
    if (rank >= self().place.cluster) {
        emulated_fail("an address in block %u of a cluster of %u", rank, self().place.cluster);
    }
    return within(address) | (rank + 1) << RANK_BITS;
}

Block &block_at(Cluster &cluster, unsigned rank) {
    if (rank >= cluster.blocks.size()) {
        emulated_fail("shared memory of block %u of a cluster of %zu", rank, cluster.blocks.size());
    }
    if (cluster.blocks[rank]->live == 0) {
        emulated_fail("shared memory of block %u of the cluster, which has ended", rank);
    }
    return *cluster.blocks[rank];
}

Block &block_of(unsigned address) {
    Block &own = *self().block;
    return address >> RANK_BITS ? block_at(*own.cluster, (address >> RANK_BITS) - 1) : own;
}

char *shared_at(Block &block, unsigned offset, unsigned bytes, unsigned alignment) {
    if (offset % alignment) {
        emulated_fail("address %#x of shared memory is no multiple of %u", offset, alignment);
    }
    bool dynamic = offset + bytes <= block.dynamic, fixed = offset >= block.dynamic + Block::ZONE && offset + bytes <= block.whole;
    if (!dynamic && !fixed) {
        emulated_fail("%u bytes at %#x of shared memory, of which there are %#x", bytes, offset, block.dynamic);
    }
    return block.shared + offset;
}

extern "C" char *emulated_shared(unsigned address, unsigned bytes) { return shared_at(block_of(address), within(address), bytes, bytes); }

// The same place in every block of the launch, so that addresses of a cluster's blocks agree.
extern "C" void *emulated_static(const void *key, size_t bytes, size_t alignment) {
    Grid &grid = own_grid();
    Block &block = *self().block;
    for (const Grid::Static &known : grid.statics) {
        if (known.key == key) {
            return block.shared + known.offset;
        }
    }
    unsigned first = block.dynamic + Block::ZONE, offset = unsigned((first + grid.static_bytes + alignment - 1) / alignment * alignment);
    grid.static_bytes = unsigned(offset + bytes - first);
    if (grid.static_bytes > Block::STATIC) {
        emulated_fail("more than %u bytes of shared memory in variables", Block::STATIC);
    }
    grid.statics.push_back({key, offset});
    return block.shared + offset;
}

// What is to come is no number until it has been waited for, and the source is read no sooner.
extern "C" void emulated_copy(unsigned to, const void *from, unsigned bytes, unsigned size) {
    Fibre &fibre = self();
    char *at = shared_at(*fibre.block, to, size, size);
    if (bytes > size || (bytes && uintptr_t(from) % size)) {
        emulated_fail("cp.async of %u bytes of %u from %p", bytes, size, from);
    }
    memset(at, 0xff, size);
    fibre.copies.push_back({to, bytes, size, fibre.copy_groups, from});
}

extern "C" void emulated_copy_commit() { self().copy_groups++; }

extern "C" void emulated_copy_wait(unsigned pending) {
    Fibre &fibre = self();
    if (skips_wait(fibre)) {
        return;
    }
    size_t done = 0;
    for (; done < fibre.copies.size() && fibre.copies[done].group + pending < fibre.copy_groups; done++) {
        const Copy &copy = fibre.copies[done];
        char *at = fibre.block->shared + copy.to;
        memcpy(at, copy.from, copy.bytes);
        memset(at + copy.bytes, 0, copy.size - copy.bytes);
    }
    fibre.copies.erase(fibre.copies.begin(), fibre.copies.begin() + done);
}
