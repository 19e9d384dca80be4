// Rotary positions: one pair of elements an invocation.
//   KIND 6  from x to y, both packed
//   KIND 8  in y, rows `stride` elements apart; there is no x
//
// A driver's sin and cos may be off by 2⁻¹¹, and only between −π and π; and position · frequency in f32 loses the
// turn once the position is large. So the angle is kept as a share of a turn in integers: `frequency` gives each
// frequency in units of 2⁻⁶⁴ turns (rope_base.wgsl, rope_table.wgsl), and the product with the position wraps as angles do.

struct Params {
    pairs: u32,
    columns: u32,
    head_dim: u32,
    // Elements from a row to the next.
    stride: u32,
}

fn before(at: u32) -> f32 {
    if (KIND == 8u) {
        return load_y(at);
    }
    return load_x(at);
}

// The upper 32 bits of a · b.
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// position · frequency in units of 2⁻³² turns; frequency = (high, low) in units of 2⁻⁶⁴.
fn turn(position: i32, high: u32, low: u32) -> u32 {
    let unsigned = bitcast<u32>(position);
    let turned = unsigned * high + high_product(unsigned, low);
    // A negative position was read as 2³² more than it is.
    return select(turned, turned - low, position < 0);
}

// (cos, sin) of a share of a turn in units of 2⁻³². Reduced to within an eighth of a turn of a quarter, then Taylor
// series whose first term left out is below 2⁻²⁶.
fn cos_sin(share: u32) -> vec2<f32> {
    let quarter = (share + 0x20000000u) >> 30u;
    let rest = bitcast<i32>(share - (quarter << 30u));
    let a = f32(rest) * 1.4629180792671596e-9;
    let s = a * a;
    let sine = a * (1.0 + s * (-1.6666667e-1 + s * (8.3333333e-3 + s * (-1.9841270e-4 + s * 2.7557319e-6))));
    let cosine = 1.0 + s * (-0.5 + s * (4.1666668e-2 + s * (-1.3888889e-3 + s * 2.4801587e-5)));
    switch quarter {
        case 1u: { return vec2<f32>(-sine, cosine); }
        case 2u: { return vec2<f32>(-cosine, -sine); }
        case 3u: { return vec2<f32>(sine, -cosine); }
        default: { return vec2<f32>(cosine, sine); }
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group_number(group, groups);
    let pair = number * 256u + lane;
    if (number >= launch.groups || pair >= launch.params.pairs) {
        return;
    }
    let half = launch.params.head_dim / 2u;
    let row_pairs = launch.params.columns / 2u;
    let row = pair / row_pairs;
    let head = pair % row_pairs / half;
    let j = pair % half;
    let at = row * launch.params.stride + head * launch.params.head_dim + j;
    let position = load_positions(row);
    let units = frequency(j);
    let turned = cos_sin(turn(position, units.x, units.y));
    let first = before(at);
    let second = before(at + half);
    store_y(at, first * turned.x - second * turned.y);
    store_y(at + half, second * turned.x + first * turned.y);
}
