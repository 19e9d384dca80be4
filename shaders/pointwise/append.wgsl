// New tokens of each sequence to where its last positions lie in a pool of pages: 256 columns of one row of x a workgroup. The index holds the
// lengths of all sequences, then the pages of each. Rows for which a sequence is too short go nowhere.

struct Params {
    columns: u32,
    // Elements from a row of x to the next, and the number of the first row that is bound.
    stride: u32,
    first: u32,
    // Rows a sequence.
    each: u32,
    batch: u32,
    pages: u32,
    page: u32,
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
    let sequence = (p.first + row) / p.each;
    let position = load_index(sequence) - i32(p.each - (p.first + row) % p.each);
    if (column >= p.columns || position < 0) {
        return;
    }
    let place = u32(load_index(p.batch + sequence * p.pages + u32(position) / p.page)) * p.page + u32(position) % p.page;
    store_y(place * p.pool_row + column, load_x(row * p.stride + column));
}
