// Whole rows moved or added: 256 columns of one row of y a workgroup.
//   KIND 3  embedding  y[r] = x[ids[r]]; −1 gives zeros. The table may come in parts: rows first.. of it are bound
//   KIND 4  mean pool  y[b] = mean of x[starts[b]] .. x[starts[b + 1] − 1]; no rows give zeros
//   KIND 5  add        y = x + residual
//   KIND 7  activation y = act(x)
//   KIND 11 gates      y = act(x) · residual, of rows [x | residual]: both are bound from where they begin

struct Params {
    columns: u32,
    // Of an embedding: the part of the table that is bound.
    first: u32,
    count: u32,
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
    let columns = launch.params.columns;
    let parts = (columns + 255u) / 256u;
    let row = number / parts;
    let column = number % parts * 256u + lane;
    if (column >= columns) {
        return;
    }
    let at = row * columns + column;
    if (KIND == 3u) {
        let id = load_index(row);
        if (id < 0) {
            store_y(at, 0.0);
        } else if (u32(id) >= launch.params.first && u32(id) - launch.params.first < launch.params.count) {
            store_y(at, load_x((u32(id) - launch.params.first) * columns + column));
        }
    } else if (KIND == 4u) {
        let start = load_index(row);
        let end = load_index(row + 1u);
        var sum = 0.0;
        for (var r = start; r < end; r++) {
            sum += load_x(u32(r) * columns + column);
        }
        store_y(at, sum / f32(max(end - start, 1)));
    } else if (KIND == 7u) {
        store_y(at, activate(load_x(at)));
    } else if (KIND == 11u) {
        let gate = at + row * columns;
        store_y(at, activate(load_x(gate)) * load_residual(gate));
    } else {
        store_y(at, load_x(at) + load_residual(at));
    }
}
