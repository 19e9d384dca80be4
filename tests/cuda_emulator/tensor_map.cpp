// Tensor maps: what the driver refuses to describe, and what TMA reads by one.

#include "tensor_map.h"
#include "grid.h"

#include <cstring>

bool TensorMap::read(const void *opaque, TensorMap &to) {
    memcpy(&to, opaque, sizeof to);
    return to.mark == MARK;
}

unsigned TensorMap::box_bytes() const {
    unsigned bytes = element;
    for (unsigned axis = 0; axis < axes; axis++) {
        bytes *= box[axis];
    }
    return bytes;
}

template <class Each> bool TensorMap::each_row(const int *place, Each each) const {
    unsigned row = box[0] * element, rows = box_bytes() / row;
    i64 first = place[0] < 0 ? -i64(place[0]) : 0, last = i64(dims[0]) - place[0] < box[0] ? i64(dims[0]) - place[0] : box[0];
    for (unsigned number = 0; number < rows && first < last; number++) {
        uint64_t at_row = start;
        unsigned rest = number;
        bool there = true;
        for (unsigned axis = 1; axis < axes; axis++) {
            i64 at = i64(place[axis]) + rest % box[axis];
            rest /= box[axis];
            there = there && at >= 0 && at < i64(dims[axis]);
            at_row += uint64_t(at) * strides[axis - 1];
        }
        if (there && !each(number * row + first * element, at_row + uint64_t(i64(place[0]) + first) * element, size_t(last - first) * element)) {
            return false;
        }
    }
    return true;
}

bool TensorMap::read_box(const int *place, char *to, bool look) const {
    memset(to, 0, box_bytes());
    return each_row(place, [&](size_t inside, uint64_t from, size_t bytes) {
        if (look && !emulated_allocated(from, bytes)) {
            return false;
        }
        memcpy(to + inside, (const void *)from, bytes);
        return true;
    });
}

bool TensorMap::write_box(const int *place, const char *from) const {
    return each_row(place, [&](size_t inside, uint64_t to, size_t bytes) {
        if (!emulated_allocated(to, bytes)) {
            return false;
        }
        memcpy((void *)to, from + inside, bytes);
        return true;
    });
}

extern "C" int cuTensorMapEncodeTiled(void *map, int type, unsigned axes, void *start, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                      const uint32_t *steps, int interleave, int swizzle, int, int fill) {
    static const int INVALID_VALUE = 1;
    TensorMap made = {TensorMap::MARK, type == 6 || type == 9 ? 2u : type == 7 ? 4u : 0u, axes, 0, uint64_t(start), {}, {}, {}};
    if (made.element == 0 || axes < 1 || axes > 5 || made.start % 16 || interleave != 0 || fill != 0 || swizzle < 0 || swizzle > 3 ||
        uintptr_t(map) % 64) {
        return INVALID_VALUE;
    }
    for (unsigned axis = 0; axis < axes; axis++) {
        made.dims[axis] = dims[axis];
        made.box[axis] = uint16_t(box[axis]);
        bool stride = axis == 0 || (strides[axis - 1] % 16 == 0 && strides[axis - 1] < uint64_t(1) << 40);
        if (dims[axis] == 0 || dims[axis] > uint64_t(1) << 32 || box[axis] == 0 || box[axis] > 256 || steps[axis] != 1 || !stride) {
            return INVALID_VALUE;
        }
        if (axis > 0) {
            made.strides[axis - 1] = strides[axis - 1];
        }
    }
    // 32, 64, 128 bytes: one, two, three bits move. A narrower row would leave open how rows follow each other.
    unsigned row = box[0] * made.element, width = swizzle ? 16u << swizzle : row;
    made.swizzle = swizzle ? (1u << swizzle) - 1 : 0;
    if (row % 16 || row != width) {
        return INVALID_VALUE;
    }
    memcpy(map, &made, sizeof made);
    return 0;
}
