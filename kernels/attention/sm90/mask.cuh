// Which of a step's scores the rows of a warpgroup see.
#pragma once

#include "attention/sm90/tile.cuh"

// Where all rows see the first of a step's keys: those from a row's end on become -infinity.
__device__ __forceinline__ void mask_behind(Scores &s, const Rows &rows, const ShortMask &mask, i32 begin) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 high = mask.end(rows.row[r]) - begin - i32(threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                f32 &score = s[4 * i + 2 * r + c];
                score = i * 8 + c < high ? score : -infinity();
            }
        }
    }
}

// The same of what comes before the first key that a row sees.
__device__ __forceinline__ void mask_before(Scores &s, const Rows &rows, const ShortMask &mask, i32 begin) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 low = mask.first(rows.row[r]) - begin - i32(threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                f32 &score = s[4 * i + 2 * r + c];
                score = i * 8 + c >= low ? score : -infinity();
            }
        }
    }
}

// Of 32 keys the first `count`, which may be negative, or more.
__device__ __forceinline__ u32 first_keys(i32 count) { return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1; }

// Those that a row does not see of a listed block: by words of 32 keys, for which few registers are enough.
__device__ __forceinline__ void mask_listed(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, Keys keys) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 query = rows.row[r], low = mask.first(query) - keys.first, high = mask.end(query) - keys.first;
        if (keys.kind == -2 && high > query + mask.offset + 1 - keys.first) {
            high = query + mask.offset + 1 - keys.first;
        }
#pragma unroll
        for (int w = 0; w < BLOCK_KEYS / 32; w++) {
            u32 seen = first_keys(high - w * 32) & ~first_keys(low - w * 32);
            if (keys.kind >= 0) {
                seen &= block_bits(p)[(u64(keys.kind) * LISTED_BLOCK + u32(query) % LISTED_BLOCK) * (LISTED_BLOCK / 32) + w];
            }
            seen >>= threadIdx.x % 4 * 2;
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    f32 &score = s[16 * w + 4 * i + 2 * r + c];
                    score = seen >> (i * 8 + c) & 1 ? score : -infinity();
                }
            }
        }
    }
}

// Scores that a row does not see become -infinity, in steps where there are any.
template <Lists LISTED> __device__ __forceinline__ void mask_scores(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, Keys keys) {
    if (keys.kind == -1 && keys.first >= rows.all_first && keys.first + BLOCK_KEYS <= rows.all_end) {
        return;
    }
    if constexpr (LISTED) {
        mask_listed(p, s, rows, mask, keys);
    } else {
        if (keys.first < rows.all_first) {
            mask_before(s, rows, mask, keys.first);
        }
        mask_behind(s, rows, mask, keys.first);
    }
}

// The same of two blocks of 64.
__device__ __forceinline__ void mask_pair(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, const GroupKeys &keys) {
    constexpr i32 HALF = BLOCK_KEYS / 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        i32 begin = keys.first[half], kind = keys.kind[half];
        if (kind == -1 && begin >= rows.all_first && begin + HALF <= rows.all_end) {
            continue;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i32 query = rows.row[r], low = mask.first(query) - begin, high = kind == ABSENT ? 0 : mask.end(query) - begin;
            if (kind == -2 && high > query + mask.offset + 1 - begin) {
                high = query + mask.offset + 1 - begin;
            }
            u32 bits[HALF / 32];
#pragma unroll
            for (int w = 0; w < HALF / 32; w++) {
                bits[w] = kind >= 0 ? block_bits(p)[(u64(kind) * HALF + u32(query) % HALF) * (HALF / 32) + w] : ~0u;
            }
#pragma unroll
            for (int i = 0; i < HALF / 8; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    i32 column = i32(threadIdx.x % 4 * 2) + c, key = i * 8 + column;
                    bool seen = key >= low && key < high && (bits[i / 4] >> (i % 4 * 8 + column) & 1);
                    f32 &score = s[4 * (half * HALF / 8 + i) + 2 * r + c];
                    score = seen ? score : -infinity();
                }
            }
        }
    }
}
