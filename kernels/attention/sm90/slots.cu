// Attention on Hopper over the listed blocks alone, of sequences that lie at slots.

#include "attention/sm90/schedule.cuh"
#include "attention/slot_params.cuh"
#include "attention/sm90/pipeline.cuh"

// Tiles as `Tiles` takes them: Q, K and V of a sequence are at its slot, its lists and its output at its own number.
struct Slots : Tiles {
    const i32 *slots;

    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const {
        Block block = block_of<LISTED>(p, work);
        // The lists are found; what is brought from now on is the slot's.
        block.batch = u32(slots[block.batch]);
        return block;
    }
    __device__ __forceinline__ void put(const Stage &stage, const Block &brought, u32 work, Rows &rows, Output &o, u32 group, char *room) const {
        Block block = brought;
        block.batch = place_of(p.common, work).batch;
        Tiles::put(stage, block, work, rows, o, group, room);
    }
};

#ifdef COMPILE_attention_sm90_slots
// Only the listed blocks of 128 queries and keys.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_slots(const __grid_constant__ SlotParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_128>(Slots{{p.tiles}, p.slots}, tiles);
}
#endif
