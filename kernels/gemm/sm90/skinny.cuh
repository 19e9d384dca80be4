// X·Wᵀ for few rows of X on Hopper, where the time goes into reading W: it streams through shared memory once, at the speed of
// memory. W's rows are the 64 of a wgmma and the tokens its columns, so that few tokens cost few products.
//
// The host cuts W into tiles of `tile_rows` rows (at most 128, even), so that the blocks are evenly loaded. The blocks of a cluster
// either take neighbouring tiles and share what they read of X, each bringing a part of it to all; or, where the tiles would be
// narrow (BY_BLOCKS), all take one tile of at most 64 rows, each a part of K, and add up through each other's shared memory, always in the
// same order. Between the two (BY_GROUPS) blocks have a tile of at most 64 rows each, and their two warpgroups half of every stage's K.
// Results are bitwise the same from run to run.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"
#include "gemm/outputs.cuh"
#include "gemm/y_element.cuh"
#include "gemm/sm90/skinny_ring.cuh"

// What a product's epilogue adds to its sums besides: nothing. Adapters have their own (gemm/sm90/skinny_lora.cuh).
struct NoSums {
    static constexpr bool ADDS = false;
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void end() {}
    __device__ __forceinline__ void of(u32, u32, f32 (&)[4]) const {}
};

// Of a thread's two outputs of a warp's 16 rows of W from `first` on, before `last`. Asked for early: a load behind stores waits for
// memory once for every eight tokens.
__device__ __forceinline__ void skinny_bias(const GemmParams &p, u64 first, u64 last, f32 (&bias)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u64 output = first + half * 8 + threadIdx.x % 32 / 4;
        bias[half] = p.bias && output < last ? widen(p.bias[output]) : 0.0f;
    }
}

// Where the outputs of a warp's 16 rows of W go, from `first` on and before `last`. Sums are four a thread for every eight tokens. Each of these goes
// over all of them by itself and without a branch between them: one eight's activations wait for special functions beside the next one's.
struct SkinnyOutputs {
    const GemmParams &p;
    u64 first, last;

    // From sums of the up (or only) weight and of the gate to outputs.
    template <bool GATED, u32 FORM> __device__ __forceinline__ void activate(f32 (&up)[4], const f32 (&gate)[4], const f32 (&bias)[2]) const {
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            f32 sum = up[e] + bias[e / 2];
            up[e] = GATED ? activate_form<FORM>(p, gate[e]) * sum : activate_form<FORM>(p, sum);
        }
    }

    // Adds what `from` has in their places, an element a place as Y has them.
    __device__ __forceinline__ void add(const element *from, u32 block, f32 (&sum)[4]) const {
        each(block, [&](u64 output, u32 token, u32 e) { sum[e] += widen(from[token * p.y_stride + output]); });
    }

    // work(output, token, e) for each of the four sums of an eight of tokens that has a place in Y.
    template <class Work> __device__ __forceinline__ void each(u32 block, Work work) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            u64 output = first + e / 2 * 8 + lane / 4;
            u32 token = block * 8 + lane % 4 * 2 + e % 2;
            if (output < last && token < p.rows) {
                work(output, token, e);
            }
        }
    }

    // For the eights of tokens whose numbers `block` gives. Two tokens of an output become two outputs of a token.
    template <bool WORDS, u32 COUNT, class Block> __device__ __forceinline__ void store(const f32 (&value)[COUNT][4], const Block &block) const {
        u32 high = threadIdx.x % 32 / 4, low = threadIdx.x % 4 * 2, tokens = high < p.rows ? u32(p.rows) - high : 0;
        element *to = p.y + high * p.y_stride + first + low;
        u64 eight = 8 * p.y_stride;
        i32 outputs = i32(last - first) - i32(low);
#pragma unroll
        for (u32 index = 0; index < COUNT; index++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 packed = transpose_8x8(narrow2<element>(value[index][half * 2], value[index][half * 2 + 1]));
                bool there = block(index) * 8 < tokens;
                element *own = to + block(index) * eight + half * 8;
                if (WORDS) {
                    if (there && i32(half * 8) < outputs) {
                        *(u32 *)own = packed;
                    }
                } else {
                    if (there && i32(half * 8) < outputs) {
                        own[0] = element{u16(packed)};
                    }
                    if (there && i32(half * 8 + 1) < outputs) {
                        own[1] = element{u16(packed >> 16)};
                    }
                }
            }
        }
    }

    template <bool GATED, u32 FORM, u32 COUNT, class Block>
    __device__ __forceinline__ void write(f32 (&up)[COUNT][4], const f32 (&gate)[COUNT][4], const f32 (&bias)[2], const Block &block) const {
        if (first >= last) {
            return;
        }
#pragma unroll
        for (u32 index = 0; index < COUNT; index++) {
            activate<GATED, FORM>(up[index], gate[index], bias);
        }
        if (p.residual) {
            // Another thread's wait has let X come, but this one reads here what launches before have written.
            grid_wait();
#pragma unroll
            for (u32 index = 0; index < COUNT; index++) {
                add(p.residual, block(index), up[index]);
            }
        }
        if constexpr (WIDE_Y) {
            // Where they are: eight outputs of a token, which a warp stores at once, are a sector of memory.
#pragma unroll
            for (u32 index = 0; index < COUNT; index++) {
                each(block(index), [&](u64 output, u32 token, u32 e) { ((y_element *)p.y)[token * p.y_stride + output] = up[index][e]; });
            }
        } else if (p.vector) {
            store<true>(up, block);
        } else {
            store<false>(up, block);
        }
    }
};

