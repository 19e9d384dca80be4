//! How long the parts are that rows of blocks are cut into: a model of the time, fitted to what was measured.

/// Steps of a part at least: of a shorter one most is beginning and end.
pub(crate) const LEAST: u64 = 2;
/// What beginning and ending a tile takes; leaving a part for others to join besides; and a plan: in tenths of a step, as measured.
const TILE_TENTHS: u64 = 6;
const PART_TENTHS: u64 = 24;
const PLAN_TENTHS: u64 = 16;

/// Heads of a pattern, of which `cached` have keys that fit the cache together: all where two bands would do. The second would be
/// small beside its longest rows, and they would come late.
pub(crate) fn taken_together(cached: u64, copies: u64) -> u64 {
    if copies <= 2 * cached { copies.max(1) } else { cached }
}

/// Steps of a part at most: what takes least time were all rows as long as the mean one, of an SM's share of a band and
/// a whole, a half, a third and a quarter of that row. Longer rows are cut into more of them, and keep nobody waiting.
pub(crate) fn part_length([rows, copies, band]: [u64; 3], steps: u64, units: u64) -> u64 {
    let (share, mean) = ((steps * band).div_ceil(units).max(LEAST), steps.div_ceil(rows.max(1)).max(1));
    let time = |&length: &u64| {
        let parts = mean.div_ceil(length);
        let (leaving, planning) = if parts > 1 { (PART_TENTHS, PLAN_TENTHS) } else { (0, 0) };
        (rows * copies * parts).div_ceil(units) * (10 * mean.div_ceil(parts) + TILE_TENTHS + leaving) + planning
    };
    // Of equals the first.
    [share].into_iter().chain((1..=4).map(|parts| mean.div_ceil(parts).max(LEAST))).min_by_key(time).unwrap_or(share)
}
