// What the input factors make of tokens: h = x·I, in 16 bits, a power of two taken out.
#pragma once

#include "codebook_gemm/sgmv_long_fragments.cuh"

constexpr u32 TOKENS = 32, SHARES = 4;          // of a tile; warps that share its d_in
constexpr u32 PART_ROWS = 96;                  // elements of d_in of a part, or a multiple
constexpr u32 PIECES = RANK / 8;               // of 16 bytes, in a row of the input factor
constexpr u32 PARTS_ROW = RANK + 8;            // the padding spreads four rows over all banks

static_assert(SHRINK_WARPS * 16 == SHARES * TOKENS, "a warp has 16 tokens and a part of d_in");

// Where row `k` of the input factor lies in shared memory. A lane takes eight successive elements of x at once; the k index of mma
// follows them, and the factor follows that, so that eight rows of a tile of ldmatrix are neighbours.
__device__ __forceinline__ u32 slot(u32 k) { return (k & ~31u) | (k >> 2 & 1) << 4 | (k >> 1 & 1) << 3 | (k >> 3 & 3) << 1 | (k & 1); }

// In 16-byte words: piece `piece` of what lies at `slot`; eight rows of a column of pieces lie in different banks.
__device__ __forceinline__ u32 piece_place(u32 slot, u32 piece) { return slot * PIECES + (piece ^ slot / (8 / PIECES) % PIECES); }

// `rows` rows of a basis from `start` on, zeros past its end and past the rank; by one group of cp.async where rows are whole pieces.
__device__ __forceinline__ void fetch_basis(const SgmvLongSlice &slice, i32 basis, u64 start, u32 rows, uint4 *to) {
    const FactorParams &factor = slice.input;
    const element *values = factor.values + u64(basis) * factor.d * factor.rank;
#pragma unroll 4
    for (u32 at = threadIdx.x; at < rows * PIECES; at += BLOCK) {
        u32 k = at / PIECES, piece = at % PIECES;
        u64 row = start + k;
        bool inside = row < factor.d && piece * 8 < factor.rank;
        uint4 *place = to + piece_place(slot(k), piece);
        if (slice.v_vector) {
            cp_async_16(shared_address(place), inside ? values + row * factor.rank + piece * 8 : factor.values, inside ? 16 : 0);
        } else {
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                u32 j = piece * 8 + e;
                reinterpret_cast<u16 *>(place)[e] = row < factor.d && j < factor.rank ? values[row * factor.rank + j].bits : u16(0);
            }
        }
    }
}

// What a lane multiplies at once: of its two rows, eight elements a step of 32. ALIGNED: rows of x are whole multiples of 16 bytes.
template <bool ALIGNED, u32 STEPS> struct Inputs {
    uint4 x[STEPS][2];

    // From `place` on, of the tile whose first token is `first`.
    __device__ __forceinline__ void fetch(const SgmvLongParams &p, u32 first, u32 place) {
        u32 lane = threadIdx.x % 32, k = place + lane % 4 * 8;
        u32 token = first + threadIdx.x / 32 / SHARES * 16 + lane / 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            bool there = token + half * 8 < p.tokens;
            const element *row = p.x + u64(token + half * 8) * p.x_stride + k;
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u32 words[4] = {};
                if constexpr (ALIGNED) {
                    x[step][half] = make_uint4(0, 0, 0, 0);
                    if (there && k + step * 32 < p.d_in) {
                        x[step][half] = *reinterpret_cast<const uint4 *>(row + step * 32);
                    }
                } else {
#pragma unroll
                    for (u32 e = 0; e < 8; e++) {
                        if (there && k + step * 32 + e < p.d_in) {
                            words[e / 2] |= u32(row[step * 32 + e].bits) << e % 2 * 16;
                        }
                    }
                    x[step][half] = make_uint4(words[0], words[1], words[2], words[3]);
                }
            }
        }
    }
};

