// Dense: every sequence has the same lengths, and every key is listed.

const LISTED = false;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    return Sequence(0u, launch.params.q_len, 0u, launch.params.kv_len);
}

// Which sequence (k_batch apart) and token (k_token apart) key j is.
fn key_place(place: Place, j: u32) -> vec2<u32> {
    return vec2<u32>(place.slot, j);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return (batch * query_heads() + head) * launch.params.q_len + token;
}

// Ranges of keys that the form lists: one, of all that the masks leave.
fn segments(place: Place, first: u32, lane: u32) -> vec2<u32> {
    return vec2<u32>(0u, 1u);
}

fn segment(number: u32, range: vec2<i32>, lane: u32) -> Segment {
    return Segment(range.x, range.y, FULL);
}

fn shown(kind: i32, token: u32, j: u32) -> bool {
    return true;
}
