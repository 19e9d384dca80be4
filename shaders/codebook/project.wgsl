// h[t] = x[t] · F, F [d, rank] the input factor of the token's adapter; with x = h and F a core, g = h · Q.
//
// x [rows, d], rows `stride` apart; h [rows, rank] f32. One workgroup computes 16 columns of a tile's rows: each
// invocation sums every 16th run of four products of one column for all rows, so that an element of the factor is read
// (and decoded) once a tile; the sixteen parts are then added in workgroup memory, in a fixed order.

var<workgroup> parts: array<vec4<f32>, INVOCATIONS>;

// Elements k to k + 3 of a row of x; zeros past its end, and for a row that is another dispatch's.
fn x_quad(row: u32, k: u32) -> vec4<f32> {
    if (row == NONE) {
        return vec4<f32>();
    }
    let at = row * launch.params.stride + k;
    let there = launch.params.d - k;
    if (there >= 4u) {
        return load4_x(at);
    }
    var quad = vec4<f32>();
    for (var i = 0u; i < there; i++) {
        quad[i] = load_x(at + i);
    }
    return quad;
}

// The products of a run of the factor with rows r to r + 3 of the tile.
fn products(run: vec4<f32>, r: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(
        dot(run, x_quad(tile_rows[r], k)),
        dot(run, x_quad(tile_rows[r + 1u], k)),
        dot(run, x_quad(tile_rows[r + 2u], k)),
        dot(run, x_quad(tile_rows[r + 3u], k)),
    );
}

// Adds what the workgroup has of rows r to r + 3, and stores it.
fn reduce(sum: vec4<f32>, r: u32, column0: u32, lane: u32) {
    parts[lane] = sum;
    workgroupBarrier();
    let column = lane % 16u;
    let which = lane / 16u;
    if (which < 4u && column0 + column < launch.params.rank) {
        var total = 0.0;
        for (var run = 0u; run < 16u; run++) {
            total += parts[lane_of(column, run)][which];
        }
        let row = tile_rows[r + which];
        if (row != NONE) {
            store_h(row * launch.params.rank + column0 + column, total);
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(INVOCATIONS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group_number(group, groups);
    if (number >= launch.groups) {
        return;
    }
    let column_tiles = (launch.params.rank + 15u) / 16u;
    let column0 = number % column_tiles * 16u;
    let tile = open_tile(number / column_tiles, lane);
    if (tile.tokens == 0u) {
        return;
    }
    let origin = open_factor(tile.factor, lane);
    workgroupBarrier();

    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    let column = column0 + lane_column(lane);
    if (column < launch.params.rank) {
        for (var k = lane_run(lane) * 4u; k < launch.params.d; k += 64u) {
            let run = factor_run(origin, column, k);
            sum0 += products(run, 0u, k);
            if (tile.tokens > 4u) {
                sum1 += products(run, 4u, k);
            }
            if (tile.tokens > 8u) {
                sum2 += products(run, 8u, k);
            }
            if (tile.tokens > 12u) {
                sum3 += products(run, 12u, k);
            }
        }
    }
    reduce(sum0, 0u, column0, lane);
    if (tile.tokens > 4u) {
        reduce(sum1, 4u, column0, lane);
    }
    if (tile.tokens > 8u) {
        reduce(sum2, 8u, column0, lane);
    }
    if (tile.tokens > 12u) {
        reduce(sum3, 12u, column0, lane);
    }
}