// The adapter of a tile's token `lane`, and the basis that each slice has for it; -1 where there is none.
template <u32 SLICES> struct Tokens {
    i32 adapter, basis[SLICES];

    __device__ __forceinline__ void fetch(const SgmvLongParams &p, u32 first) {
        u32 token = first + threadIdx.x % 32;
        adapter = token < p.tokens ? p.token_adapter[token] : -1;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) {
            const i32 *basis_of = p.slices[s].input.basis_of;
            basis[s] = adapter < 0 ? -1 : basis_of ? basis_of[adapter] : 0;
        }
    }
};

// From what the parts summed to h and the power of two taken out of it, of each token of a tile, for one slice.
__device__ __forceinline__ void finish(const SgmvLongSlice &slice, u32 first, i32 adapters, const f32 (&parts)[SHARES][TOKENS][PARTS_ROW]) {
    constexpr u32 ROWS_AT_ONCE = BLOCK / RANK;
    u32 j = threadIdx.x % RANK;
#pragma unroll
    for (u32 pass = 0; pass < TOKENS / ROWS_AT_ONCE; pass++) {
        u32 row = pass * ROWS_AT_ONCE + threadIdx.x / RANK;
        bool own = __shfl_sync(ALL_LANES, adapters, row) >= 0;
        f32 sum = 0.0f;
#pragma unroll
        for (u32 part = 0; part < SHARES; part++) {
            sum += parts[part][row][j];
        }
        // What lies there of a token without an adapter is not used.
        f32 greatest = fabsf(sum);
#pragma unroll
        for (u32 distance = RANK / 2; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
        }
        u32 exponent = exponent_below(greatest);
        if (own) {
            slice.shrunk[u64(first + row) * RANK + j] = narrow<element>(sum * inverse_power(exponent));
            if (j == 0) {
                slice.token_scale[first + row] = power(exponent);
            }
        }
    }
}

