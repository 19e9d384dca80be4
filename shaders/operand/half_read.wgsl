// Reading NAME, elements of 16 bits (FORMAT), two a word.

// Element i, widened.
fn load_NAME(i: u32) -> f32 {
    let at = launch.NAME_offset + i;
    return widen_FORMAT(word_NAME(at >> 1u) >> ((at & 1u) * 16u)).x;
}

// Elements i to i + 3, widened. All four must be there.
fn load4_NAME(i: u32) -> vec4<f32> {
    let at = launch.NAME_offset + i;
    let word = at >> 1u;
    if ((at & 1u) == 0u) {
        return vec4<f32>(widen_FORMAT(word_NAME(word)), widen_FORMAT(word_NAME(word + 1u)));
    }
    let first = widen_FORMAT(word_NAME(word)).y;
    return vec4<f32>(first, widen_FORMAT(word_NAME(word + 1u)), widen_FORMAT(word_NAME(word + 2u)).x);
}
