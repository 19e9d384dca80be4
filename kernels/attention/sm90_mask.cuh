// Which of a step's scores the rows of a warp group see.
#pragma once

#include "attention/sm90.cuh"

// Where all rows see the first of a step's keys: those from a row's end on become -infinity.
__device__ __forceinline__ void hide_behind(Scores &s, const Rows &rows, const ShortMask &mask, i32 begin) {
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

// Scores that a row does not see become -infinity, in steps where there are any.
template <Lists LISTED> __device__ __forceinline__ void hide_scores(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, Keys keys) {
    i32 begin = keys.first;
    if (keys.kind == -1 && begin >= rows.all_first && begin + BLOCK_KEYS <= rows.all_end) {
        return;
    }
    if (!LISTED && begin >= rows.all_first) {
        hide_behind(s, rows, mask, begin);
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 query = rows.row[r], low = mask.first(query) - begin, high = mask.end(query) - begin;
        if (LISTED && keys.kind == -2 && high > query + mask.offset + 1 - begin) {
            high = query + mask.offset + 1 - begin;
        }
        u32 bits[BLOCK_KEYS / 32];
#pragma unroll
        for (int w = 0; LISTED && w < BLOCK_KEYS / 32; w++) {
            bits[w] = keys.kind >= 0 ? block_bits(p)[(u64(keys.kind) * BLOCK_ROWS + u32(query) % BLOCK_ROWS) * (BLOCK_KEYS / 32) + w] : ~0u;
        }
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 column = i32(threadIdx.x % 4 * 2) + c, key = i * 8 + column;
                bool seen = key >= low && key < high && (!LISTED || bits[i / 4] >> (i % 4 * 8 + column) & 1);
                f32 &score = s[4 * i + 2 * r + c];
                score = seen ? score : -infinity();
            }
        }
    }
}

// The same of two blocks of 64.
__device__ __forceinline__ void hide_pair(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, const GroupKeys &keys) {
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
