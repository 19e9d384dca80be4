// What every shader may use: conversions of 16-bit elements, exact and in integers, and the number of a workgroup.
// WGSL's own pack2x16float leaves the rounding to the driver, and there is no bf16 type at all.

// The two f16 elements of a word.
fn widen_f16(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}

// The two bf16 elements of a word.
fn widen_bf16(word: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

// The f16 nearest to `value`, ties to even; from 65520 on infinity.
fn round_f16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (magnitude >= 0x38800000u) {
        // Normal: the exponent is rebased from 127 to 15; a carry out of the significand steps it as it should.
        let rebased = magnitude - 0x38000000u;
        return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
    }
    let exponent = magnitude >> 23u;
    if (exponent < 102u) {
        return sign;
    }
    // Subnormal: units of 2^-24.
    let significand = (magnitude & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    return sign | ((significand + ((1u << (shift - 1u)) - 1u) + ((significand >> shift) & 1u)) >> shift);
}

// The bf16 nearest to `value`, ties to even.
fn round_bf16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return ((bits >> 16u) & 0x8000u) | 0x7fc0u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// The number of this workgroup among those that the host asked for. A dispatch is split over three axes, because
// one axis holds at most 65,535; a shader must return at once where the number is not below `launch.groups`.
fn group_number(id: vec3<u32>, counts: vec3<u32>) -> u32 {
    return (id.z * counts.y + id.y) * counts.x + id.x;
}
