// Combines the parts of rows whose keys were split, in the order of the parts. One workgroup has the rows of the tile
// that forward.wgsl had.

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) counts: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group_number(id, counts);
    if (number >= launch.groups) {
        return;
    }
    let place = find_place(launch.params.first_group + number, 1u, lane);
    let splits = launch.params.splits;
    for (var i = lane; i < ROWS * QUADS; i += LANES) {
        let row = place.row + i / QUADS;
        let quad = i % QUADS;
        if (row >= place.rows) {
            return;
        }
        let first = row_number(place, row) * splits * PARTIAL_PITCH;
        var most = UNSEEN;
        for (var s = 0u; s < splits; s++) {
            most = max(most, load_partial(first + s * PARTIAL_PITCH));
        }
        var sum = 0.0;
        var values = vec4<f32>();
        for (var s = 0u; s < splits; s++) {
            let at = first + s * PARTIAL_PITCH;
            let rescale = exp(load_partial(at) - most);
            sum += rescale * load_partial(at + 1u);
            values += rescale * load4_partial(at + 2u + quad * 4u);
        }
        store_output(place, row, quad, values / select(sum, 1.0, sum == 0.0));
        if (WITH_LSE && quad == 0u) {
            store_lse(row_number(place, row), lse_of(most, sum));
        }
    }
}
