// X·Wᵀ for few rows of X where W's rows may start anywhere, on the tensor cores of Ampere and later. W is read once, 16 bytes at a
// time from multiples of 16 bytes, straight to registers; what is shifted is X.
//
// Every eighth row of W lies a multiple of 16 bytes on, whatever a row's length: such rows, a phase, have the same place in an
// aligned eight. A block takes rows of one phase, and keeps X in shared memory shifted as they are. Both operands of a product have their
// elements of K in the same order, not the instruction's: a thread's 16 bytes are its share of two instructions.
//
// Warps share out K; their sums are added up in a fixed order: results are bitwise the same from run to run.
//
// The host defines GEMV_TOKENS (8 or 16: at least the rows of X).
#pragma once

#include "ptx/mma.cuh"
#include "gemm/outputs.cuh"
#include "tile/repack.cuh"

constexpr u32 GEMV_THREADS = 512, GEMV_WARPS = GEMV_THREADS / 32, PHASE_TILE = 16, TOKEN_PARTS = GEMV_TOKENS / 8;
constexpr u32 CHUNK = 32;  // elements of K a warp takes at once, and how many chunks it reads ahead
constexpr u32 BATCH = 4;
constexpr u32 GEMV_SUMS = GEMV_WARPS * 32 * 4 * TOKEN_PARTS;

// A phase of W's rows: every eighth, from one on.
struct PhaseRows {
    const element *start;  // a multiple of 16 bytes at or before the first row's first element
    u32 shift;             // elements to that
    u64 count, step;       // rows, and elements from one to the next
    u64 begin, end;        // addresses of W

    __device__ __forceinline__ PhaseRows(const GemmParams &p, u32 phase)
        : count((p.columns + 7 - phase) / 8), step(p.w_stride * 8), begin(u64(p.w)), end(u64(p.w + (p.columns - 1) * p.w_stride + p.depth)) {
        u64 first = u64(p.w + phase * p.w_stride);
        start = (const element *)(first & ~u64(15));
        shift = u32(first & 15) / 2;
    }

    // Sixteen bytes of a row, zeros where there is no such row. `word` counts from the start; those at a row's ends are also of the rows
    // beside it.
    __device__ __forceinline__ uint4 read(u64 row, u32 word) const {
        u64 at = u64(start + row * step + u64(word) * 8);
        return row < count && at >= begin && at + 16 <= end ? *(const uint4 *)at : uint4{0, 0, 0, 0};
    }

    // The same with nothing but the row's own elements.
    __device__ __forceinline__ uint4 own(uint4 found, u64 row, u32 word, u32 depth) const {
        const element *from = start + row * step + u64(word) * 8;
        bool whole = u64(from) >= begin && u64(from + 8) <= end;
        u32 words[4] = {found.x, found.y, found.z, found.w};
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 place = word * 8 + i;
            bool inside = row < count && place >= shift && place < shift + depth;
            u32 bits = whole ? words[i / 2] >> i % 2 * 16 & 0xffff : inside ? from[i].bits : 0;
            words[i / 2] = i % 2 ? (words[i / 2] & 0xffff) | (inside ? bits << 16 : 0) : (words[i / 2] & 0xffff0000) | (inside ? bits : 0);
        }
        return {words[0], words[1], words[2], words[3]};
    }
};

// X in shared memory as a phase wants it: `shift` zeros before each row, zeros after it up to whole chunks.
__device__ __forceinline__ void stage_tokens(const GemmParams &p, u32 shift, u32 words, u32 stride, char *to) {
    u64 begin = u64(p.x), end = u64(p.x + (p.rows - 1) * p.x_stride + p.depth);
    for (u32 token = 0; token < p.rows; token++) {
        const element *row = p.x + token * p.x_stride;
        for (u32 word = threadIdx.x; word < words; word += GEMV_THREADS) {
            i64 k = i64(word) * 8 - shift;
            uint4 eight = {0, 0, 0, 0};
            if (k >= 0 && k < i64(p.depth)) {
                i64 left = i64(p.depth) - k;
                eight = eight_of(read_straddled(row + k, begin, end), row + k, left < 8 ? i32(left) : 8);
            } else if (k < 0) {
                u32 pairs[4] = {};
#pragma unroll
                for (i32 i = 0; i < 8; i++) {
                    u32 bits = k + i >= 0 && k + i < i64(p.depth) ? row[k + i].bits : 0;
                    pairs[i / 2] |= bits << i % 2 * 16;
                }
                eight = {pairs[0], pairs[1], pairs[2], pairs[3]};
            }
            *(uint4 *)(to + token * stride + word * 16) = eight;
        }
    }
}

