// One row a workgroup, z = x + residual:
//   KIND 0  RMSNorm    z / √(mean(z²) + eps) · weight
//   KIND 1  LayerNorm  (z − mean(z)) / √(mean((z − mean(z))²) + eps) · weight + bias
//   KIND 2  L2         z / max(‖z‖₂, 1e-12)
//   KIND 12 RMSNorm    of each head of y, where it is: `heads` of `columns` elements from each row's start, rows `stride` elements apart

struct Params {
    columns: u32,
    eps: f32,
    // 1 but for KIND 12, as the stride is `columns`.
    heads: u32,
    stride: u32,
}

const WIDTH = 256u;

var<workgroup> partial: array<f32, WIDTH>;

// The sum of every invocation's value, halves added in a fixed order.
fn reduce(value: f32, lane: u32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    let sum = workgroupUniformLoad(&partial[0]);
    return sum;
}

fn z(at: u32) -> f32 {
    if (KIND == 12u) {
        return load_y(at);
    }
    return load_x(at) + load_residual(at);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_number(group, groups);
    if (row >= launch.groups) {
        return;
    }
    let columns = launch.params.columns;
    let head = row % launch.params.heads * columns;
    let start = row / launch.params.heads * launch.params.stride + head;

    var center = 0.0;
    if (KIND == 1u) {
        var sum = 0.0;
        for (var j = lane; j < columns; j += WIDTH) {
            sum += z(start + j);
        }
        center = reduce(sum, lane) / f32(columns);
    }
    var square = 0.0;
    for (var j = lane; j < columns; j += WIDTH) {
        let away = z(start + j) - center;
        square += away * away;
    }
    let total = reduce(square, lane);

    if (KIND == 2u) {
        // Not by `max`, which may hide what is not a number.
        let norm = select(sqrt(total), 1e-12, total < 1e-24);
        for (var j = lane; j < columns; j += WIDTH) {
            store_y(start + j, z(start + j) / norm);
        }
    } else {
        let deviation = sqrt(total / f32(columns) + launch.params.eps);
        for (var j = lane; j < columns; j += WIDTH) {
            store_y(start + j, (z(start + j) - center) / deviation * load_weight(head + j) + load_bias(j));
        }
    }
}
