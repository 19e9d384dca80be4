// Checksums, a range a workgroup: the words of the range, each times the multiplier of its place, modulo 2^64.

struct Params {
    // Bytes from the first word that is bound to the first range, and from a range to the next.
    start: u32,
    stride: u32,
    // Bytes of a range that are summed here, and the place of the first word of them.
    bytes: u32,
    place: u32,
    // Whether a range ends behind them, and whether its words before them are summed already: 1 or 0.
    ends: u32,
    begun: u32,
}

const WIDTH = 256u;

var<workgroup> sums: array<vec2<u32>, WIDTH>;

// What the word at a place counts times.
fn multiplier(place: u32) -> vec2<u32> {
    const BITS = 0x7fffffffu;
    var low = place & BITS;
    low ^= low >> 16u;
    low = (low * 0x85ebca6bu) & BITS;
    low ^= low >> 13u;
    low = (low * 0xc2b2ae35u) & BITS;
    low ^= low >> 16u;
    var high = low * 0x27d4eb2fu + 0x165667b1u;
    high ^= high >> 15u;
    high *= 0x9e3779b1u;
    high ^= high >> 16u;
    return vec2<u32>((high & 0xfffffffeu) | (low >> 30u), (low << 2u) | 1u);
}

fn times(word: u32, place: u32) -> vec2<u32> {
    let by = multiplier(place);
    return product(word, by.y) + vec2<u32>(word * by.x, 0u);
}

// The word that begins at a byte. All four bytes must be there.
fn word_at(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    let low = load_x(at >> 2u) >> shift;
    if (shift == 0u) {
        return low;
    }
    return low | (load_x((at >> 2u) + 1u) << (32u - shift));
}

fn byte_at(at: u32) -> u32 {
    return (load_x(at >> 2u) >> ((at & 3u) * 8u)) & 0xffu;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let range = group_number(group, groups);
    if (range >= launch.groups) {
        return;
    }
    let start = launch.params.start + range * launch.params.stride;
    let words = launch.params.bytes / 4u;
    var sum = vec2<u32>();
    for (var at = lane; at < words; at += WIDTH) {
        sum = add_wide(sum, times(word_at(start + 4u * at), launch.params.place + at));
    }
    if (lane == 0u && launch.params.ends == 1u) {
        // The bytes behind the last whole word, and the byte 1.
        let rest = launch.params.bytes % 4u;
        var word = 1u << (8u * rest);
        for (var at = 0u; at < rest; at += 1u) {
            word |= byte_at(start + 4u * words + at) << (8u * at);
        }
        sum = add_wide(sum, times(word, launch.params.place + words));
    }
    sums[lane] = sum;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            sums[lane] = add_wide(sums[lane], sums[lane + half]);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        let at = launch.checksums_offset + 2u * range;
        var all = sums[0];
        if (launch.params.begun == 1u) {
            all = add_wide(all, vec2<u32>(atomicLoad(&checksums[at + 1u]), atomicLoad(&checksums[at])));
        }
        atomicStore(&checksums[at], all.y);
        atomicStore(&checksums[at + 1u], all.x);
    }
}
