// Writing NAME, elements of 16 bits (FORMAT), two a word. The other half of a word may be another invocation's, or
// another operand's: it is never written back.

// Element i. Safe whatever other invocations write.
fn store_NAME(i: u32, value: f32) {
    let at = launch.NAME_offset + i;
    let shift = (at & 1u) * 16u;
    atomicAnd(&NAME[at >> 1u], 0xffff0000u >> shift);
    atomicOr(&NAME[at >> 1u], round_FORMAT(value) << shift);
}

// Elements i and i + 1.
fn store2_NAME(i: u32, values: vec2<f32>) {
    let at = launch.NAME_offset + i;
    if ((at & 1u) == 0u) {
        atomicStore(&NAME[at >> 1u], round_FORMAT(values.x) | (round_FORMAT(values.y) << 16u));
    } else {
        store_NAME(i, values.x);
        store_NAME(i + 1u, values.y);
    }
}

// Elements i to i + 3.
fn store4_NAME(i: u32, values: vec4<f32>) {
    if (((launch.NAME_offset + i) & 1u) == 0u) {
        store2_NAME(i, values.xy);
        store2_NAME(i + 2u, values.zw);
    } else {
        store_NAME(i, values.x);
        store2_NAME(i + 1u, values.yz);
        store_NAME(i + 3u, values.w);
    }
}
