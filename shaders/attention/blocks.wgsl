// Dense, and only the listed blocks. index: row_ptr[patterns, q_blocks + 1], col_idx[capacity], kind[capacity], the bit
// masks. form0: queries and keys of a block. form1: patterns. form2: capacity.

// Whether the query heads that read one key head must be apart, because each may have its own pattern.
const LISTED = true;

var<workgroup> found: vec2<i32>;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    return Sequence(0u, launch.params.q_len, 0u, launch.params.kv_len);
}

fn key_place(place: Place, j: u32) -> vec2<u32> {
    return vec2<u32>(place.slot, j);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return (batch * query_heads() + head) * launch.params.q_len + token;
}

fn row_pointers() -> u32 {
    return (launch.params.q_len + launch.params.form0 - 1u) / launch.params.form0 + 1u;
}

// The places in the lists of the blocks that the tile's queries see. A tile lies in one block of queries, because its
// rows are of one head and ROWS divides a block.
fn segments(place: Place, first: u32, lane: u32) -> vec2<u32> {
    let patterns = launch.params.form1;
    let of_all = place.absolute_batch * query_heads() + place.head;
    let pattern = select(select(of_all, place.head, patterns == query_heads()), 0u, patterns == 1u);
    let at = pattern * row_pointers() + first / launch.params.form0;
    if (lane == 0u) {
        found = vec2<i32>(load_index(at), load_index(at + 1u));
    }
    return vec2<u32>(workgroupUniformLoad(&found));
}

// The keys of a listed block that are in range.
fn segment(number: u32, range: vec2<i32>, lane: u32) -> Segment {
    let columns = launch.params.form1 * row_pointers();
    if (lane == 0u) {
        found = vec2<i32>(load_index(columns + number), load_index(columns + launch.params.form2 + number));
    }
    let block = workgroupUniformLoad(&found);
    let start = block.x * i32(launch.params.form0);
    return Segment(max(start, range.x), min(start + i32(launch.params.form0), range.y), block.y);
}

// Whether the block's bit mask, where it has one, lets the query see key j.
fn shown(kind: i32, token: u32, j: u32) -> bool {
    if (kind < 0) {
        return true;
    }
    let block = launch.params.form0;
    let masks = launch.params.form1 * row_pointers() + 2u * launch.params.form2;
    let word = masks + u32(kind) * (block * block / 32u) + token % block * (block / 32u) + j % block / 32u;
    return ((load_index(word) >> (j % 32u)) & 1) == 1;
}
