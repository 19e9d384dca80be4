// A token for each row of logits, one row a workgroup. A token is ranked by a key, which grows with its logit and is 0 where it is never drawn.
// Thresholds become a cut: of the tokens by falling key, and by rising id where keys are equal, those up to the cut stay. A cut is found bit by
// bit, as the last place at which the weight of what stays reaches what is wanted.

struct Params {
    vocabulary: u32,
    // Elements from a row of logits to the next, and words of a row of the mask.
    stride: u32,
    words: u32,
}

struct Cut {
    key: u32,
    id: u32,
}

const WIDTH = 256u;

var<workgroup> numbers: array<f32, WIDTH>;
var<workgroup> marks: array<u32, WIDTH>;

// The sum of every invocation's value, halves added in a fixed order.
fn sum_all(value: f32, lane: u32) -> f32 {
    numbers[lane] = value;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            numbers[lane] += numbers[lane + half];
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&numbers[0]);
}

// The greatest of every invocation's value.
fn max_all(value: u32, lane: u32) -> u32 {
    marks[lane] = value;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            marks[lane] = max(marks[lane], marks[lane + half]);
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&marks[0]);
}

// A word of the row's parameters, the same for all invocations.
fn parameter(row: u32, word: u32, lane: u32) -> u32 {
    workgroupBarrier();
    if (lane == 0u) {
        marks[0] = load_params(row * 8u + word);
    }
    return workgroupUniformLoad(&marks[0]);
}

// Keys compare as logits do, and zeros of both signs are equal. What is no number, or minus infinity, has none.
fn key_of_bits(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u) {
        return 0u;
    }
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return select(bits ^ 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, (key >> 31u) == 1u));
}

fn key_of(row: u32, id: u32) -> u32 {
    if (MASK && ((load_mask(row * launch.params.words + id / 32u) >> (id % 32u)) & 1u) == 0u) {
        return 0u;
    }
    return key_of_bits(bitcast<u32>(load_logits(row * launch.params.stride + id)));
}

// Philox 4x32 with 10 rounds.
fn philox(start: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = seed;
    for (var round = 0u; round < 10u; round += 1u) {
        let first = product(counter.x, 0xd2511f53u);
        let second = product(counter.z, 0xcd9e8d57u);
        counter = vec4<u32>(second.x ^ counter.y ^ key.x, second.y, first.x ^ counter.w ^ key.y, first.y);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

// Gumbel noise of a word: −ln(−ln(1 − u)), u = (word + ½) / 2³².
fn noise(word: u32) -> f32 {
    const UNIT = 2.3283064365386963e-10;
    let u = (f32(word) + 0.5) * UNIT;
    var e: f32;
    if (word < 0x80000000u) {
        // The logarithm of a number near 1 has few right digits: 2·artanh(u / (2 − u)) by its series instead.
        let s = u / (2.0 - u);
        let q = s * s;
        e = 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q / 13.0))))));
    } else {
        // 1 − u, from the word's complement.
        e = -log((f32(~word) + 0.5) * UNIT);
    }
    return -log(e);
}

// What a row keeps so far.
struct Kept {
    highest: f32,
    highest_key: u32,
    temperature: f32,
    min_p: f32,
    cut: Cut,
}

fn within(cut: Cut, key: u32, id: u32) -> bool {
    return key > cut.key || (key == cut.key && id <= cut.id);
}

// The probability of a token as a part of the highest one; 0 where it does not stay.
fn weight(kept: Kept, key: u32, id: u32) -> f32 {
    if (key == 0u || !within(kept.cut, key, id)) {
        return 0.0;
    }
    if (key == kept.highest_key) {
        return 1.0;
    }
    let part = exp((logit_of(key) - kept.highest) / kept.temperature);
    return select(part, 0.0, part < kept.min_p);
}

// The weight of what stays of the tokens above `cut`, or of those at its key with lower ids. Each counts 1 where `count` says so.
fn reach(row: u32, kept: Kept, cut: Cut, ties: bool, count: bool, lane: u32) -> f32 {
    var sum = 0.0;
    for (var id = lane; id < launch.params.vocabulary; id += WIDTH) {
        let key = key_of(row, id);
        if (select(key >= cut.key, key == cut.key && id < cut.id, ties)) {
            let part = weight(kept, key, id);
            sum += select(part, 1.0, count && key != 0u);
        }
    }
    return sum_all(sum, lane);
}

