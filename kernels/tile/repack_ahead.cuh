// Rows of X that do not start on multiples of 16 bytes, copied to where they do by the launch of the product that reads them: warps that have
// nothing else to do go through K chunk after chunk, ahead of the warp that brings X by TMA, which waits for a count of the chunk.
//
// No block needs another one to run: who has waited for long copies for itself, and two copies are the same.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/special.cuh"
#include "tile/gemm_params.cuh"

// What is known of the chunks that lie as TMA wants them: so many from the first on, of the rows from `row` on.
struct Ready {
    u32 row = ~0u, chunks = 0;
};

// A product whose X lies as TMA takes it.
struct RowsInPlace {
    static constexpr bool COPIED = false;
    __device__ __forceinline__ void wait(Ready &, u32, u32) const {}
    __device__ __forceinline__ void copy_share(u32) const {}
    __device__ __forceinline__ void finish() const {}
};

// The last four warps of a block, of which one brings both operands; or one brings W and one X, which the others copy first.
template <class Rows> struct Bringers {
    static constexpr u32 FIRST = 8, COPY_FIRST = FIRST + (Rows::COPIED ? 2 : 1);

    static __device__ __forceinline__ bool bring(u32 warp) { return Rows::COPIED ? warp < COPY_FIRST : warp == FIRST; }
    static __device__ __forceinline__ bool w(u32 warp) { return !Rows::COPIED || warp == FIRST; }
    static __device__ __forceinline__ bool x(u32 warp) { return !Rows::COPIED || warp != FIRST; }
    static __device__ __forceinline__ u32 bytes(u32 warp, u32 of_x, u32 of_w) { return !Rows::COPIED ? of_x + of_w : x(warp) ? of_x : of_w; }

    // Copies, or says that nothing is waited for any more.
    static __device__ __forceinline__ void end(u32 warp, const Rows &rows) {
        if (Rows::COPIED && !bring(warp)) {
            rows.copy_share(warp - COPY_FIRST);
        } else if (Rows::COPIED && x(warp)) {
            rows.finish();
        }
    }
};

struct RowsAhead {
    static constexpr bool COPIED = true;
    // Rows that a warp copies at once, with eight elements of each a lane; rows with a count, a tile's.
    static constexpr u32 ROWS = 8, CHUNK = 256, GROUP = 128, COPIES = GROUP / ROWS, STEPS = CHUNK / 64;
    // Copies of a chunk that are made side by side, of as many rows as a band of tiles: 2,048.
    static constexpr u32 BAND = 2048 / ROWS;
    // Warps of a block that copy, those that do or wait, and how often these look before they help themselves.
    static constexpr u32 COPY_WARPS = 2, USERS = COPY_WARPS + 1, PATIENCE = 256;

    // What a lane has read of COUNT rows: of each the words of 4 bytes that eight elements lie in.
    template <u32 COUNT> struct Words {
        u32 words[COUNT][5];
    };

    const GemmParams &p;
    element *copies;
    u32 *counts;   // of the warps that are done, then of every group and chunk: zero before and after a launch

    __device__ __forceinline__ u32 chunks() const { return u32((p.depth + CHUNK - 1) / CHUNK); }
    __device__ __forceinline__ u32 *count(u32 group, u32 chunk) const { return counts + 1 + group * chunks() + chunk; }
    // Elements before X in its first word.
    __device__ __forceinline__ u32 before() const { return u32(u64(p.x) % 4) / 2; }
    // Of copies' rows.
    __device__ __forceinline__ u32 stride() const { return (u32(p.depth) + 7) / 8 * 8; }

    // Reads rows from `first` on, CHUNK elements from `k` on. By a warp, as the next. Past X's end it reads what is never written.
    template <u32 COUNT> __device__ __forceinline__ void read(u32 first, u32 k, Words<COUNT> &found) const {
        const u32 *x = (const u32 *)(p.x - before());
        u32 last_row = u32(p.rows) - 1;
        u64 last = (before() + last_row * p.x_stride + p.depth) / 2 - 5;
#pragma unroll
        for (u32 r = 0; r < COUNT; r++) {
            u64 at = (before() + (first + r < last_row ? first + r : last_row) * p.x_stride + k) / 2 + threadIdx.x % 32 * 4;
            const u32 *from = x + (at < last ? at : last);
#pragma unroll
            for (u32 i = 0; i < 5; i++) {
                found.words[r][i] = from[i];
            }
        }
    }

