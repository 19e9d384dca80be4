// A tensor as cuTensorMapEncodeTiled describes it, and the box that one copy moves.
#pragma once

#include <cstdint>

typedef int64_t i64;

struct TensorMap {
    static const uint32_t MARK = 0x7e4507ed;
    uint32_t mark, element, axes, swizzle;   // bytes of an element; mask of the bits of an address that move
    uint64_t start, dims[5], strides[4];     // strides in bytes, of each axis but the first
    uint16_t box[5];

    static bool read(const void *opaque, TensorMap &to);
    unsigned box_bytes() const;
    // The parts of the box's rows that lie inside the tensor: where each lies in the box, in memory, and its bytes. False as soon as `each` is.
    template <class Each> bool each_row(const int *place, Each each) const;
    // The box from `place` on, zeros outside the tensor. False where it reads memory that is not allocated, if asked to look.
    bool read_box(const int *place, char *to, bool look) const;
    // What of the box lies inside the tensor. False where that is not allocated.
    bool write_box(const int *place, const char *from) const;
};
static_assert(sizeof(TensorMap) <= 128, "it takes the place of the driver's own");
