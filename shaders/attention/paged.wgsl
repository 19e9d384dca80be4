// Keys in pages of a pool. index: kv_len[batch], page_table[batch, pages]. form0: batch. form1: pages a sequence.
// form2: tokens of a page.

const LISTED = false;

var<workgroup> found: u32;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    if (lane == 0u) {
        found = u32(load_index(batch));
    }
    return Sequence(0u, launch.params.q_len, 0u, workgroupUniformLoad(&found));
}

fn key_place(place: Place, j: u32) -> vec2<u32> {
    let page = load_index(launch.params.form0 + place.absolute_batch * launch.params.form1 + j / launch.params.form2);
    return vec2<u32>(u32(page), j % launch.params.form2);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return (batch * query_heads() + head) * launch.params.q_len + token;
}

fn segments(place: Place, first: u32, lane: u32) -> vec2<u32> {
    return vec2<u32>(0u, 1u);
}

fn segment(number: u32, range: vec2<i32>, lane: u32) -> Segment {
    return Segment(range.x, range.y, FULL);
}

fn shown(kind: i32, token: u32, j: u32) -> bool {
    return true;
}
