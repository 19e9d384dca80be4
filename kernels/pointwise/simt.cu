// What a transformer layer needs between the large operations; arithmetic in f32, sums in a fixed order. Here a block a row, for every
// size and place; norms of rows of up to 1,024 elements are in norm.cu, of longer ones in wide.cu, rotary positions in rope.cu, what goes
// to places of a pool in append.cu, means of rows in pool.cu, what else moves whole lines of 16 bytes in lines.cu.
//
// x, residual and y are [rows, columns], packed, but for rotary positions, what goes to a pool, and gates, whose rows lie p.stride elements apart. There
// is no product of matrices here, so nothing for tensor cores.

#include "tile/reduce.cuh"
#include "pointwise/angle.cuh"
#include "pointwise/append.cuh"
#include "pointwise/kind.cuh"

constexpr int THREADS = 256;

// Element `at` of x plus the residual, if there is one.
__device__ __forceinline__ f32 input(const PointwiseParams &p, u64 at) {
    return widen(p.x[at]) + (p.residual ? widen(p.residual[at]) : 0.0f);
}

// Element `c` of what is normalised as row `row`; of two tables: see load_rows.
__device__ __forceinline__ f32 summand(const PointwiseParams &p, u64 row, u64 c) {
    if (p.kind != EMBEDDING_NORM) {
        return input(p, row * p.columns + c);
    }
    i32 id = p.index[2 + row], place = p.places[2 + row];
    f32 word = id < 0 ? 0.0f : widen(p.x[u64(id) * p.columns + c]);
    return word + (place < 0 ? 0.0f : widen(p.residual[u64(place) * p.columns + c]));
}

// y = (z - mean(z)) / √(var(z) + eps) · weight + bias; of RMS, with a mean of 0 and no bias.
__device__ __forceinline__ void normalise(const PointwiseParams &p, u64 row, f32 *scratch) {
    u64 start = row * p.columns;
    f32 mean = 0.0f;
    if (p.kind == LAYER_NORM || p.kind == EMBEDDING_NORM) {
        f32 sum = 0.0f;
        for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
            sum += summand(p, row, c);
        }
        mean = block_sum<THREADS>(sum, scratch) / f32(p.columns);
    }
    f32 squares = 0.0f;
    for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
        f32 off = summand(p, row, c) - mean;
        squares += off * off;
    }
    squares = block_sum<THREADS>(squares, scratch);
    f32 factor = p.kind == L2_NORMALISE ? 1.0f / max_or_nan(sqrtf(squares), 1e-12f) : 1.0f / sqrtf(squares / f32(p.columns) + p.eps);
    for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
        f32 value = (summand(p, row, c) - mean) * factor;
        value *= p.weight ? widen(p.weight[c]) : 1.0f;
        value += p.bias ? widen(p.bias[c]) : 0.0f;
        p.y[start + c] = narrow<element>(value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) pointwise_simt(const PointwiseParams p) {
    __shared__ f32 scratch[THREADS];
    grid_launch_next();
    grid_wait();
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        u64 start = row * p.columns;
        switch (p.kind) {
        case RMS_NORM:
        case LAYER_NORM:
        case EMBEDDING_NORM:
        case L2_NORMALISE:
            normalise(p, row, scratch);
            break;
        case ROPE:
            turn_row<THREADS>(p, p.index[row], p.x + row * p.stride, p.y + row * p.stride);
            break;
        case EMBEDDING: {
            // Words: two counts, then the ids.
            i32 id = p.index[2 + row];
            for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
                p.y[start + c] = id < 0 ? narrow<element>(0.0f) : p.x[u64(id) * p.columns + c];
            }
            break;
        }
        case MEAN_POOL: {
            i32 first = p.index[row], end = p.index[row + 1];
            for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
                f32 sum = 0.0f;
                for (i32 r = first; r < end; r++) {
                    sum += widen(p.x[u64(r) * p.columns + c]);
                }
                p.y[start + c] = narrow<element>(end > first ? sum / f32(end - first) : 0.0f);
            }
            break;
        }
        case APPEND:
        case STORE: {
            i64 place = p.kind == APPEND ? appended_place(p, row) : stored_place(p, row);
            for (u64 c = threadIdx.x; place >= 0 && c < p.columns; c += THREADS) {
                p.y[u64(place) * p.columns + c] = p.x[row * p.stride + c];
            }
            break;
        }
        case ADD:
            for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
                p.y[start + c] = narrow<element>(input(p, start + c));
            }
            break;
        case GLU:
            for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
                const element *gate = p.x + row * p.stride + c;
                p.y[start + c] = narrow<element>(activate(p.activation, widen(gate[0])) * widen(gate[p.columns]));
            }
            break;
        case ACTIVATION:
            for (u64 c = threadIdx.x; c < p.columns; c += THREADS) {
                p.y[start + c] = narrow<element>(activate(p.activation, widen(p.x[start + c])));
            }
            break;
        }
    }
}