// The first place at which the weight of what stays reaches `wanted`, which is above 0.
fn find_cut(row: u32, kept: Kept, wanted: f32, count: bool, lane: u32) -> Cut {
    var cut = Cut(0u, 0u);
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
        if (reach(row, kept, Cut(cut.key | bit, 0u), false, count, lane) >= wanted) {
            cut.key |= bit;
        }
    }
    var rest = wanted;
    if (cut.key < 0xffffffffu) {
        rest -= reach(row, kept, Cut(cut.key + 1u, 0u), false, count, lane);
    }
    for (var bit = 0x40000000u; bit > 0u; bit >>= 1u) {
        if ((cut.id | bit) < launch.params.vocabulary && reach(row, kept, Cut(cut.key, cut.id | bit), true, count, lane) < rest) {
            cut.id |= bit;
        }
    }
    return cut;
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
    let vocabulary = launch.params.vocabulary;
    let start = row * launch.params.stride;

    // The highest logit of all, and of those that may be drawn.
    var greatest = 0u;
    var any = 0u;
    for (var id = lane; id < vocabulary; id += WIDTH) {
        greatest = max(greatest, key_of(row, id));
        any = max(any, key_of_bits(bitcast<u32>(load_logits(start + id))));
    }
    let highest_key = max_all(greatest, lane);
    let highest_of_all = logit_of(max_all(any, lane));
    if (highest_key == 0u) {
        if (lane == 0u) {
            atomicStore(&ids[launch.ids_offset + row], -1);
            store_log_probability(row, bitcast<f32>(0xff800000u));
        }
        return;
    }
    var part = 0.0;
    for (var id = lane; id < vocabulary; id += WIDTH) {
        let key = key_of_bits(bitcast<u32>(load_logits(start + id)));
        if (key != 0u) {
            part += exp(logit_of(key) - highest_of_all);
        }
    }
    let log_sum = log(sum_all(part, lane));

    let temperature = bitcast<f32>(parameter(row, 0u, lane));
    let top_p = bitcast<f32>(parameter(row, 1u, lane));
    let min_p = bitcast<f32>(parameter(row, 2u, lane));
    let top_k = parameter(row, 3u, lane);
    let seed = vec2<u32>(parameter(row, 4u, lane), parameter(row, 5u, lane));
    let position = parameter(row, 6u, lane);
    // Compared as bits: a driver need not know what is no number.
    let draws = (bitcast<u32>(temperature) - 1u) < 0x7f800000u;

    var kept = Kept(logit_of(highest_key), highest_key, temperature, min_p, Cut(0u, 0xffffffffu));
    if (draws) {
        let most = select(top_k, 1u, min_p > 1.0);
        if (most > 0u && most < vocabulary) {
            let present = reach(row, kept, Cut(1u, 0u), false, true, lane);
            if (f32(most) < present) {
                kept.cut = find_cut(row, kept, f32(most), true, lane);
            }
        }
        if (top_p < 1.0) {
            let all = reach(row, kept, Cut(1u, 0u), false, false, lane);
            let cut = find_cut(row, kept, max(top_p * all, 1e-30), false, lane);
            // Both are places in one order: the earlier one holds.
            if (within(kept.cut, cut.key, cut.id)) {
                kept.cut = cut;
            }
        }
    }

    // The best of each invocation, then of all: the highest score, of equal ones the lowest id.
    var best = 0u;
    var winner = vocabulary;
    for (var id = lane; id < vocabulary; id += WIDTH) {
        let key = key_of(row, id);
        if (key == 0u || (draws && weight(kept, key, id) == 0.0)) {
            continue;
        }
        var rank = key;
        if (draws) {
            let words = philox(vec4<u32>(id / 4u, position, 0u, 0u), seed);
            rank = max(key_of_bits(bitcast<u32>(logit_of(key) / temperature + noise(words[id % 4u]))), 1u);
        }
        if (rank > best) {
            best = rank;
            winner = id;
        }
    }
    let first = max_all(best, lane);
    let token = 0xffffffffu - max_all(select(0u, 0xffffffffu - winner, best == first), lane);
    if (lane == 0u) {
        atomicStore(&ids[launch.ids_offset + row], i32(token));
        store_log_probability(row, (load_logits(start + token) - highest_of_all) - log_sum);
    }
}