// Tiles [begin, end) of SLICES slices, x fetched once for all; of several, the input factors are one chunk each.
template <u32 SLICES, bool ALIGNED, u32 STEPS> __device__ __forceinline__ void shrink_tiles(const SgmvLongParams &p, u32 begin, u32 end) {
    constexpr u32 BATCH = 32 * STEPS;
    extern __shared__ __align__(128) u8 dynamic[];
    typedef f32 Parts[SHARES][TOKENS][PARTS_ROW];
    Parts *parts = reinterpret_cast<Parts *>(dynamic);
    uint4 *bases = reinterpret_cast<uint4 *>(dynamic + SLICES * sizeof(Parts));
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = warp / SHARES * 16 + lane / 4;
    // The rows of a chunk lie together in shared memory; a part takes a stretch of each, some batches long.
    const u32 chunk_rows = SLICES > 1 ? PART_ROWS * SHARES : p.chunk_rows, part_rows = chunk_rows / SHARES, from = warp % SHARES * part_rows;
    Tokens<SLICES> tokens;
    tokens.fetch(p, begin * TOKENS);
    grid_wait();
    // Not before: when the kernel after the next one starts, what this one reads is there.
    grid_launch_next();
    Inputs<ALIGNED, STEPS> inputs;
    inputs.fetch(p, begin * TOKENS, from);
    i32 held[SLICES];
    u32 held_start = ~0u, d_in = u32(p.d_in), inputs_end = SLICES > 1 ? chunk_rows : d_in;
#pragma unroll
    for (u32 s = 0; s < SLICES; s++) {
        held[s] = -1;
    }
    for (u32 tile = begin; tile < end; tile++) {
        u32 first = tile * TOKENS;
        u32 left[SLICES], any = 0;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) {
            left[s] = __ballot_sync(ALL_LANES, tokens.basis[s] >= 0);
            any |= left[s];
        }
        if (!any && tile + 1 < end) {
            inputs.fetch(p, first + TOKENS, from);
        }
        bool some = any != 0;
        // A round for each basis that tokens of the tile have: mostly one.
        while (any) {
            i32 current[SLICES];
            f32 sum[SLICES][RANK / 8][4];
            any = 0;
#pragma unroll
            for (u32 s = 0; s < SLICES; s++) {
                current[s] = __shfl_sync(ALL_LANES, tokens.basis[s], left[s] ? __ffs(left[s]) - 1 : 0);
                current[s] = left[s] ? current[s] : -1;
                left[s] &= ~__ballot_sync(ALL_LANES, tokens.basis[s] == current[s]);
                any |= left[s];
#pragma unroll
                for (u32 i = 0; i < RANK / 2; i++) {
                    sum[s][i / 4][i % 4] = 0.0f;
                }
            }
            for (u32 start = 0; start < inputs_end; start += chunk_rows) {
                bool here = held_start == start;
#pragma unroll
                for (u32 s = 0; s < SLICES; s++) {
                    here = here && (current[s] < 0 || current[s] == held[s]);
                }
                if (!here) {
                    __syncthreads();
#pragma unroll
                    for (u32 s = 0; s < SLICES; s++) {
                        if (current[s] >= 0) {
                            fetch_basis(p.slices[s], current[s], start, chunk_rows, bases + s * chunk_rows * PIECES);
                        }
                        held[s] = current[s];
                    }
                    held_start = start;
                    cp_async_commit();
                    cp_async_wait<0>();
                    __syncthreads();
                }
#pragma unroll 1
                for (u32 batch = 0; batch < part_rows; batch += BATCH) {
                    Inputs<ALIGNED, STEPS> coming = {};
                    bool last = batch + BATCH >= part_rows;
                    u32 next = !last ? start + batch + BATCH : start + chunk_rows < inputs_end ? start + chunk_rows : 0;
                    bool turn = next == 0 && !any;
                    if (!turn || tile + 1 < end) {
                        coming.fetch(p, turn ? first + TOKENS : first, next + from);
                    }
#pragma unroll
                    for (u32 step = 0; step < STEPS; step++) {
                        u32 place = from + batch + step * 32;
                        if (start + place >= d_in) {
                            break;
                        }
                        const uint4 &low = inputs.x[step][0], &high = inputs.x[step][1];
                        const u32 words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
                        for (u32 k = 0; k < 2; k++) {
                            const u32 a[4] = {words[0][2 * k], words[1][2 * k], words[0][2 * k + 1], words[1][2 * k + 1]};
#pragma unroll
                            for (u32 s = 0; s < SLICES; s++) {
#pragma unroll
                                for (u32 n = 0; n < PIECES; n += 2) {
                                    u32 both[4];
                                    const uint4 *at = bases + s * chunk_rows * PIECES + piece_place(place + k * 16 + lane % 16, n + lane / 16);
                                    ldmatrix_x4_transposed(both, shared_address(at));
                                    const u32 one[2] = {both[0], both[1]}, two[2] = {both[2], both[3]};
                                    mma_m16n8k16<element>(sum[s][n], a, one);
                                    mma_m16n8k16<element>(sum[s][n + 1], a, two);
                                }
                            }
                        }
                    }
                    inputs = coming;
                }
            }
#pragma unroll
            for (u32 s = 0; s < SLICES; s++) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    u32 row = own + half * 8;
                    i32 basis = __shfl_sync(ALL_LANES, tokens.basis[s], row);
                    if (basis >= 0 && basis == current[s]) {
#pragma unroll
                        for (u32 n = 0; n < RANK / 8; n++) {
                            f32 *to = &parts[s][warp % SHARES][row][n * 8 + lane % 4 * 2];
                            *reinterpret_cast<float2 *>(to) = make_float2(sum[s][n][2 * half], sum[s][n][2 * half + 1]);
                        }
                    }
                }
            }
        }
        Tokens<SLICES> coming;
        coming.fetch(p, first + TOKENS);
        if (some) {
            __syncthreads();
#pragma unroll 1
            for (u32 s = 0; s < SLICES; s++) {
                finish(p.slices[s], first, tokens.adapter, parts[s]);
            }
            // The next tile takes this place.
            __syncthreads();
        }
        tokens = coming;
    }
}
