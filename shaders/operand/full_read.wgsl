// Reading NAME, elements of f32.

// Element i.
fn load_NAME(i: u32) -> f32 {
    return NAME[launch.NAME_offset + i];
}

// Elements i to i + 3. All four must be there.
fn load4_NAME(i: u32) -> vec4<f32> {
    let at = launch.NAME_offset + i;
    return vec4<f32>(NAME[at], NAME[at + 1u], NAME[at + 2u], NAME[at + 3u]);
}