// An output from its sum.
__device__ __forceinline__ void gemv_output(const GemmParams &p, u64 token, u64 column, f32 sum) {
    u64 at = token * p.y_stride + column;
    f32 value = sum + (p.bias ? widen(p.bias[column]) : 0.0f);
    if (p.adds) {
        value += widen(p.y[at]);
    }
    value = activate(p.activation, value);
    if (p.residual) {
        value += widen(p.residual[at]);
    }
    p.y[at] = narrow<element>(value);
}

// Y = act(X·Wᵀ + bias) + residual. Blocks in eights: one of each phase.
__device__ __forceinline__ void gemv_gemm(const GemmParams &p, char *shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, high = lane / 4, quad = lane % 4;
    PhaseRows w(p, blockIdx.x % 8);
    u32 tiles = u32((w.count + PHASE_TILE - 1) / PHASE_TILE), step = gridDim.x / 8;
    u32 depth = u32(p.depth), chunks = (w.shift + depth + CHUNK - 1) / CHUNK;
    u32 first = chunks * warp / GEMV_WARPS, last = chunks * (warp + 1) / GEMV_WARPS;
    // From a token to the next: neighbours fall into different halves of the banks.
    u32 stride = (chunks * 64 + 127) / 128 * 128 + 64;
    f32 *sums = (f32 *)(shared + GEMV_TOKENS * stride);
    uint4 next[BATCH][2];
    auto load = [&](u32 tile, u32 chunk) {
#pragma unroll
        for (u32 b = 0; b < BATCH; b++) {
#pragma unroll
            for (u32 upper = 0; upper < 2; upper++) {
                bool there = tile < tiles && chunk + b < last;
                next[b][upper] = there ? w.read(u64(tile) * PHASE_TILE + upper * 8 + high, (chunk + b) * 4 + quad) : uint4{0, 0, 0, 0};
            }
        }
    };
    load(blockIdx.x / 8, first);
    stage_tokens(p, w.shift, chunks * 4, stride, shared);
    __syncthreads();
    u32 turn = 0;
    for (u32 tile = blockIdx.x / 8; tile < tiles; tile += step, turn ^= 1) {
        f32 sum[TOKEN_PARTS][4] = {};
        for (u32 chunk = first; chunk < last; chunk += BATCH) {
            uint4 now[BATCH][2];
#pragma unroll
            for (u32 b = 0; b < BATCH; b++) {
                now[b][0] = next[b][0];
                now[b][1] = next[b][1];
            }
            bool more = chunk + BATCH < last;
            load(more ? tile : tile + step, more ? chunk + BATCH : first);
#pragma unroll
            for (u32 b = 0; b < BATCH; b++) {
                u32 own = chunk + b;
                if (own >= last) {
                    break;
                }
                if (own == 0 || own == chunks - 1) {
#pragma unroll
                    for (u32 upper = 0; upper < 2; upper++) {
                        now[b][upper] = w.own(now[b][upper], u64(tile) * PHASE_TILE + upper * 8 + high, own * 4 + quad, depth);
                    }
                }
                u32 a[2][4] = {{now[b][0].x, now[b][1].x, now[b][0].y, now[b][1].y}, {now[b][0].z, now[b][1].z, now[b][0].w, now[b][1].w}};
#pragma unroll
                for (u32 part = 0; part < TOKEN_PARTS; part++) {
                    u32 token = part * 8 + high;
                    uint4 x = token < p.rows ? *(const uint4 *)(shared + token * stride + own * 64 + quad * 16) : uint4{0, 0, 0, 0};
                    u32 x_low[2] = {x.x, x.y}, x_high[2] = {x.z, x.w};
                    mma_m16n8k16<element>(sum[part], a[0], x_low);
                    mma_m16n8k16<element>(sum[part], a[1], x_high);
                }
            }
        }
        f32 *own = sums + turn * GEMV_SUMS;
#pragma unroll
        for (u32 part = 0; part < TOKEN_PARTS; part++) {
            *(float4 *)(own + ((warp * TOKEN_PARTS + part) * 32 + lane) * 4) = {sum[part][0], sum[part][1], sum[part][2], sum[part][3]};
        }
        // One barrier a tile: the sums of the next go to the other half.
        __syncthreads();
        if (threadIdx.x < PHASE_TILE * GEMV_TOKENS) {
            u32 row = threadIdx.x % PHASE_TILE, token = threadIdx.x / PHASE_TILE;
            u32 place = (token / 8 * 32 + row % 8 * 4 + token % 8 / 2) * 4 + row / 8 * 2 + token % 2;
            f32 all = 0.0f;
#pragma unroll
            for (u32 from = 0; from < GEMV_WARPS; from++) {
                all += own[from * TOKEN_PARTS * 128 + place];
            }
            u64 number = u64(tile) * PHASE_TILE + row;
            if (token < p.rows && number < w.count) {
                gemv_output(p, token, number * 8 + blockIdx.x % 8, all);
            }
        }
    }
}