// Of both warpgroups that multiply: the block's tiles. Where K is split, the sums of its one tile are left in `sum`; otherwise the
// outputs are written.
template <bool GATED, u32 CUT, u32 FORM, class Sums = NoSums, class Share>
__device__ __forceinline__ void skinny_products(const GemmParams &p, Share tile_rows, SkinnyRing &ring, f32 (&sum)[GATED ? 2 : 1][TOKENS / 2],
                                                Sums sums = Sums()) {
    constexpr bool SPLIT = CUT != WHOLE;
    static_assert(SPLIT || (128 - SKINNY_ROWS) * LINE <= 2 * X_PART, "both warp groups read within the stage");
    SkinnyWork<GATED, CUT> work(p, tile_rows);
    u32 group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    // Where K is split, the warpgroups take the same rows, each half of every part's K.
    constexpr u32 FRAGMENTS = SPLIT ? 2 : 4;
    u32 first = SPLIT ? group * FRAGMENTS : 0;
    u32 inside = (SPLIT ? 0 : group * 64) + thread / 32 * 16;
    // The row that this thread names to ldmatrix. Rows past the tile's are what was there before: nobody asks for their sums.
    u32 row_inside = inside + lane % 16;
    u32 w[2][FRAGMENTS][4];
    auto release = [&](u32 which) {
        if (lane == 0) {
            mbarrier_arrive(&ring.empty_w[which]);
        }
        if (thread < SKINNY_CLUSTER) {
            mbarrier_arrive_remote_relaxed(&ring.empty_x[which], work.SPLIT ? work.rank : thread);
        }
    };
    auto load = [&](u32 part) {
        u32 rows = shared_address(ring.w(part)) + row_inside * LINE;
#pragma unroll
        for (u32 i = 0; i < FRAGMENTS; i++) {
            ldmatrix_x4(w[part][i], rows + (((first + i) * 2 + lane / 16) ^ row_inside % 8) * 16);
        }
    };
    auto multiply = [&](u32 part, bool more) {
        u64 x = wgmma_descriptor(shared_address(ring.x(GATED && !PAIRED ? 0 : part)), 16, 8 * LINE, SWIZZLE_128);
        wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < FRAGMENTS; i++) {
            // 16 elements are 32 bytes; addresses in descriptors count 16.
            wgmma_rs<element, TOKENS>(sum[GATED ? part : 0], w[part][i], x + (first + i) * 2, more || i > 0);
        }
        wgmma_commit();
    };
    work.each([&](u64 row) {
        f32 bias[2];
        // Sums of two weights leave no registers for it.
        if (!SPLIT && !GATED) {
            skinny_bias(p, row + inside, row + tile_rows < p.columns ? row + tile_rows : p.columns, bias);
        }
        if (work.begin < work.end) {
            mbarrier_wait(&ring.full[ring.stage], ring.phase);
        }
        load(0);
        for (u32 step = work.begin; step < work.end; step++) {
            // While a part is multiplied, the next one's rows go into registers: of W's operand from shared memory a wgmma waits for
            // every byte.
            multiply(0, step > work.begin);
            load(1);
            wgmma_wait<0>();
            multiply(1, !GATED || step > work.begin);
            u32 done = ring.stage;
            ring.advance();
            if (step + 1 < work.end) {
                mbarrier_wait(&ring.full[ring.stage], ring.phase);
            }
            load(0);
            wgmma_wait<0>();
            release(done);
        }
#pragma unroll
        for (u32 weight = 0; weight < (GATED ? 2 : 1); weight++) {
            wgmma_hold(sum[weight]);
        }
        if constexpr (!SPLIT) {
            u64 last = row + tile_rows < p.columns ? row + tile_rows : p.columns;
            if (GATED) {
                skinny_bias(p, row + inside, last, bias);
            }
            SkinnyOutputs outputs{p, row + inside, last};
            auto &up = reinterpret_cast<f32 (&)[TOKEN_BLOCKS][4]>(sum[0]);
            auto &gate = reinterpret_cast<f32 (&)[TOKEN_BLOCKS][4]>(sum[GATED ? 1 : 0]);
            if (p.adds) {
                grid_wait();
#pragma unroll
                for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
                    outputs.add(p.y, block, up[block]);
                }
            }
            sums.begin();
            if (Sums::ADDS && inside < tile_rows) {
#pragma unroll
                for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
                    f32 more[4];
                    sums.of(inside, block, more);
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        up[block][e] += more[e];
                    }
                }
            }
            outputs.template write<GATED, FORM>(up, gate, bias, [](u32 index) { return index; });
            sums.end();
        }
    });
}

