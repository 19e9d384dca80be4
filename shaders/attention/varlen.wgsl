// Sequences of different length end to end. index: cu_q[batch + 1], cu_kv[batch + 1]. form0: batch. form1: queries of
// all sequences.

const LISTED = false;

var<workgroup> found: vec4<u32>;

fn find_sequence(batch: u32, lane: u32) -> Sequence {
    if (lane == 0u) {
        let q = u32(load_index(batch));
        let kv = u32(load_index(launch.params.form0 + 1u + batch));
        found = vec4<u32>(q, u32(load_index(batch + 1u)) - q, kv, u32(load_index(launch.params.form0 + 2u + batch)) - kv);
    }
    let same = workgroupUniformLoad(&found);
    return Sequence(same.x, same.y, same.z, same.w);
}

fn key_place(place: Place, j: u32) -> vec2<u32> {
    return vec2<u32>(0u, place.sequence.kv_start + j);
}

fn lse_place(batch: u32, head: u32, q_start: u32, token: u32) -> u32 {
    return head * launch.params.form1 + q_start + token;
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
