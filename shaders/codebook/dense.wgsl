// A dense factor: `values` [factors, d, rank], shared by many adapters, or one an adapter (a core).

// Of 16 columns and 16 runs of four rows, which are an invocation's: neighbours read neighbouring columns.
fn lane_column(lane: u32) -> u32 {
    return lane % 16u;
}

fn lane_run(lane: u32) -> u32 {
    return lane / 16u;
}

fn lane_of(column: u32, run: u32) -> u32 {
    return run * 16u + column;
}

// Makes ready to read factor `factor`; what the functions below need of it. A barrier must follow.
fn open_factor(factor: u32, lane: u32) -> u32 {
    return factor * launch.params.d * launch.params.rank;
}

// Rows e to e + 3 of column j, zeros past the last row.
fn factor_run(origin: u32, j: u32, e: u32) -> vec4<f32> {
    let rank = launch.params.rank;
    let at = origin + e * rank + j;
    let there = launch.params.d - e;
    if (there >= 4u) {
        return vec4<f32>(load_values(at), load_values(at + rank), load_values(at + 2u * rank), load_values(at + 3u * rank));
    }
    var run = vec4<f32>();
    for (var i = 0u; i < there; i++) {
        run[i] = load_values(at + i * rank);
    }
    return run;
}