// The end of a kernel, for all threads: where K was split, each block adds up its share of the tokens' sums and writes their
// outputs. `multiplies`: of the warpgroups whose sums these are.
template <u32 CUT, u32 FORM, class Sums = NoSums, class Share>
__device__ __forceinline__ void skinny_end(const GemmParams &p, Share tile_rows, SkinnyRing &ring, bool multiplies, const f32 (&sum)[TOKENS / 2],
                                           Sums sums = Sums()) {
    // Parts of K, and blocks of tokens that one warpgroup adds up.
    constexpr u32 PARTS = CUT == BY_BLOCKS ? 2 * SKINNY_CLUSTER : 2, BLOCKS = (TOKEN_BLOCKS + PARTS - 1) / PARTS;
    static_assert(2 * PARTS * BLOCKS * 2048 <= SKINNY_STAGES * SKINNY_STAGE, "the sums take the place of the stages");
    SkinnyWork<false, CUT> work(p, tile_rows);
    u64 row = work.row(), last = row + tile_rows < p.columns ? row + tile_rows : p.columns;
    f32 bias[2];
    if (CUT != WHOLE && multiplies) {
        skinny_bias(p, row + threadIdx.x % 128 / 32 * 16, last, bias);
    }
    // Nothing is under way to any block's stages any more, and nobody reads them.
    cluster_arrive_relaxed();
    cluster_wait();
    if constexpr (CUT != WHOLE) {
        bool empty = work.begin == work.end;
        u32 group = threadIdx.x / 128, thread = threadIdx.x % 128, own = (work.SPLIT ? work.rank * 2 : 0) + group;
        // The sums of one part of K for one block of tokens of a warpgroup.
        auto place = [&](u32 to, u32 from, u32 index) { return (f32 *)ring.tiles + ((to % 2 * PARTS + from) * BLOCKS + index) * 512 + thread * 4; };
        if (multiplies) {
#pragma unroll
            for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
                u32 to = block % PARTS;
                float4 four = {sum[block * 4], sum[block * 4 + 1], sum[block * 4 + 2], sum[block * 4 + 3]};
                cluster_write(cluster_address(shared_address(place(to, own, block / PARTS)), work.SPLIT ? to / 2 : work.rank), empty ? float4{0.0f, 0.0f, 0.0f, 0.0f} : four);
            }
        }
        cluster_arrive();
        // While sums are on their way.
        f32 more[BLOCKS][4] = {};
        if constexpr (Sums::ADDS) {
#pragma unroll
            for (u32 index = 0; index < BLOCKS; index++) {
                u32 block = index * PARTS + own;
                if (multiplies && block < TOKEN_BLOCKS && thread / 32 * 16 < tile_rows) {
                    sums.begin();
                    sums.of(thread / 32 * 16, block, more[index]);
                }
            }
            __syncwarp();
        }
        cluster_wait();
        if (multiplies) {
            SkinnyOutputs outputs{p, row + thread / 32 * 16, last};
            f32 four[BLOCKS][4] = {};
            auto block = [&](u32 index) { return index * PARTS + own; };
#pragma unroll
            for (u32 index = 0; index < BLOCKS; index++) {
                if (block(index) < TOKEN_BLOCKS) {
#pragma unroll
                    for (u32 from = 0; from < PARTS; from++) {
                        float4 part = *(const float4 *)place(own, from, index);
                        four[index][0] += part.x;
                        four[index][1] += part.y;
                        four[index][2] += part.z;
                        four[index][3] += part.w;
                    }
                    if (p.adds) {
                        grid_wait();
                        outputs.add(p.y, block(index), four[index]);
                    }
                    if constexpr (Sums::ADDS) {
#pragma unroll
                        for (u32 e = 0; e < 4; e++) {
                            four[index][e] += more[index][e];
                        }
                    }
                }
            }
            outputs.template write<false, FORM>(four, four, bias, block);
        }
    }
}

