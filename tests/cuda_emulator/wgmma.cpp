// Products of warp groups (wgmma). A product is done when it is waited for, from what its operands hold then; until then its
// sums are no numbers.

#include "grid.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

static const unsigned GROUP = 128, ROWS = 64, DEPTH = 16;

// What the threads of a warp group have in the same registers, as a matrix.
struct Sums {
    float *d[GROUP] = {};
    unsigned columns, under_way = 0;
    std::vector<float> tile;   // [ROWS][columns]
};

struct Product {
    EmulatedWgmma how;
    unsigned group;
    std::shared_ptr<Sums> sums;
    unsigned a[GROUP][4];
};

struct Products {
    unsigned done = 0;   // before the first of those here
    std::vector<std::unique_ptr<Product>> all;
    std::vector<std::shared_ptr<Sums>> sums;
};

static unsigned lane_of(const Fibre &fibre) { return fibre.place.thread.x % GROUP; }
static Group &group_of(const Fibre &fibre) { return fibre.block->groups[fibre.place.thread.x / GROUP]; }

// Of D, a thread has two rows, and of each eight columns two neighbours.
template <class Each> static void each_sum(unsigned thread, unsigned columns, Each each) {
    unsigned row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (unsigned i = 0; i < columns / 2; i++) {
        each(i, (row + i / 2 % 2 * 8) * columns + i / 4 * 8 + column + i % 2);
    }
}

// The thread's share goes over to the product.
static void enter(Sums &sums, unsigned lane, const EmulatedWgmma &how) {
    if (sums.d[lane] == how.d) {
        return;
    }
    if (sums.d[lane]) {
        emulated_fail("wgmma: threads of a warp group disagree about which sums are the same");
    }
    sums.d[lane] = how.d;
    each_sum(lane, sums.columns, [&](unsigned i, unsigned place) {
        if (how.accumulate) {
            sums.tile[place] = how.d[i];
        }
        how.d[i] = NAN;
    });
}

extern "C" void emulated_wgmma(const EmulatedWgmma &how) {
    Fibre &fibre = self();
    Group &group = group_of(fibre);
    unsigned lane = lane_of(fibre);
    if (!group.products) {
        group.products.reset(new Products());
    }
    Products &products = *group.products;
    unsigned at = fibre.products++ - products.done;
    if (at == products.all.size()) {
        std::shared_ptr<Sums> sums;
        for (const auto &known : products.sums) {
            if (known->d[lane] == how.d) {
                sums = known;
            }
        }
        if (!sums) {
            sums.reset(new Sums());
            sums->columns = how.columns;
            sums->tile.resize(ROWS * how.columns);
            products.sums.push_back(sums);
        }
        sums->under_way++;
        products.all.emplace_back(new Product{how, fibre.product_groups, sums, {}});
    }
    Product &product = *products.all[at];
    const EmulatedWgmma &first = product.how;
    if (first.a_tile != how.a_tile || first.b_tile != how.b_tile || first.columns != how.columns || first.accumulate != how.accumulate ||
        product.group != fibre.product_groups) {
        emulated_fail("wgmma: threads of a warp group ask for different products");
    }
    if (how.a) {
        memcpy(product.a[lane], how.a, 16);
    }
    enter(*product.sums, lane, how);
}

static float widened(unsigned short bits, bool bf16) {
    unsigned wide = unsigned(bits) << 16;
    float value;
    return bf16 ? memcpy(&value, &wide, 4), value : _cvtsh_ss(bits);
}

static void widen_eight(const char *from, bool bf16, float *to) {
    __m128i bits = _mm_loadu_si128((const __m128i *)from);
    __m256 wide = bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)) : _mm256_cvtph_ps(bits);
    _mm256_storeu_ps(to, wide);
}

// Calls with the index of the other axis, the index of K, and eight values along the contiguous axis, for all of an operand.
template <class Each> static void each_eight(Block &block, uint64_t descriptor, bool across, unsigned lines, bool bf16, Each each) {
    unsigned start = unsigned(descriptor & 0x3fff) << 4, leading = unsigned(descriptor >> 16 & 0x3fff) << 4;
    unsigned stride = unsigned(descriptor >> 32 & 0x3fff) << 4, kind = unsigned(descriptor >> 62);
    // Bytes of a row of the pattern, and the bits that move.
    unsigned width = kind == 1 ? 128 : kind == 2 ? 64 : kind == 3 ? 32 : 16, mask = width / 16 - 1;
    if ((descriptor >> 46 & 0xffff) || (descriptor & 0xc000c000)) {
        emulated_fail("wgmma: a descriptor %#llx with bits that are not emulated", (unsigned long long)descriptor);
    }
    if (mask && (start >> 7 & mask)) {
        emulated_fail("wgmma: a swizzled tile starts at %#x, inside a pattern", start);
    }
    if (across && !mask) {
        emulated_fail("wgmma: a tile whose other axis is contiguous, without swizzle: not emulated");
    }
    float eight[8];
    auto read = [&](unsigned address) {
        address ^= (address >> 7 & mask) << 4;
        widen_eight(shared_at(block, address, 16, 16), bf16, eight);
    };
    for (unsigned outer = 0; outer < (across ? DEPTH : lines); outer++) {
        for (unsigned inner = 0; inner < (across ? lines : DEPTH) / 8; inner++) {
            unsigned rows = outer / 8 * stride + outer % 8 * width;
            unsigned within = mask ? inner % (width / 16) * 16 + inner / (width / 16) * leading : inner * leading;
            // K inside the pattern is part of the start.
            read(start + rows + (across || !mask ? within : inner * 16));
            each(across ? inner * 8 : outer, across ? outer : inner * 8, eight);
        }
    }
}

