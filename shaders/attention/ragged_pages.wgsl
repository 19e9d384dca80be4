// Queries in numbers of their own end to end, keys in pages of a pool. index: cu_q[batch + 1], kv_len[batch], page_table[batch, pages].
// form0: batch. form1: queries of all sequences, and spare ones. form2: tokens of a page; kv_len has whole pages.
//
// Spare queries are taken as sequences behind the others, of q_len queries at most, that have no keys.

const LISTED = false;

var<workgroup> found: vec3<u32>;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    if (lane == 0u) {
        let sequences = launch.params.form0;
        let start = u32(load_index(min(batch, sequences)));
        if (batch < sequences) {
            found = vec3<u32>(start, u32(load_index(batch + 1u)) - start, u32(load_index(sequences + 1u + batch)));
        } else {
            let first = min(start + (batch - sequences) * launch.params.q_len, launch.params.form1);
            found = vec3<u32>(first, min(launch.params.form1 - first, launch.params.q_len), 0u);
        }
    }
    let same = workgroupUniformLoad(&found);
    return Sequence(same.x, same.y, 0u, same.z);
}

fn key_place(place: Place, j: u32) -> vec2<u32> {
    let table = 2u * launch.params.form0 + 1u;
    let page = load_index(table + place.absolute_batch * (launch.params.kv_len / launch.params.form2) + j / launch.params.form2);
    return vec2<u32>(u32(page), j % launch.params.form2);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return head * launch.params.form1 + q_start + token;
}

fn segments(place: Place, first: u32, lane: u32) -> vec2<u32> {
    return vec2<u32>(0u, 1u);
}

// Steps begin at multiples of their keys, wherever the tile's first key is: what a query sums does not depend on its tile.
fn segment(number: u32, range: vec2<i32>, lane: u32) -> Segment {
    return Segment(range.x / i32(KEYS) * i32(KEYS), range.y, FULL);
}

fn shown(kind: i32, token: u32, j: u32) -> bool {
    return true;
}
