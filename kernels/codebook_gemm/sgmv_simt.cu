// y[t] (+)= s_a · x[t]·I_a·Q_a·O_aᵀ where tokens come in runs of one adapter: sentences of a batch, not single tokens.
//
// Two kernels, TOKENS tokens a block, in f32 on the ordinary cores. The first leaves g = s·x·I·Q of each token in the workspace,
// [tokens, RANK]: a thread takes a token and a fourth of each CHUNK of d_in, with I's rows in shared memory. The second adds g·Oᵀ:
// a thread takes COLUMNS columns, whose part of O it decodes once a run and then holds in registers.
//
// With RANK at most 32 neither is far from what x and y take to move. Sums of a token run in one order, whoever is beside it.

#include "ptx/grid.cuh"
#include "tile/codes.cuh"
#include "codebook_gemm/sgmv_simt_params.cuh"

constexpr u32 TOKENS = 64, GROUPS = 4, SHRINK_THREADS = TOKENS * GROUPS, CHUNK = 128;
constexpr u32 EXPAND_THREADS = 96, COLUMNS = RANK * sizeof(element) <= 32 ? 4 : 2, WIDTH = EXPAND_THREADS * COLUMNS;
// Rows of y that a thread fetches before it needs them.
constexpr u32 AHEAD = 8;
constexpr u32 EACH = 16 / sizeof(element);
constexpr u32 PARTS_ROW = RANK + 1;

static_assert(RANK % 4 == 0 && CHUNK / GROUPS % EACH == 0, "whole pieces of 16 bytes");

struct alignas(16) Four {
    f32 values[4];
};

struct alignas(16) Line {
    element values[EACH];
};

struct alignas(COLUMNS * sizeof(element)) Cells {
    element values[COLUMNS];
};

__device__ __forceinline__ u32 fewer(u32 a, u64 b) { return b < a ? u32(b) : a; }

// sums[j] += x · row[j], the row in shared memory.
__device__ __forceinline__ void add_row(f32 (&sums)[RANK], f32 x, const f32 *row) {
#pragma unroll
    for (u32 j = 0; j < RANK; j += 4) {
        Four four = *reinterpret_cast<const Four *>(row + j);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            sums[j + e] += x * four.values[e];
        }
    }
}

#ifdef COMPILE_codebook_gemm_shrink
extern "C" __global__ void __launch_bounds__(SHRINK_THREADS) codebook_gemm_shrink(const SgmvSimtParams p) {
    constexpr u32 ROWS = CHUNK * RANK, PARTS = GROUPS * TOKENS * PARTS_ROW;
    // Rows of I, and after them the parts of h.
    __shared__ Four fours[(ROWS > PARTS ? ROWS : PARTS) / 4 + 1];
    __shared__ f32 hidden[TOKENS * PARTS_ROW];
    // Of each token: its adapter, the factor I that it reads, and whether it is the first that reads it.
    __shared__ i32 adapters[TOKENS], reads[TOKENS], leads[TOKENS];
    f32 *space = reinterpret_cast<f32 *>(fours);
    u32 token = threadIdx.x % TOKENS, group = threadIdx.x / TOKENS, rank = p.input.rank;
    u64 tiles = (p.tokens + TOKENS - 1) / TOKENS;
    grid_launch_next();
    grid_wait();
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 first = tile * TOKENS;
        if (group == 0) {
            i32 adapter = first + token < p.tokens ? p.token_adapter[first + token] : -1;
            adapters[token] = adapter;
            reads[token] = adapter < 0 || p.input.coded ? adapter : p.input.basis_of ? p.input.basis_of[adapter] : 0;
        }
        __syncthreads();
        if (group == 0) {
            bool lead = reads[token] >= 0;
            for (u32 before = 0; before < token; before++) {
                lead = lead && reads[before] != reads[token];
            }
            leads[token] = lead;
        }
        __syncthreads();
        f32 sums[RANK] = {};
        const element *row = p.x + (first + token) * p.x_stride;
        for (u32 leader = 0; leader < TOKENS; leader++) {
            if (!leads[leader]) {
                continue;
            }
            bool own = reads[token] == reads[leader];
            for (u64 start = 0; start < p.input.d; start += CHUNK) {
                u32 count = fewer(CHUNK, p.input.d - start);
                if (p.input.coded) {
#pragma unroll 1
                    for (u32 at = threadIdx.x; at < ROWS; at += SHRINK_THREADS) {
                        u32 k = at / RANK, j = at % RANK;
                        space[at] = k < count && j < rank ? element_of(column_of(p.input, adapters[leader], j), start + k) : 0.0f;
                    }
                } else {
                    const element *values = p.input.values + (u64(reads[leader]) * p.input.d + start) * rank;
#pragma unroll 4
                    for (u32 at = threadIdx.x; at < ROWS; at += SHRINK_THREADS) {
                        u32 k = at / RANK, j = at % RANK;
                        space[at] = k < count && j < rank ? widen(values[k * rank + j]) : 0.0f;
                    }
                }
                __syncthreads();
                u32 from = group * (CHUNK / GROUPS), end = fewer(from + CHUNK / GROUPS, count);
                if (own && p.x_vector) {
#pragma unroll 1
                    for (u32 k = from; k < end; k += EACH) {
                        Line line = *reinterpret_cast<const Line *>(row + start + k);
#pragma unroll
                        for (u32 e = 0; e < EACH; e++) {
                            add_row(sums, widen(line.values[e]), space + (k + e) * RANK);
                        }
                    }
                } else if (own) {
#pragma unroll 1
                    for (u32 k = from; k < end; k++) {
                        add_row(sums, widen(row[start + k]), space + k * RANK);
                    }
                }
                __syncthreads();
            }
        }
#pragma unroll
        for (u32 j = 0; j < RANK; j++) {
            space[threadIdx.x * PARTS_ROW + j] = sums[j];
        }
        __syncthreads();
        for (u32 j = group; j < RANK; j += GROUPS) {
            f32 sum = 0.0f;
            for (u32 g = 0; g < GROUPS; g++) {
                sum += space[(g * TOKENS + token) * PARTS_ROW + j];
            }
            hidden[token * PARTS_ROW + j] = sum;
        }
        __syncthreads();
        i32 adapter = adapters[token];
        for (u32 j = group; adapter >= 0 && j < RANK; j += GROUPS) {
            f32 sum = hidden[token * PARTS_ROW + j];
            if (p.core && j < rank) {
                const f32 *core = p.core + u64(adapter) * rank * rank + j;
                sum = 0.0f;
                for (u32 i = 0; i < rank; i++) {
                    sum += hidden[token * PARTS_ROW + i] * core[i * rank];
                }
            }
            p.shrunk[(first + token) * RANK + j] = p.scaling[p.scaled_by_token ? first + token : u64(adapter)] * sum;
        }
        __syncthreads();
    }
}
#endif

