// O = softmax(scale·Q·Kᵀ + mask)·V for few queries over a long cache, on the tensor cores of Ampere and later.

#include "attention/sm80/decode.cuh"
#if __CUDA_ARCH__ >= 900
#include "ptx/cluster.cuh"
#endif

// A warp's rows of O go where its last stage was; then every thread of the block joins what the warps have.
__device__ __forceinline__ Partial join_warps(const char *ring, u32 stage, const f32 (*sums)[DECODE_ROWS][2], i32 row, i32 column) {
    Partial sum = no_keys();
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) {
        const f32 *o = (const f32 *)(ring + (w * DECODE_STAGES + stage) * STAGE * 2);
        sum.join({sums[w][row][0], sums[w][row][1], *(const float4 *)(o + row * PITCH + column)});
    }
    return sum;
}

template <bool ALIGNED> __device__ __forceinline__ void attend_decode(const DecodeParams &params, char *shared) {
    __shared__ f32 sums[DECODE_WARPS][DECODE_ROWS][2];   // maximum and sum of each warp's rows
    __shared__ u32 arrived;
    const AttentionParams &p = params.common;
#if __CUDA_ARCH__ >= 900
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
#endif
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Blocks side by side take the tiles of the same keys, so that only one of them reads device memory.
    u32 line = blockIdx.x % p.tiles, block = blockIdx.x / p.tiles;
    Line steps = line_of(p);
    Stretch stretch = stretch_of(p, steps, block, gridDim.x / p.tiles);
    if (stretch.begin >= stretch.end) {
        return;
    }
    Spot q_tiles = {(element *)shared + DECODE_WARPS * DECODE_STAGES * STAGE, shared_address(shared) + DECODE_WARPS * DECODE_STAGES * STAGE * 2};
    Spot ring = {(element *)shared + warp * DECODE_STAGES * STAGE, shared_address(shared) + warp * DECODE_STAGES * STAGE * 2};
    u32 q_at = q_tiles.address + (lane % 16 * PITCH + lane / 16 * 8) * 2;
    u32 k_at = ring.address + ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
    u32 v_at = ring.address + (DECODE_KEYS * PITCH + lane % 16 * PITCH + lane / 16 * 8) * 2;
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;

    // The copies run ahead, over the ends of items: Q of the next comes with its first keys, and waits in a tile of its own.
    i32 first_row = i32(line * DECODE_ROWS);
    Item ahead = stretch.item;
    Source source = {};
    u32 next = stretch.begin, tile_ahead = 0;
    auto load_next = [&](u32 stage) {
        if (next < stretch.end) {
            bool fresh = next == ahead.start + ahead.steps;
            if (fresh) {
                to_next_item(p, steps, ahead);
            }
            if (fresh || next == stretch.begin) {
                source = source_of(p, ahead);
                load_rows<ALIGNED>(p, sequence_of(p, ahead.batch), ahead.group, first_row, q_tiles + tile_ahead * DECODE_ROWS * PITCH);
                tile_ahead = tile_ahead + 1 < ROW_TILES ? tile_ahead + 1 : 0;
            }
            load_stage<ALIGNED>(p, source, next - ahead.start, ring + stage * STAGE);
            next++;
        }
        cp_async_commit();
    };
#pragma unroll 1
    for (u32 stage = 0; stage < DECODE_STAGES; stage++) {
        load_next(stage);
    }

    u32 stage = 0, tile = 0;
    for (Item item = stretch.item; item.start < stretch.end; to_next_item(p, steps, item)) {
        u32 at = item.start > stretch.begin ? item.start : stretch.begin;
        u32 stop = item.start + item.steps < stretch.end ? item.start + item.steps : stretch.end;
        Sequence s = sequence_of(p, item.batch);
        i32 rows = i32(s.q_len) * i32(p.pack), count = rows - first_row < DECODE_ROWS ? rows - first_row : DECODE_ROWS;
        u32 first_head = item.group * p.pack;
        ShortMask mask = mask_of(p, i32(s.q_len), i32(s.kv_len));
        Span span = span_of(p, s);
        // Keys that every row sees.
        i32 all_first = mask.first(i32(u32(first_row + DECODE_ROWS - 1) / p.pack)), all_end = mask.end(i32(u32(first_row) / p.pack));

        f32 most[1][2] = {{-infinity(), -infinity()}}, total[1][2] = {{0.0f, 0.0f}}, o[1][TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
        }
        // Q has come with the first keys, from every warp.
        cp_async_wait<DECODE_STAGES - 1>();
        __syncthreads();
        if (!(p.scale > 0.0f)) {
            turn_rows(p.scale, q_tiles.start + tile * DECODE_ROWS * PITCH);
            __syncthreads();
        }
        for (;;) {
            cp_async_wait<DECODE_STAGES - 1>();
            __syncwarp();
            i32 first = span.first + i32((at - item.start) * DECODE_STEP + warp * DECODE_KEYS);
            if (first < span.end) {
                f32 scores[1][DECODE_KEYS / 8][4];
                score(q_at + tile * DECODE_ROWS * PITCH * 2, k_at + stage * STAGE * 2, scores);
                if (first < all_first || first + DECODE_KEYS > all_end) {
                    mask_keys(mask, first_row, p.pack, first, scores);
                }
                softmax(factor, scores, most, total, o);
                weigh(v_at + stage * STAGE * 2, scores, o);
            }
            __syncwarp();
            if (++at == stop) {
                break;
            }
            load_next(stage);
            stage = stage + 1 < DECODE_STAGES ? stage + 1 : 0;
        }

        f32 *own = (f32 *)(ring + stage * STAGE).start;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 sum = total[0][r];
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            i32 row = r * 8 + i32(lane / 4);
            if (row < count) {
                if (lane % 4 == 0) {
                    sums[warp][row][0] = most[0][r];
                    sums[warp][row][1] = sum;
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    *(float2 *)(own + row * PITCH + n * 8 + lane % 4 * 2) = {o[0][n][2 * r], o[0][n][2 * r + 1]};
                }
            }
        }
        __syncthreads();
        u32 opening = item.start / stretch.each, closing = (item.start + item.steps - 1) / stretch.each;
        f32 *part = part_of(params, line, p.tiles, block, stretch.each, item);
        for (i32 place = threadIdx.x; place < count * (HEAD_DIM / 4); place += DECODE_THREADS) {
            i32 row = place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4;
            Partial sum = join_warps(shared, stage, sums, row, column);
            if (opening == closing) {
                finish(p, s, first_head + u32(first_row + row) % p.pack, u32(first_row + row) / p.pack, column, sum);
            } else {
                *(float4 *)(part + row * HEAD_DIM + column) = sum.o;
                if (column == 0) {
                    part[DECODE_ROWS * HEAD_DIM + row * 2] = sum.most;
                    part[DECODE_ROWS * HEAD_DIM + row * 2 + 1] = sum.total;
                }
            }
        }
        if (opening != closing) {
            // Everyone's part is written before the block is counted; the last block sees those of all.
            __syncthreads();
            u32 *counter = params.arrivals + opening * p.tiles + line;
            if (threadIdx.x == 0) {
                arrived = count_arrival(counter);
            }
            __syncthreads();
            if (arrived == closing - opening) {
                for (i32 place = threadIdx.x; place < count * (HEAD_DIM / 4); place += DECODE_THREADS) {
                    i32 row = place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4;
                    Partial sum = join_parts(params, line, p.tiles, stretch.each, item, row, column);
                    finish(p, s, first_head + u32(first_row + row) % p.pack, u32(first_row + row) / p.pack, column, sum);
                }
                if (threadIdx.x == 0) {
                    *counter = 0;   // for the next launch
                }
            }
        }
        tile = tile + 1 < ROW_TILES ? tile + 1 : 0;
        // Every warp has read what the others left in their stages.
        __syncthreads();
        load_next(stage);
        stage = stage + 1 < DECODE_STAGES ? stage + 1 : 0;
    }
}

#ifdef COMPILE_attention_sm80_decode
// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(DECODE_THREADS, 1) attention_sm80_decode(const DecodeParams p) {
    extern __shared__ __align__(16) char shared[];
    attend_decode<true>(p, shared);
}
#endif

#ifdef COMPILE_attention_sm80_decode_narrow
// Rows start anywhere.
extern "C" __global__ void __launch_bounds__(DECODE_THREADS, 1) attention_sm80_decode_narrow(const DecodeParams p) {
    extern __shared__ __align__(16) char shared[];
    attend_decode<false>(p, shared);
}
#endif