typedef float Eight __attribute__((vector_size(32), aligned(4)));

static void multiply(Block &block, Product &product) {
    const EmulatedWgmma &how = product.how;
    unsigned columns = how.columns;
    Sums &sums = *product.sums;
    static thread_local float a[ROWS][DEPTH], b[DEPTH][256];
    auto into_a = [&](unsigned line, unsigned k, const float *eight) {
        for (unsigned i = 0; i < 8; i++) {
            (how.a_across ? a[line + i][k] : a[line][k + i]) = eight[i];
        }
    };
    auto into_b = [&](unsigned line, unsigned k, const float *eight) {
        for (unsigned i = 0; i < 8; i++) {
            (how.b_across ? b[k][line + i] : b[k + i][line]) = eight[i];
        }
    };
    if (how.a) {
        for (unsigned thread = 0; thread < GROUP; thread++) {
            for (unsigned i = 0; i < 8; i++) {
                unsigned row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, k = i / 4 * 8 + thread % 4 * 2 + i % 2;
                a[row][k] = widened((unsigned short)(product.a[thread][i / 2] >> i % 2 * 16), how.bf16);
            }
        }
    } else {
        each_eight(block, how.a_tile, how.a_across, ROWS, how.bf16, into_a);
    }
    each_eight(block, how.b_tile, how.b_across, columns, how.bf16, into_b);
    for (unsigned row = 0; row < ROWS; row++) {
        for (unsigned column = 0; column < columns; column += 8) {
            Eight &place = *(Eight *)&sums.tile[row * columns + column], sum = how.accumulate ? place : Eight{};
            for (unsigned k = 0; k < DEPTH; k++) {
                sum += a[row][k] * *(const Eight *)&b[k][column];
            }
            place = sum;
        }
    }
}

extern "C" void emulated_wgmma_commit() { self().product_groups++; }

// All threads of the warp group have come: does the products of the groups before `end`, and gives out sums that are complete.
static void finish(Fibre &fibre, unsigned end) {
    if (!group_of(fibre).products) {
        return;
    }
    Products &products = *group_of(fibre).products;
    size_t count = 0;
    for (; count < products.all.size() && products.all[count]->group < end; count++) {
        multiply(*fibre.block, *products.all[count]);
        products.all[count]->sums->under_way--;
    }
    products.done += unsigned(count);
    products.all.erase(products.all.begin(), products.all.begin() + count);
    for (size_t i = 0; i < products.sums.size();) {
        Sums &sums = *products.sums[i];
        if (sums.under_way > 0) {
            i++;
            continue;
        }
        for (unsigned thread = 0; thread < GROUP; thread++) {
            float *to = sums.d[thread];
            each_sum(thread, to ? sums.columns : 0, [&](unsigned place, unsigned from) { to[place] = sums.tile[from]; });
        }
        products.sums.erase(products.sums.begin() + i);
    }
}

extern "C" void emulated_wgmma_wait(unsigned pending) {
    Fibre &fibre = self();
    Group &group = group_of(fibre);
    if (skips_wait(fibre) || fibre.product_groups < pending) {
        return;
    }
    fibre.value = fibre.product_groups - pending;
    if (++group.waiting < group.live) {
        leave(State::AT_GROUP);
        return;
    }
    group.waiting = 0;
    if (group.live != GROUP) {
        emulated_fail("wgmma: a warp group of %u threads", group.live);
    }
    for (Fibre &other : fibre.block->fibres) {
        if (other.state == State::AT_GROUP && &group_of(other) == &group) {
            if (other.value != fibre.value || other.products != fibre.products) {
                emulated_fail("wgmma: threads of a warp group wait for different products");
            }
        }
    }
    finish(fibre, fibre.value);
    for (Fibre &other : fibre.block->fibres) {
        if (other.state == State::AT_GROUP && &group_of(other) == &group) {
            wake(other);
        }
    }
}

bool has_products(const Fibre &fibre) {
    const Group &group = group_of(fibre);
    return group.products && !group.products->all.empty();
}