#ifdef COMPILE_codebook_gemm_expand
extern "C" __global__ void __launch_bounds__(EXPAND_THREADS) codebook_gemm_expand(const SgmvSimtParams p) {
    __shared__ Four fours[TOKENS * RANK / 4];
    // A thread's columns of O: what it decodes it alone reads.
    __shared__ f32 decoded[RANK][WIDTH];
    __shared__ i32 adapters[TOKENS];
    f32 *shrunk = reinterpret_cast<f32 *>(fours);
    u64 across = (p.output.d + WIDTH - 1) / WIDTH, tiles = (p.tokens + TOKENS - 1) / TOKENS;
    u32 own = threadIdx.x * COLUMNS, rank = p.output.rank;
    grid_launch_next();
    grid_wait();
    for (u64 work = blockIdx.x; work < tiles * across; work += gridDim.x) {
        u64 first = work / across * TOKENS, column = work % across * WIDTH + own;
        u32 count = fewer(TOKENS, p.tokens - first), there = column < p.output.d ? fewer(COLUMNS, p.output.d - column) : 0;
        for (u32 at = threadIdx.x; at < count * RANK; at += EXPAND_THREADS) {
            // A row of base tokens has no g: what lies there is not used.
            shrunk[at] = p.shrunk[first * RANK + at];
        }
        for (u32 at = threadIdx.x; at < count; at += EXPAND_THREADS) {
            adapters[at] = p.token_adapter[first + at];
        }
        __syncthreads();
        element *y = p.y + first * p.y_stride + column;
        for (u32 token = 0, end; token < count; token = end) {
            i32 adapter = adapters[token];
            end = token + 1;
            while (end < count && adapters[end] == adapter) {
                end++;
            }
            f32 columns[RANK][COLUMNS] = {};
            if (adapter >= 0) {
#pragma unroll 2
                for (u32 r = 0; r < rank; r++) {
                    Column of = column_of(p.output, adapter, r);
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; c++) {
                        decoded[r][own + c] = c < there ? element_of(of, column + c) : 0.0f;
                    }
                }
#pragma unroll
                for (u32 r = 0; r < RANK; r++) {
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; c++) {
                        columns[r][c] = r < rank ? decoded[r][own + c] : 0.0f;
                    }
                }
            } else if (p.accumulate) {
                continue;
            }
#pragma unroll 1
            for (; token < end; token += AHEAD) {
                Cells cells[AHEAD] = {};
#pragma unroll
                for (u32 i = 0; i < AHEAD; i++) {
                    const element *at = y + (token + i) * p.y_stride;
                    if (p.accumulate && token + i < end) {
                        if (p.y_vector && there) {
                            cells[i] = *reinterpret_cast<const Cells *>(at);
                        } else {
#pragma unroll
                            for (u32 c = 0; c < COLUMNS; c++) {
                                cells[i].values[c] = c < there ? at[c] : element{};
                            }
                        }
                    }
                }
#pragma unroll
                for (u32 i = 0; i < AHEAD; i++) {
                    if (token + i >= end) {
                        break;
                    }
                    f32 sums[COLUMNS] = {};
                    if (adapter >= 0) {
#pragma unroll
                        for (u32 r = 0; r < RANK; r += 4) {
                            Four four = *reinterpret_cast<const Four *>(shrunk + (token + i) * RANK + r);
#pragma unroll
                            for (u32 e = 0; e < 4; e++) {
#pragma unroll
                                for (u32 c = 0; c < COLUMNS; c++) {
                                    sums[c] += four.values[e] * columns[r + e][c];
                                }
                            }
                        }
                    }
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; c++) {
                        cells[i].values[c] = narrow<element>((p.accumulate ? widen(cells[i].values[c]) : 0.0f) + sums[c]);
                    }
                    element *at = y + (token + i) * p.y_stride;
                    if (p.y_vector && there) {
                        *reinterpret_cast<Cells *>(at) = cells[i];
                    } else {
#pragma unroll
                        for (u32 c = 0; c < COLUMNS; c++) {
                            if (c < there) {
                                at[c] = cells[i].values[c];
                            }
                        }
                    }
                }
            }
        }
        // The next tile takes this place.
        __syncthreads();
    }
}
#endif
