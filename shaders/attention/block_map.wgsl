// Dense, and only the blocks of which a map says that they are there: a byte for each, [patterns, q_blocks, kv_blocks].
// form0: queries and keys of a block. form1: patterns.

// Whether the query heads that read one key head must be apart, because each may have its own pattern.
const LISTED = true;
// The bytes of blocks that are not there, and of those under the causal mask.
const ABSENT = 0;
const UNDER_CAUSAL = 2;

// Where the tile's row of the map starts.
var<workgroup> row_start: u32;
var<workgroup> found: i32;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    return Sequence(0u, launch.params.q_len, 0u, launch.params.kv_len);
}

fn key_place(place: Place, j: u32) -> vec2<u32> {
    return vec2<u32>(place.slot, j);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return (batch * query_heads() + head) * launch.params.q_len + token;
}

fn blocks_of(tokens: u32) -> u32 {
    return (tokens + launch.params.form0 - 1u) / launch.params.form0;
}

// All columns. A tile lies in one block of queries, because its rows are of one head and ROWS divides a block.
fn segments(place: Place, first: u32, lane: u32) -> vec2<u32> {
    let patterns = launch.params.form1;
    let of_all = place.absolute_batch * query_heads() + place.head;
    let pattern = select(select(of_all, place.head, patterns == query_heads()), 0u, patterns == 1u);
    let columns = blocks_of(launch.params.kv_len);
    if (lane == 0u) {
        row_start = (pattern * blocks_of(launch.params.q_len) + first / launch.params.form0) * columns;
    }
    return vec2<u32>(0u, columns);
}

// The keys of a block that are in range; none where the block is not there.
fn segment(number: u32, range: vec2<i32>, lane: u32) -> Segment {
    if (lane == 0u) {
        let at = row_start + number;
        found = (load_index(at / 4u) >> (at % 4u * 8u)) & 0xff;
    }
    let byte = workgroupUniformLoad(&found);
    let start = i32(number * launch.params.form0);
    let end = select(start + i32(launch.params.form0), start, byte == ABSENT);
    return Segment(max(start, range.x), min(end, range.y), select(FULL, CAUSAL, byte == UNDER_CAUSAL));
}

fn shown(kind: i32, token: u32, j: u32) -> bool {
    return true;
}
