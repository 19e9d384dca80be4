// wide[e, j] = F[e, j]: one factor [d, rank], dense or coded, as f32 for attend.wgsl. An invocation takes four rows of a column.

struct Params {
    d: u32,
    rank: u32,
    // Words of the codes.
    words: u32,
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group_number(group, groups);
    if (number >= launch.groups) {
        return;
    }
    let origin = open_factor(0u, lane);
    workgroupBarrier();
    // 16 columns of 64 rows.
    let across = (launch.params.rank + 15u) / 16u;
    let j = number % across * 16u + lane_column(lane);
    let e = number / across * 64u + lane_run(lane) * 4u;
    if (j >= launch.params.rank || e >= launch.params.d) {
        return;
    }
    let run = factor_run(origin, j, e);
    for (var i = 0u; i < min(4u, launch.params.d - e); i++) {
        store_wide((e + i) * launch.params.rank + j, run[i]);
    }
}
