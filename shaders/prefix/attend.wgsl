// Attention over a prefix in factors: K and V of a tile of keys are rebuilt in the workgroup, and never stored.
//
// A workgroup takes ROWS rows of a head of keys: a row is a query of any sequence, and one of the heads that share keys. An
// invocation has every LANES-th column of O. Factors are f32, [tokens, rank] and [kv_heads * HEAD_DIM, rank].

struct Params {
    q_batch: u32,
    q_token: u32,
    q_head: u32,
    o_batch: u32,
    o_token: u32,
    o_head: u32,
    q_len: u32,
    heads: u32,
    // Heads that share keys, and rows of a head of keys.
    share: u32,
    rows: u32,
    tokens: u32,
    key_rank: u32,
    value_rank: u32,
    // The tile that this dispatch begins with.
    first: u32,
    scale: f32,
}

const LANES = 64u;
const ROWS = 4u;
const KEYS = 8u;
const COLUMNS = (HEAD_DIM + LANES - 1u) / LANES;
// Below every score, and far enough from the end of f32 that a difference times log2(e) is finite: WGSL promises nothing for infinities.
const UNSEEN = -1e38;

var<workgroup> q_tile: array<f32, ROWS * HEAD_DIM>;
var<workgroup> k_tile: array<f32, KEYS * HEAD_DIM>;
var<workgroup> scores: array<f32, ROWS * KEYS>;

struct Row {
    batch: u32,
    query: u32,
    head: u32,
}

fn row_of(kv_head: u32, row: u32) -> Row {
    let line = row / launch.params.share;
    return Row(line / launch.params.q_len, line % launch.params.q_len, kv_head * launch.params.share + row % launch.params.share);
}

fn minus_infinity() -> f32 {
    // Through a variable: WGSL has no literal for infinity, and refuses a constant expression that gives one.
    var infinity = 0xff800000u;
    return bitcast<f32>(infinity);
}

fn key_element(key: u32, row: u32) -> f32 {
    let rank = launch.params.key_rank;
    var sum = 0.0;
    for (var j = 0u; j < rank; j++) {
        sum += load_key_coefficients(key * rank + j) * load_key_basis(row * rank + j);
    }
    return sum;
}

fn value_element(key: u32, row: u32) -> f32 {
    let rank = launch.params.value_rank;
    var sum = 0.0;
    for (var j = 0u; j < rank; j++) {
        sum += load_value_coefficients(key * rank + j) * load_value_basis(row * rank + j);
    }
    return sum;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) counts: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_number(id, counts);
    if (group >= launch.groups) {
        return;
    }
    let tiles = (launch.params.rows + ROWS - 1u) / ROWS;
    let number = launch.params.first + group;
    let first_row = number % tiles * ROWS;
    let kv_head = number / tiles;
    let width = kv_head * HEAD_DIM;

    for (var at = lane; at < ROWS * HEAD_DIM; at += LANES) {
        let line = first_row + at / HEAD_DIM;
        q_tile[at] = 0.0;
        if (line < launch.params.rows) {
            let row = row_of(kv_head, line);
            q_tile[at] = load_q(row.batch * launch.params.q_batch + row.query * launch.params.q_token + row.head * launch.params.q_head + at % HEAD_DIM);
        }
    }

    var outputs: array<vec4<f32>, COLUMNS>;
    var most = vec4<f32>(UNSEEN);
    var total = vec4<f32>();
    for (var key0 = 0u; key0 < launch.params.tokens; key0 += KEYS) {
        let keys = min(KEYS, launch.params.tokens - key0);
        for (var column = lane; column < HEAD_DIM; column += LANES) {
            for (var key = 0u; key < keys; key++) {
                k_tile[key * HEAD_DIM + column] = key_element(key0 + key, width + column);
            }
        }
        workgroupBarrier();
        if (lane < ROWS * KEYS) {
            let row = lane / KEYS;
            let key = lane % KEYS;
            var dot = 0.0;
            if (key < keys) {
                for (var e = 0u; e < HEAD_DIM; e++) {
                    dot += q_tile[row * HEAD_DIM + e] * k_tile[key * HEAD_DIM + e];
                }
            }
            scores[lane] = select(UNSEEN, launch.params.scale * dot, key < keys);
        }
        workgroupBarrier();
        var highest = most;
        for (var key = 0u; key < keys; key++) {
            highest = max(highest, vec4<f32>(scores[key], scores[KEYS + key], scores[2u * KEYS + key], scores[3u * KEYS + key]));
        }
        let rescale = exp(most - highest);
        most = highest;
        total *= rescale;
        for (var c = 0u; c < COLUMNS; c++) {
            outputs[c] *= rescale;
        }
        for (var key = 0u; key < keys; key++) {
            let weight = exp(vec4<f32>(scores[key], scores[KEYS + key], scores[2u * KEYS + key], scores[3u * KEYS + key]) - most);
            total += weight;
            for (var c = 0u; c < COLUMNS; c++) {
                let column = c * LANES + lane;
                if (column < HEAD_DIM) {
                    outputs[c] += weight * value_element(key0 + key, width + column);
                }
            }
        }
        // The next tile's scores come behind a barrier of their own, and so does its K.
    }

    for (var r = 0u; r < ROWS; r++) {
        let line = first_row + r;
        if (line < launch.params.rows) {
            let row = row_of(kv_head, line);
            let place = (row.batch * launch.params.heads + row.head) * launch.params.q_len + row.query;
            let start = row.batch * launch.params.o_batch + row.query * launch.params.o_token + row.head * launch.params.o_head;
            var own_weight = 0.0;
            var weight = 1.0;
            var sum = total[r];
            var log_most = most[r];
            if (JOIN) {
                let other = load_lse(place);
                // What has seen nothing holds nothing, whatever lies there. By its bits: of what is not a number no comparison holds.
                if (bitcast<u32>(other) != bitcast<u32>(minus_infinity())) {
                    let own = most[r] + log(total[r]);
                    log_most = max(own, other);
                    weight = exp(own - log_most) / total[r];
                    own_weight = exp(other - log_most);
                    sum = exp(own - log_most) + own_weight;
                }
            }
            for (var c = 0u; c < COLUMNS; c++) {
                let column = c * LANES + lane;
                if (column < HEAD_DIM) {
                    var value = outputs[c][r] * weight;
                    if (own_weight != 0.0) {
                        value += own_weight * load_o(start + column);
                    }
                    store_o(start + column, value / sum);
                }
            }
            if (JOIN) {
                // Every invocation has read it.
                storageBarrier();
                workgroupBarrier();
            }
            if (lane == 0u) {
                store_lse(place, select(log_most + log(sum), minus_infinity(), sum == 0.0));
            }
        }
    }
}
