// Y = act(X·Wᵀ + bias + delta) ⊙ gate + residual.
//
// x [tokens, d_in], a row every x_stride, w [columns, d_in], a row every w_stride, bias [columns], y, gate and residual [tokens, d_out] of which `columns` are this
// dispatch's; delta [tokens, d_out] f32. One workgroup of 256 computes a TILE × TILE tile of y, each invocation 4 × 4
// of it; x and w pass through workgroup memory DEPTH columns at a time. `Staged` is the type they wait in there.

struct Params {
    tokens: u32,
    columns: u32,
    d_in: u32,
    d_out: u32,
    x_stride: u32,
    w_stride: u32,
}

const TILE = 64u;
const DEPTH = 16u;
// One more than the tile, so that a column's elements lie in different banks.
const PITCH = 65u;

var<workgroup> x_tile: array<Staged, DEPTH * PITCH>;
var<workgroup> w_tile: array<Staged, DEPTH * PITCH>;

// Four elements of a row of x from column k; zeros past its edges.
fn x_quad(row: u32, k: u32) -> vec4<f32> {
    let d_in = launch.params.d_in;
    if (row >= launch.params.tokens || k >= d_in) {
        return vec4<f32>();
    }
    let at = row * launch.params.x_stride + k;
    if (k + 4u <= d_in) {
        return load4_x(at);
    }
    var quad = vec4<f32>();
    for (var i = 0u; k + i < d_in; i++) {
        quad[i] = load_x(at + i);
    }
    return quad;
}

// As x_quad, of w.
fn w_quad(row: u32, k: u32) -> vec4<f32> {
    let d_in = launch.params.d_in;
    if (row >= launch.params.columns || k >= d_in) {
        return vec4<f32>();
    }
    let at = row * launch.params.w_stride + k;
    if (k + 4u <= d_in) {
        return load4_w(at);
    }
    var quad = vec4<f32>();
    for (var i = 0u; k + i < d_in; i++) {
        quad[i] = load_w(at + i);
    }
    return quad;
}

// The epilogue of one element: all in f32, rounded once, by the store.
fn finish(sum: f32, at: u32, column: u32) -> f32 {
    let activated = activate(sum + load_bias(column) + load_delta(at));
    // `select` and not a branch: an absent gate reads as zero.
    return activated * select(1.0, load_gate(at), GATED) + load_residual(at);
}

fn store_row(row: u32, column: u32, sums: vec4<f32>) {
    let columns = launch.params.columns;
    if (row >= launch.params.tokens || column >= columns) {
        return;
    }
    let at = row * launch.params.d_out + column;
    if (column + 4u <= columns) {
        var quad = vec4<f32>();
        for (var i = 0u; i < 4u; i++) {
            quad[i] = finish(sums[i], at + i, column + i);
        }
        store4_y(at, quad);
        return;
    }
    for (var i = 0u; column + i < columns; i++) {
        store_y(at + i, finish(sums[i], at + i, column + i));
    }
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
    let column_tiles = (launch.params.columns + TILE - 1u) / TILE;
    let row0 = number / column_tiles * TILE;
    let column0 = number % column_tiles * TILE;

    // Loading: four invocations a row, four elements each. Computing: rows y.. and columns x.. of the tile.
    let load_row = lane / 4u;
    let load_k = lane % 4u * 4u;
    let x = lane % 16u * 4u;
    let y = lane / 16u * 4u;

    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var k0 = 0u; k0 < launch.params.d_in; k0 += DEPTH) {
        let from_x = x_quad(row0 + load_row, k0 + load_k);
        let from_w = w_quad(column0 + load_row, k0 + load_k);
        for (var i = 0u; i < 4u; i++) {
            x_tile[(load_k + i) * PITCH + load_row] = Staged(from_x[i]);
            w_tile[(load_k + i) * PITCH + load_row] = Staged(from_w[i]);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let a = k * PITCH + y;
            let b = k * PITCH + x;
            let w = vec4<f32>(f32(w_tile[b]), f32(w_tile[b + 1u]), f32(w_tile[b + 2u]), f32(w_tile[b + 3u]));
            sum0 += f32(x_tile[a]) * w;
            sum1 += f32(x_tile[a + 1u]) * w;
            sum2 += f32(x_tile[a + 2u]) * w;
            sum3 += f32(x_tile[a + 3u]) * w;
        }
        workgroupBarrier();
    }
    store_row(row0 + y, column0 + x, sum0);
    store_row(row0 + y + 1u, column0 + x, sum1);
    store_row(row0 + y + 2u, column0 + x, sum2);
    store_row(row0 + y + 3u, column0 + x, sum3);
}
