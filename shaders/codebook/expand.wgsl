// y[t] += s · h[t] · Fᵀ, F [d, rank] the output factor of the token's adapter and s its scaling, or the token's; or y[t] = …,
// and then zeros for the tokens without an adapter.
//
// h [rows, rank] f32; y [rows, d], rows `stride` apart. One workgroup computes 64 columns of a tile's rows, each
// invocation four of one row. The factor passes through workgroup memory 16 of its columns at a time, decoded there once
// for all rows: it is never decoded in device memory.

const COLUMNS = 64u;
const DEPTH = 16u;

// Run r of column j at j·16 + r.
var<workgroup> factor_tile: array<vec4<f32>, DEPTH * 16u>;
// Element j of row r at r·DEPTH + j.
var<workgroup> h_tile: array<f32, TILE * DEPTH>;

fn store_row(row: u32, column: u32, delta: vec4<f32>) {
    if (column >= launch.params.d) {
        return;
    }
    let at = row * launch.params.stride + column;
    if (column + 4u <= launch.params.d) {
        if (ACCUMULATE) {
            store4_y(at, load4_y(at) + delta);
        } else {
            store4_y(at, delta);
        }
        return;
    }
    for (var i = 0u; column + i < launch.params.d; i++) {
        if (ACCUMULATE) {
            store_y(at + i, load_y(at + i) + delta[i]);
        } else {
            store_y(at + i, delta[i]);
        }
    }
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
    let column_tiles = (launch.params.d + COLUMNS - 1u) / COLUMNS;
    let column0 = number % column_tiles * COLUMNS;
    let tile_number = number / column_tiles;
    let r = lane / 16u;
    let column = column0 + lane % 16u * 4u;
    if (tile_number >= launch.params.tiles) {
        // The groups past the last tile, which only an overwriting dispatch has: rows in their own order.
        let row = (tile_number - launch.params.tiles) * TILE + r;
        if (row < launch.params.rows && load_token_adapter(2u + launch.params.row0 + row) < 0) {
            store_row(row, column, vec4<f32>());
        }
        return;
    }
    let tile = open_tile(tile_number, lane);
    if (tile.tokens == 0u) {
        return;
    }
    let origin = open_factor(tile.factor, lane);
    workgroupBarrier();

    let row = tile_rows[r];
    let rank = launch.params.rank;
    var sum = vec4<f32>();
    for (var j0 = 0u; j0 < rank; j0 += DEPTH) {
        let j = j0 + lane_column(lane);
        let e = column0 + lane_run(lane) * 4u;
        var run = vec4<f32>();
        if (j < rank && e < launch.params.d) {
            run = factor_run(origin, j, e);
        }
        factor_tile[lane_column(lane) * 16u + lane_run(lane)] = run;
        let own = j0 + lane % DEPTH;
        h_tile[lane] = 0.0;
        if (row != NONE && own < rank) {
            h_tile[lane] = load_h(row * rank + own);
        }
        workgroupBarrier();
        if (r < tile.tokens) {
            for (var i = 0u; i < DEPTH; i++) {
                sum += h_tile[r * DEPTH + i] * factor_tile[i * 16u + lane % 16u];
            }
        }
        workgroupBarrier();
    }
    if (row != NONE) {
        let scaled_by = select(tile.adapter, launch.params.row0 + row, launch.params.scaled_by_token == 1u);
        store_row(row, column, load_scaling(scaled_by) * sum);
    }
}
