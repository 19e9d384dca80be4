// A token for each row of logits, one row a block. A token is ranked by a key, which grows with its logit and is 0 where it is never drawn.
// Thresholds become a cut: of the tokens by falling key, and by rising id where keys are equal, those up to the cut stay. A cut is found digit by
// digit, from counts or weights by digit that are whole numbers: their sums do not depend on the order of threads.

#include "tile/reduce.cuh"
#include "sample/params.cuh"
#include "ptx/grid.cuh"

constexpr int THREADS = 512;
// Logits that a thread reads at once.
constexpr u32 EACH = 16 / sizeof(element);
constexpr u32 BINS = 256, NO_ID = 0xffffffffu;
// The weight of the highest logit: weights are parts of it, to 31 bits.
constexpr u32 ONE = 1u << 31;
// More than the greatest noise, which is -ln(2^-33).
constexpr f32 MOST_NOISE = 22.9f;

// The words of a row's parameters.
struct Wishes {
    f32 temperature, top_p, min_p;
    u32 top_k, seed[2], position, reserved;
};

struct Cut {
    u32 key, id;

    __device__ __forceinline__ bool keeps(u32 other, u32 other_id) const { return other > key || (other == key && other_id <= id); }
};

// Keys compare as logits do, and zeros of both signs are equal. What is no number, or minus infinity, has none.
__device__ __forceinline__ u32 key_of(f32 logit) {
    u32 bits = __float_as_uint(logit);
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u) {
        return 0;
    }
    bits = bits == 0x80000000u ? 0 : bits;
    return bits >> 31 ? ~bits : bits ^ 0x80000000u;
}

__device__ __forceinline__ f32 logit_of(u32 key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key); }

// The greatest of every thread's values, given to all.
__device__ __forceinline__ u32 block_max(u32 value, u32 *scratch) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && scratch[threadIdx.x + half] > scratch[threadIdx.x]) {
            scratch[threadIdx.x] = scratch[threadIdx.x + half];
        }
        __syncthreads();
    }
    u32 most = scratch[0];
    __syncthreads();
    return most;
}

// Philox 4x32 with 10 rounds: the random words of four tokens.
__device__ __forceinline__ void philox(u32 four, u32 position, const u32 (&seed)[2], u32 (&words)[4]) {
    u32 a = four, b = position, c = 0, d = 0, left = seed[0], right = seed[1];
    for (int round = 0; round < 10; ++round) {
        u64 first = u64(a) * 0xd2511f53u, second = u64(c) * 0xcd9e8d57u;
        a = u32(second >> 32) ^ b ^ left;
        b = u32(second);
        c = u32(first >> 32) ^ d ^ right;
        d = u32(first);
        left += 0x9e3779b9u;
        right += 0xbb67ae85u;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

// Gumbel noise of a word: -ln(-ln(1 - u)), u = (word + 1/2) / 2^32.
__device__ __forceinline__ f32 noise(u32 word) {
    constexpr f32 UNIT = 2.3283064365386963e-10f;
    // A small u is exact, and so is 1 - u by the word's complement.
    f32 e = word >> 31 ? -logf((f32(~word) + 0.5f) * UNIT) : -log1pf(-(f32(word) + 0.5f) * UNIT);
    return -logf(e);
}

// A row, and what it keeps so far.
struct Row {
    const element *logits;
    const u32 *mask;
    u32 vocabulary, highest_key;
    f32 highest, temperature, min_p;
    Cut cut;

    __device__ __forceinline__ bool ruled_out(u32 id) const { return mask && (mask[id / 32] >> id % 32 & 1) == 0; }

    __device__ __forceinline__ u32 key(u32 id) const { return ruled_out(id) ? 0 : key_of(widen(logits[id])); }

    // The probability of a token as a part of the highest one.
    __device__ __forceinline__ f32 part(u32 key) const { return key == highest_key ? 1.0f : expf((logit_of(key) - highest) / temperature); }

    __device__ __forceinline__ bool keeps(u32 key, u32 id) const {
        return key != 0 && cut.keeps(key, id) && (min_p <= 0.0f || key == highest_key || part(key) >= min_p);
    }

    __device__ __forceinline__ u32 weight(u32 key, u32 id) const { return keeps(key, id) ? u32(part(key) * f32(ONE)) : 0; }
};

// What a thread has seen of a row: of tokens that may be drawn the greatest key and the lowest id that has it, and of all logits the greatest one's key
// and the sum of their exponentials over its own.
struct Seen {
    u32 greatest, first, any;
    f32 sum;

    __device__ __forceinline__ void take(const Row &row, u32 id, u32 key) {
        if (key > greatest && !row.ruled_out(id)) {
            greatest = key;
            first = id;
        }
        sum += key == 0 ? 0.0f : expf(logit_of(key) - logit_of(any));
    }

    __device__ __forceinline__ void reach(u32 key) {
        if (key > any) {
            sum = any == 0 ? 0.0f : sum * expf(logit_of(any) - logit_of(key));
            any = key;
        }
    }

    // Tokens by rising id, as many at once wherever the row starts: what is summed in which order does not depend on that.
    __device__ __forceinline__ void read(const Row &row) {
        struct alignas(16) Line {
            element values[EACH];
        };
        bool whole = u64(row.logits) % 16 == 0;
        u32 lines = row.vocabulary / EACH;
#pragma unroll 4
        for (u32 at = threadIdx.x; at < lines; at += THREADS) {
            Line line;
            if (whole) {
                line = reinterpret_cast<const Line *>(row.logits)[at];
            } else {
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    line.values[e] = row.logits[at * EACH + e];
                }
            }
            u32 keys[EACH], most = 0;
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                keys[e] = key_of(widen(line.values[e]));
                most = keys[e] > most ? keys[e] : most;
            }
            reach(most);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                take(row, at * EACH + e, keys[e]);
            }
        }
        for (u32 id = lines * EACH + threadIdx.x; id < row.vocabulary; id += THREADS) {
            u32 key = key_of(widen(row.logits[id]));
            reach(key);
            take(row, id, key);
        }
    }
};

