// How forward.wgsl ends where a workgroup saw a part of the keys: the part's maximum, sum and sums of values, for
// combine.wgsl. partial: [row, split, PARTIAL_PITCH].

fn finish_row(place: Place, row: u32, column: u32, most: f32, sum: f32) {
    if (column == 0u) {
        let at = (row_number(place, row) * launch.params.splits + place.split) * PARTIAL_PITCH;
        store_partial(at, most);
        store_partial(at + 1u, sum);
    }
}

fn finish_quad(place: Place, row: u32, quad: u32, values: vec4<f32>, sum: f32) {
    let at = (row_number(place, row) * launch.params.splits + place.split) * PARTIAL_PITCH;
    store4_partial(at + 2u + quad * 4u, values);
}
