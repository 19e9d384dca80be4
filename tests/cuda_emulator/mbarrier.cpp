// mbarriers: a phase ends when all arrivals, and all bytes that were announced, have come.

#include "grid.h"

#include <cstdio>
#include <cstring>

// What stands in the 8 bytes.
struct Word {
    unsigned expected, missing;   // arrivals
    int bytes;                    // announced and not yet come; less than none where they come before they are announced
    unsigned phase;

    static const uint64_t MARK = 0x5a;   // of one that was initialised: NaN or a number would hardly be

    uint64_t pack() const { return expected | uint64_t(missing) << 16 | uint64_t(bytes + (1 << 22)) << 32 | uint64_t(phase) << 55 | MARK << 56; }

    static bool unpack(uint64_t word, Word &to) {
        to = {unsigned(word & 0xffff), unsigned(word >> 16 & 0xffff), int(word >> 32 & 0x7fffff) - (1 << 22), unsigned(word >> 55 & 1)};
        return word >> 56 == MARK;
    }
};

std::string mbarrier_text(uint64_t packed) {
    Word word;
    char text[120] = "not initialised";
    if (Word::unpack(packed, word)) {
        snprintf(text, sizeof text, "in the phase of parity %u, of which %u of %u arrivals and %d bytes are missing", word.phase, word.missing, word.expected,
                 word.bytes);
    }
    return text;
}

static uint64_t &packed_at(Block &block, unsigned barrier) { return *(uint64_t *)shared_at(block, barrier, 8, 8); }

static Word word_at(Block &block, unsigned barrier) {
    Word word;
    if (!Word::unpack(packed_at(block, barrier), word)) {
        emulated_fail("the mbarrier at %#x is not initialised", barrier);
    }
    return word;
}

// Stores it, with the next phase begun where this one has ended.
static void store(Block &block, unsigned barrier, Word word) {
    bool ends = word.missing == 0 && word.bytes == 0;
    if (ends) {
        word.missing = word.expected;
        word.phase ^= 1;
    }
    packed_at(block, barrier) = word.pack();
    if (!ends) {
        return;
    }
    auto &waiting = block.at_mbarriers;
    for (size_t i = 0; i < waiting.size();) {
        if (waiting[i]->awaited == barrier && waiting[i]->value != word.phase) {
            wake(*waiting[i]);
            waiting.erase(waiting.begin() + i);
        } else {
            i++;
        }
    }
}

extern "C" void emulated_mbarrier_init(unsigned barrier, unsigned arrivals) {
    if (arrivals == 0 || arrivals > 0xffff) {
        emulated_fail("an mbarrier of %u arrivals", arrivals);
    }
    packed_at(*self().block, barrier) = Word{arrivals, arrivals, 0, 0}.pack();
}

extern "C" void emulated_mbarrier_arrive(unsigned barrier, unsigned bytes) {
    Block &block = block_of(barrier);
    Word word = word_at(block, within(barrier));
    if (word.missing == 0) {
        emulated_fail("one arrival more than the mbarrier at %#x counts (%s)", barrier, mbarrier_text(word.pack()).c_str());
    }
    word.missing--;
    word.bytes += int(bytes);
    if (word.bytes >= 1 << 20) {
        emulated_fail("the mbarrier at %#x awaits more than 2^20 - 1 bytes", barrier);
    }
    store(block, within(barrier), word);
}

void mbarrier_complete(Block &block, unsigned barrier, unsigned bytes) {
    Word word = word_at(block, barrier);
    word.bytes -= int(bytes);
    store(block, barrier, word);
}

extern "C" void emulated_mbarrier_wait(unsigned barrier, unsigned parity) {
    Fibre &fibre = self();
    if (parity > 1) {
        emulated_fail("a parity of %u", parity);
    }
    if (word_at(*fibre.block, barrier).phase == parity && !skips_wait(fibre)) {
        fibre.awaited = barrier;
        fibre.value = parity;
        fibre.block->at_mbarriers.push_back(&fibre);
        leave(State::AT_MBARRIER);
    }
}