// Sums of 64 bits in two words: shared memory adds words by itself, and longer numbers by trying again and again.
struct Bins {
    u32 low[BINS], high[BINS];

    __device__ __forceinline__ void clear() {
        for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) {
            low[bin] = high[bin] = 0;
        }
        __syncthreads();
    }

    __device__ __forceinline__ void add(u32 bin, u32 weight) {
        u32 before = atomicAdd(&low[bin], weight);
        if (before + weight < before) {
            atomicAdd(&high[bin], 1u);
        }
    }

    __device__ __forceinline__ u64 operator[](u32 bin) const { return u64(high[bin]) << 32 | low[bin]; }
};

// The weight of all that stays.
__device__ __forceinline__ u64 whole_weight(const Row &row, Bins &bins) {
    bins.clear();
    for (u32 id = threadIdx.x; id < row.vocabulary; id += THREADS) {
        u32 weight = row.weight(row.key(id), id);
        if (weight != 0) {
            bins.add(threadIdx.x % BINS, weight);
        }
    }
    __syncthreads();
    u64 whole = 0;
    for (u32 bin = 0; bin < BINS; ++bin) {
        whole += bins[bin];
    }
    __syncthreads();
    return whole;
}

// The first place at which what stays weighs `wanted`, which is above 0; each token counts 1 where `count` says so.
__device__ __forceinline__ Cut find_cut(const Row &row, u64 wanted, bool count, Bins &bins) {
    u32 key = 0, fixed = 0;
    u64 ties = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
        bins.clear();
#pragma unroll 2
        for (u32 id = threadIdx.x; id < row.vocabulary; id += THREADS) {
            u32 other = row.key(id);
            if (other != 0 && (other & fixed) == key) {
                u32 weight = count ? 1 : row.weight(other, id);
                if (weight != 0) {
                    bins.add(other >> shift & 255, weight);
                }
            }
        }
        __syncthreads();
        u32 digit = BINS - 1;
        for (; digit > 0 && bins[digit] < wanted; --digit) {
            wanted -= bins[digit];
        }
        ties = bins[digit];
        __syncthreads();
        key |= digit << shift;
        fixed |= 255u << shift;
    }
    u32 each = count ? 1 : u32(row.part(key) * f32(ONE));
    if (wanted >= ties || each == 0) {
        return {key, NO_ID};
    }
    // Of equal keys the lowest ids stay, as many as are needed.
    u64 needed = (wanted + each - 1) / each;
    u32 last = 0, known = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
        bins.clear();