    // Writes them to their places.
    template <u32 COUNT> __device__ __forceinline__ void write(u32 first, u32 k, const Words<COUNT> &found) const {
        u32 lane = threadIdx.x % 32, rows = u32(p.rows), depth = u32(p.depth), stride = this->stride();
        // The last elements of the last row, whose words may not be whole, go one by one: nothing is ever written but what it has to be.
        u32 cut = (depth - 8) / 8 * 8;
        element *to = copies + u64(first) * stride + k + lane * 8;
#pragma unroll
        for (u32 r = 0; r < COUNT; r++) {
            const u32(&words)[5] = found.words[r];
            u32 bits = (before() + (first + r) * u32(p.x_stride)) % 2 * 16;
            auto two = [&](u32 i) { return __funnelshift_r(words[i], words[i + 1], bits); };
            if (first + r < rows && k + lane * 8 < (first + r == rows - 1 ? cut : stride)) {
                store_16(to + r * stride, {two(0), two(1), two(2), two(3)});
            }
        }
        u32 column = cut + lane;
        if (first < rows && rows <= first + COUNT && column < depth && column >= k && column < k + CHUNK) {
            copies[u64(rows - 1) * stride + column] = p.x[(rows - 1) * p.x_stride + column];
        }
    }

    // This warp's share, number `own` of the COPY_WARPS of its block: of every band of rows all copies of the first chunk, then of the next.
    __device__ __forceinline__ void copy_share(u32 own) const {
        u32 down = (u32(p.rows) + GROUP - 1) / GROUP * COPIES, step = gridDim.x * COPY_WARPS, all = down * chunks();
        u32 turn = blockIdx.x * COPY_WARPS + own, first, chunk;
        // Where a turn is: bands have BAND copies of each chunk, the last one fewer.
        auto find = [&] {
            u32 band = turn / (BAND * chunks()), left = down - band * BAND, high = left < BAND ? left : BAND, inside = turn - band * BAND * chunks();
            chunk = inside / high;
            first = (band * BAND + inside % high) * ROWS;
        };
        auto publish = [&](u32 *counter) {
            fence_proxy_async_global();
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                count_up(counter);
            }
        };
        Words<ROWS> found;
        if (turn < all) {
            find();
            read(first, chunk * CHUNK, found);
            write(first, chunk * CHUNK, found);
            publish(count(first / GROUP, chunk));
            turn += step;
        }
        if (turn < all) {
            find();
            read(first, chunk * CHUNK, found);
        }
        // From the second on the next one's words are on their way while this one's are made known.
        while (turn < all) {
            write(first, chunk * CHUNK, found);
            u32 *counter = count(first / GROUP, chunk);
            turn += step;
            if (turn < all) {
                find();
                read(first, chunk * CHUNK, found);
            }
            publish(counter);
        }
        finish();
    }

    // Waits until TMA may read step `step` of the tile's rows from `row` on. By the warp that brings X: it looks at as many chunks as it has lanes, so
    // that it seldom does.
    __device__ __forceinline__ void wait(Ready &ready, u32 row, u32 step) const {
        u32 chunk = step / STEPS, lane = threadIdx.x % 32;
        if (row != ready.row) {
            ready = {row, 0};
        }
        // A tile below the last row is zeros.
        if (chunk < ready.chunks || row >= p.rows) {
            return;
        }
        const u32 *own = count(row / GROUP, chunk + lane < chunks() ? chunk + lane : chunks() - 1);
        for (u32 tries = 0;; tries++) {
            u32 others = ~lanes_where(count_reached(own, COPIES));
            if (!(others & 1)) {
                ready.chunks = chunk + (others ? __ffs(others) - 1 : 32);
                break;
            }
            if (tries == PATIENCE) {
                for (u32 i = 0; i < GROUP; i++) {
                    Words<1> found;
                    read(row + i, chunk * CHUNK, found);
                    write(row + i, chunk * CHUNK, found);
                }
                ready.chunks = chunk + 1;
                break;
            }
        }
        fence_proxy_async_global();
        __syncwarp();
    }

    // By every warp that copies or waits, at its end: the last one sets the counts back.
    __device__ __forceinline__ void finish() const {
        u32 done = 0, lane = threadIdx.x % 32;
        if (lane == 0) {
            done = count_up(counts);
        }
        if (shuffle_from(done, 0) == gridDim.x * USERS - 1) {
            u32 all = 1 + (u32(p.rows) + GROUP - 1) / GROUP * chunks();
            for (u32 i = lane; i < all; i += 32) {
                counts[i] = 0;
            }
        }
    }
};