// A product by itself, for all threads of a block: one brings W, one X, two warpgroups multiply. `ahead`: W and bias, which no launch that may still
// run writes, are read before the wait for the launch before. With an adapters' part only what reads that waits. The next launch may start at
// once: it finds no room on an SM before this one's block there has ended, and asks for its own W then.
template <bool GATED, u32 CUT, u32 FORM, class Share>
__device__ __forceinline__ void skinny_gemm(const GemmParams &p, Share tile_rows, u64 policy, bool ahead, char *shared) {
    grid_launch_next();
    if (!ahead && !p.adds) {
        grid_wait();
    }
    SkinnyRing ring(shared, 2, [&](const SkinnyRing &ring) { skinny_early<GATED, CUT>(p, tile_rows, ring, policy, ahead); });
    f32 sum[GATED ? 2 : 1][TOKENS / 2];
    if (threadIdx.x < 256) {
        registers_take<232>();
        skinny_products<GATED, CUT, FORM>(p, tile_rows, ring, sum);
        skinny_end<CUT, FORM>(p, tile_rows, ring, true, sum[0]);
    } else {
        registers_give<40>();
        if (threadIdx.x == SKINNY_LOADER) {
            skinny_weights<GATED, CUT>(p, tile_rows, ring, policy, true);
        } else if (threadIdx.x == 288) {
            if (ahead) {
                grid_wait();
            }
            skinny_tokens<GATED, CUT>(p, tile_rows, ring, true);
        }
        __syncwarp();
        skinny_end<CUT, FORM>(p, tile_rows, ring, false, sum[0]);
    }
}
