// How forward.wgsl ends where a workgroup saw all keys of its rows: the answer.

fn finish_row(place: Place, row: u32, column: u32, most: f32, sum: f32) {
    if (WITH_LSE && column == 0u) {
        store_lse(row_number(place, row), lse_of(most, sum));
    }
}

fn finish_quad(place: Place, row: u32, quad: u32, values: vec4<f32>, sum: f32) {
    // A row that saw no key has zeros to divide.
    store_output(place, row, quad, values / select(sum, 1.0, sum == 0.0));
}