#pragma unroll 1
        for (u32 id = threadIdx.x; id < row.vocabulary; id += THREADS) {
            if ((id & known) == last && row.key(id) == key && (count || row.keeps(key, id))) {
                bins.add(id >> shift & 255, 1);
            }
        }
        __syncthreads();
        u32 digit = 0;
        for (; digit < BINS - 1 && bins[digit] < needed; ++digit) {
            needed -= bins[digit];
        }
        __syncthreads();
        last |= digit << shift;
        known |= 255u << shift;
    }
    return {key, last};
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample_simt(const SampleParams p) {
    __shared__ Bins bins;
    __shared__ u32 scratch[THREADS];
    __shared__ f32 sums[THREADS];
    grid_launch_next();
    grid_wait();
    for (u64 number = blockIdx.x; number < p.rows; number += gridDim.x) {
        Wishes wishes = *(const Wishes *)(p.wishes + number * (sizeof(Wishes) / 4));
        Row row = {p.logits + number * p.stride, p.mask ? p.mask + number * p.words : nullptr, u32(p.vocabulary), 0, 0, wishes.temperature, wishes.min_p, {0, NO_ID}};

        Seen seen = {0, NO_ID, 0, 0.0f};
        seen.read(row);
        row.highest_key = block_max(seen.greatest, scratch);
        u32 highest_of_all = block_max(seen.any, scratch);
        if (row.highest_key == 0) {
            if (threadIdx.x == 0) {
                p.ids[number] = -1;
                p.log_probability[number] = -infinity();
            }
            continue;
        }
        row.highest = logit_of(row.highest_key);
        f32 sum = block_sum<THREADS>(seen.any == 0 ? 0.0f : seen.sum * expf(logit_of(seen.any) - logit_of(highest_of_all)), sums);

        bool draws = wishes.temperature > 0.0f;
        if (draws) {
            u32 most = wishes.min_p > 1.0f ? 1 : wishes.top_k;
            if (most > 0 && most < row.vocabulary) {
                row.cut = find_cut(row, most, true, bins);
            }
            if (wishes.top_p < 1.0f) {
                u64 wanted = u64(f64(wishes.top_p) * f64(whole_weight(row, bins)));
                Cut cut = find_cut(row, wanted > 0 && wishes.top_p > 0.0f ? wanted : 1, false, bins);
                // Both are places in one order: the earlier one holds.
                if (row.cut.keeps(cut.key, cut.id)) {
                    row.cut = cut;
                }
            }
        }

        // The best of each thread, then of all: the highest score, of equal ones the lowest id. What is not drawn is known.
        u32 best = draws ? 0 : seen.greatest, winner = draws ? NO_ID : seen.first;
        for (u32 four = threadIdx.x; draws && four <= (row.vocabulary - 1) / 4; four += THREADS) {
            u32 words[4];
            bool drawn = false;
#pragma unroll
            for (u32 at = 0; at < 4; ++at) {
                u32 id = 4 * four + at, rank = id < row.vocabulary ? row.key(id) : 0;
                if (rank == 0) {
                    continue;
                }
                f32 scaled = logit_of(rank) / row.temperature;
                // With no noise would it come near.
                if (best != 0 && scaled + MOST_NOISE < logit_of(best)) {
                    continue;
                }
                if (!row.keeps(rank, id)) {
                    continue;
                }
                if (!drawn) {
                    philox(four, wishes.position, wishes.seed, words);
                    drawn = true;
                }
                rank = key_of(scaled + noise(words[at]));
                rank = rank > 1 ? rank : 1;
                if (rank > best) {
                    best = rank;
                    winner = id;
                }
            }
        }
        u32 first = block_max(best, scratch);
        u32 token = NO_ID - block_max(best == first ? NO_ID - winner : 0, scratch);
        if (threadIdx.x == 0) {
            p.ids[number] = i32(token);
            p.log_probability[number] = widen(row.logits[token]) - logit_of(highest_of_all) - logf(sum);
        }
    }
}
