// Rows to their places in a pool: 256 columns of one row of x a workgroup. A row whose place lies outside the pool goes nowhere.

struct Params {
    columns: u32,
    // Elements from a row of x to the next.
    stride: u32,
    // Rows of the pool.
    slots: u32,
    // Elements from a row of the pool to the next.
    pool_row: u32,
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group_number(group, groups);
    if (number >= launch.groups) {
        return;
    }
    let p = launch.params;
    let parts = (p.columns + 255u) / 256u;
    let row = number / parts;
    let column = number % parts * 256u + lane;
    let place = load_positions(row);
    if (column >= p.columns || place < 0 || u32(place) >= p.slots) {
        return;
    }
    store_y(u32(place) * p.pool_row + column, load_x(row * p.stride + column));
}
