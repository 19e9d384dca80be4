// Writing NAME, elements of f32.

// Element i.
fn store_NAME(i: u32, value: f32) {
    NAME[launch.NAME_offset + i] = value;
}

// Elements i and i + 1.
fn store2_NAME(i: u32, values: vec2<f32>) {
    let at = launch.NAME_offset + i;
    NAME[at] = values.x;
    NAME[at + 1u] = values.y;
}

// Elements i to i + 3.
fn store4_NAME(i: u32, values: vec4<f32>) {
    store2_NAME(i, values.xy);
    store2_NAME(i + 2u, values.zw);
}
