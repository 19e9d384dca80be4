// Attention with an online softmax: one pass over the keys that a tile of ROWS queries sees, KEYS at a time.
//
// An invocation is (group, column) of ROW_GROUPS × COLUMNS. It has four rows: their scores with the keys column,
// column + COLUMNS, ..., and quads column, column + COLUMNS, ... of their outputs. Rows are the components of a vector.
// Q, K and V pass through workgroup memory, DEPTH quads of a head (V: VALUE_KEYS keys) at a time.
//
// Rescaling by exp(old maximum - new maximum): Milakov and Gimelshein, arXiv:1805.02867; by tiles: Dao et al.,
// arXiv:2205.14135.

const KEYS = 32u;
const KEYS_EACH = KEYS / COLUMNS;
const QUADS_EACH = (QUADS + COLUMNS - 1u) / COLUMNS;
// One more than the tile, so that what one key's or row's neighbours need lies in different banks.
const ROW_PITCH = ROWS + 1u;
const KEY_PITCH = KEYS + 1u;
const VALUE_PITCH = QUADS_EACH * COLUMNS;
const VALUE_KEYS = DEPTH * KEYS / VALUE_PITCH;

var<workgroup> q_tile: array<vec4<Staged>, DEPTH * ROW_PITCH>;
// Keys, later values: [quad, key], later [key, quad].
var<workgroup> kv_tile: array<vec4<Staged>, DEPTH * KEY_PITCH>;
var<workgroup> weights: array<vec4<f32>, ROW_GROUPS * KEY_PITCH>;
var<workgroup> gathered: array<vec4<f32>, LANES>;

fn q_quad(place: Place, row: u32, quad: u32) -> vec4<f32> {
    if (row >= place.rows || quad >= QUADS) {
        return vec4<f32>();
    }
    let token = place.sequence.q_start + token_of(place, row);
    let at = place.slot * launch.params.q_batch + token * launch.params.q_token + head_of(place, row) * launch.params.q_head + quad * 4u;
    if (quad * 4u + 4u <= HEAD_DIM) {
        return load4_q(at);
    }
    var values = vec4<f32>();
    for (var i = 0u; quad * 4u + i < HEAD_DIM; i++) {
        values[i] = load_q(at + i);
    }
    return values;
}

// A quad of key j; zeros from key `end` on, which is never read.
fn k_quad(place: Place, j: u32, end: u32, quad: u32) -> vec4<f32> {
    if (j >= end || quad >= QUADS) {
        return vec4<f32>();
    }
    let key = key_place(place, j);
    let at = key.x * launch.params.k_batch + key.y * launch.params.k_token + place.head / heads_a_key_head() * launch.params.k_head + quad * 4u;
    if (quad * 4u + 4u <= HEAD_DIM) {
        return load4_k(at);
    }
    var values = vec4<f32>();
    for (var i = 0u; quad * 4u + i < HEAD_DIM; i++) {
        values[i] = load_k(at + i);
    }
    return values;
}

// As k_quad, of v.
fn v_quad(place: Place, j: u32, end: u32, quad: u32) -> vec4<f32> {
    if (j >= end || quad >= QUADS) {
        return vec4<f32>();
    }
    let key = key_place(place, j);
    let at = key.x * launch.params.v_batch + key.y * launch.params.v_token + place.head / heads_a_key_head() * launch.params.v_head + quad * 4u;
    if (quad * 4u + 4u <= HEAD_DIM) {
        return load4_v(at);
    }
    var values = vec4<f32>();
    for (var i = 0u; quad * 4u + i < HEAD_DIM; i++) {
        values[i] = load_v(at + i);
    }
    return values;
}

fn stage_queries(place: Place, lane: u32, quad0: u32) {
    for (var i = lane; i < ROWS * DEPTH; i += LANES) {
        q_tile[i % DEPTH * ROW_PITCH + i / DEPTH] = vec4<Staged>(q_quad(place, place.row + i / DEPTH, quad0 + i % DEPTH));
    }
}

fn stage_keys(place: Place, lane: u32, key0: u32, end: u32, quad0: u32) {
    for (var i = lane; i < KEYS * DEPTH; i += LANES) {
        kv_tile[i % DEPTH * KEY_PITCH + i / DEPTH] = vec4<Staged>(k_quad(place, key0 + i / DEPTH, end, quad0 + i % DEPTH));
    }
}

fn stage_values(place: Place, lane: u32, key0: u32, end: u32) {
    for (var i = lane; i < VALUE_KEYS * VALUE_PITCH; i += LANES) {
        kv_tile[i] = vec4<Staged>(v_quad(place, key0 + i / VALUE_PITCH, end, i % VALUE_PITCH));
    }
}

// The sum of what all columns of a row group gathered, or its maximum; always in one order.
fn gathered_sum(group: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var i = 0u; i < COLUMNS; i++) {
        sum += gathered[group * COLUMNS + i];
    }
    return sum;
}

