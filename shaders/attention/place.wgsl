// What both shaders of attention share: parameters, and the rows that a workgroup has.
//
// The query heads that read one key head (`packed` of them) are rows of one problem, token by token, so that a tile is
// full also where there is one query. The forms (dense.wgsl and its siblings) say where sequences and keys lie.

struct Params {
    // Elements from one sequence (k and v paged: page), token and head to the next.
    q_batch: u32,
    q_token: u32,
    q_head: u32,
    k_batch: u32,
    k_token: u32,
    k_head: u32,
    v_batch: u32,
    v_token: u32,
    v_head: u32,
    o_batch: u32,
    o_token: u32,
    o_head: u32,
    // Number of the dispatch's first group, and of the sequence at which its operands begin.
    first_group: u32,
    first_batch: u32,
    // Of every sequence, or the most.
    q_len: u32,
    kv_len: u32,
    // Heads of q, and in the upper half how many of them read one head of k.
    heads: u32,
    // Parts that the keys of a tile are divided into, and keys of a part.
    splits: u32,
    split_keys: u32,
    // How many keys before its own position a query sees. With the highest bit it sees none behind that, else as many.
    reach: u32,
    scale: f32,
    // Of the form's own meaning.
    form0: u32,
    form1: u32,
    form2: u32,
}

const ROWS = 4u * ROW_GROUPS;
const LANES = COLUMNS * ROW_GROUPS;
// Quads (four elements, the last one not always full) of a head.
const QUADS = (HEAD_DIM + 3u) / 4u;
// Below every score, and far enough from the end of f32 that a difference times log2(e) is finite: WGSL promises
// nothing for infinities.
const UNSEEN = -1e38;
// Elements of a part's results: its maximum, its sum, its sums of values.
const PARTIAL_PITCH = 4u * QUADS + 2u;

// Kinds of a segment; others are numbers of bit masks.
const FULL = -1;
const CAUSAL = -2;

// Keys from start to before end, and what is seen of them.
struct Segment {
    start: i32,
    end: i32,
    kind: i32,
}

// Where a sequence's tokens start, and how many there are.
struct Sequence {
    q_start: u32,
    q_len: u32,
    kv_start: u32,
    kv_len: u32,
}

// The rows of a workgroup, in a problem of `rows` rows.
struct Place {
    // Of the dispatch's operands, and of the index data.
    batch: u32,
    absolute_batch: u32,
    // Which sequence of q, k and v it is.
    slot: u32,
    // First query head.
    head: u32,
    // Query heads that are rows of one token.
    packed: u32,
    row: u32,
    rows: u32,
    split: u32,
    sequence: Sequence,
}

// A query at position p sees the keys p - before() to p + after().
fn before() -> i32 {
    return i32(launch.params.reach & 0x7fffffffu);
}

fn after() -> i32 {
    return select(before(), 0, launch.params.reach >> 31u == 1u);
}

fn query_heads() -> u32 {
    return launch.params.heads & 0xffffu;
}

fn heads_a_key_head() -> u32 {
    return launch.params.heads >> 16u;
}

// Group `number`, of a grid [sequences, heads / packed, tiles of the longest sequence, splits].
fn find_place(number: u32, splits: u32, lane: u32) -> Place {
    var place: Place;
    place.packed = select(heads_a_key_head(), 1u, LISTED);
    let tiles = (launch.params.q_len * place.packed + ROWS - 1u) / ROWS;
    let heads = query_heads() / place.packed;
    place.split = number % splits;
    place.row = number / splits % tiles * ROWS;
    let pair = number / splits / tiles;
    place.head = pair % heads * place.packed;
    place.batch = pair / heads;
    place.absolute_batch = launch.params.first_batch + place.batch;
    place.slot = place.batch;
    if (AT_SLOTS) {
        place.slot = u32(load_slots(place.absolute_batch));
    }
    place.sequence = find_sequence(place.absolute_batch, lane);
    place.rows = place.sequence.q_len * place.packed;
    return place;
}

// Of a row: the query's number in its sequence.
fn token_of(place: Place, row: u32) -> u32 {
    return row / place.packed;
}

// Of a row: its query head.
fn head_of(place: Place, row: u32) -> u32 {
    return place.head + row % place.packed;
}

// The place of a row's LSE; also the number of the row among the partial results.
fn row_number(place: Place, row: u32) -> u32 {
    return lse_place(place.batch, head_of(place, row), place.sequence.q_start, token_of(place, row));
}

// Writes quad `quad` of a row of o.
fn store_output(place: Place, row: u32, quad: u32, values: vec4<f32>) {
    let token = place.sequence.q_start + token_of(place, row);
    let at = place.batch * launch.params.o_batch + token * launch.params.o_token + head_of(place, row) * launch.params.o_head + quad * 4u;
    if (quad * 4u + 4u <= HEAD_DIM) {
        store4_o(at, values);
        return;
    }
    for (var i = 0u; quad * 4u + i < HEAD_DIM; i++) {
        store_o(at + i, values[i]);
    }
}

// The LSE of a row with that maximum and that sum of exponentials above it: minus infinity where there was no key.
fn lse_of(most: f32, sum: f32) -> f32 {
    // Through a variable: WGSL has no literal for infinity, and refuses a constant expression that gives one.
    var infinity = 0xff800000u;
    return select(most + log(select(sum, 1.0, sum == 0.0)), bitcast<f32>(infinity), sum == 0.0);
}