fn gathered_max(group: u32) -> vec4<f32> {
    var most = gathered[group * COLUMNS];
    for (var i = 1u; i < COLUMNS; i++) {
        most = max(most, gathered[group * COLUMNS + i]);
    }
    return most;
}

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
    let splits = select(1u, launch.params.splits, SPLIT);
    let place = find_place(launch.params.first_group + number, splits, lane);
    if (place.row >= place.rows) {
        return;
    }
    let group = lane / COLUMNS;
    let column = lane % COLUMNS;

    // The keys that any row of the tile sees, then this split's share of them.
    let ahead = i32(place.sequence.kv_len) - i32(place.sequence.q_len);
    let first_token = token_of(place, place.row);
    let last_token = token_of(place, min(place.row + ROWS, place.rows) - 1u);
    var range = vec2<i32>(
        max(i32(first_token) + ahead - before(), 0),
        min(i32(last_token) + ahead, i32(place.sequence.kv_len) - 1 - after()) + after() + 1,
    );
    if (SPLIT) {
        range.x += i32(place.split * launch.params.split_keys);
        range.y = min(range.y, range.x + i32(launch.params.split_keys));
    }

    // Of the invocation's own rows: the first and last key that the masks leave.
    var low = vec4<i32>();
    var high = vec4<i32>(-1);
    for (var r = 0u; r < 4u; r++) {
        let row = place.row + group * 4u + r;
        if (row < place.rows) {
            let position = i32(token_of(place, row)) + ahead;
            low[r] = position - before();
            high[r] = position + after();
        }
    }

    var outputs: array<vec4<f32>, 4u * QUADS_EACH>;
    var most = vec4<f32>(UNSEEN);
    // Of the weights of the invocation's own keys.
    var sum = vec4<f32>();
    if (QUADS <= DEPTH) {
        stage_queries(place, lane, 0u);
    }
    let listed = segments(place, first_token, lane);
    for (var n = listed.x; n < listed.y; n++) {
        let part = segment(n, range, lane);
        let end = u32(max(part.end, 0));
        for (var key0 = u32(part.start); key0 < end; key0 += KEYS) {
            var scores: array<vec4<f32>, KEYS_EACH>;
            for (var quad0 = 0u; quad0 < QUADS; quad0 += DEPTH) {
                if (QUADS > DEPTH) {
                    stage_queries(place, lane, quad0);
                }
                stage_keys(place, lane, key0, end, quad0);
                workgroupBarrier();
                for (var d = 0u; d < min(DEPTH, QUADS - quad0); d++) {
                    let at = d * ROW_PITCH + group * 4u;
                    let q0 = vec4<f32>(q_tile[at]);
                    let q1 = vec4<f32>(q_tile[at + 1u]);
                    let q2 = vec4<f32>(q_tile[at + 2u]);
                    let q3 = vec4<f32>(q_tile[at + 3u]);
                    for (var e = 0u; e < KEYS_EACH; e++) {
                        let k = vec4<f32>(kv_tile[d * KEY_PITCH + e * COLUMNS + column]);
                        scores[e] += vec4<f32>(dot(q0, k), dot(q1, k), dot(q2, k), dot(q3, k));
                    }
                }
                workgroupBarrier();
            }

            var here = vec4<f32>(UNSEEN);
            let last = select(high, high - after(), part.kind == CAUSAL);
            for (var e = 0u; e < KEYS_EACH; e++) {
                let j = key0 + e * COLUMNS + column;
                var seen = (vec4<i32>(i32(j)) >= low) & (vec4<i32>(i32(j)) <= last) & vec4<bool>(j < end);
                if (LISTED && part.kind >= 0) {
                    for (var r = 0u; r < 4u; r++) {
                        seen[r] = seen[r] && shown(part.kind, place.row + group * 4u + r, j);
                    }
                }
                scores[e] = select(vec4<f32>(UNSEEN), launch.params.scale * scores[e], seen);
                here = max(here, scores[e]);
            }
            gathered[lane] = here;
            workgroupBarrier();
            let highest = max(most, gathered_max(group));
            let rescale = exp(most - highest);
            most = highest;
            sum *= rescale;
            for (var e = 0u; e < KEYS_EACH; e++) {
                // Where no key was seen yet the maximum is UNSEEN itself, and exp(0) would count.
                let weight = select(exp(scores[e] - most), vec4<f32>(), scores[e] == vec4<f32>(UNSEEN));
                weights[group * KEY_PITCH + e * COLUMNS + column] = weight;
                sum += weight;
            }
            for (var c = 0u; c < QUADS_EACH; c++) {
                outputs[c * 4u] *= rescale.x;
                outputs[c * 4u + 1u] *= rescale.y;
                outputs[c * 4u + 2u] *= rescale.z;
                outputs[c * 4u + 3u] *= rescale.w;
            }

            for (var k0 = 0u; k0 < KEYS; k0 += VALUE_KEYS) {
                stage_values(place, lane, key0 + k0, end);
                workgroupBarrier();
                for (var k = 0u; k < min(VALUE_KEYS, KEYS - k0); k++) {
                    let weight = weights[group * KEY_PITCH + k0 + k];
                    for (var c = 0u; c < QUADS_EACH; c++) {
                        let v = vec4<f32>(kv_tile[k * VALUE_PITCH + c * COLUMNS + column]);
                        outputs[c * 4u] += weight.x * v;
                        outputs[c * 4u + 1u] += weight.y * v;
                        outputs[c * 4u + 2u] += weight.z * v;
                        outputs[c * 4u + 3u] += weight.w * v;
                    }
                }
                workgroupBarrier();
            }
        }
    }

    gathered[lane] = sum;
    workgroupBarrier();
    let total = gathered_sum(group);
    for (var r = 0u; r < 4u; r++) {
        let row = place.row + group * 4u + r;
        if (row < place.rows) {
            finish_row(place, row, column, most[r], total[r]);
            for (var c = 0u; c < QUADS_EACH; c++) {
                let quad = c * COLUMNS + column;
                if (quad < QUADS) {
                    finish_quad(place, row, quad, outputs[c * 4u + r], total[r]);
                }
            }
        }
    }
}
