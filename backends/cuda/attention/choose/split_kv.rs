//! The length of the parts into which rows of blocks are cut: a model of the time, fitted to measurements.

/// The fewest k-blocks of a part. A shorter one is mostly beginning and end.
pub(crate) const LEAST: u64 = 2;
/// Measured times in tenths of a k-block: to begin and end a tile; besides, to leave a part for others to join; and a plan.
const TILE_TENTHS: u64 = 6;
const PART_TENTHS: u64 = 24;
const PLAN_TENTHS: u64 = 16;

/// Heads of a pattern that are taken together. `cached` of them have keys that fit L2 together. All are taken where two bands would do: the
/// second would be small beside its longest rows, and they would come late.
pub(crate) fn taken_together(cached: u64, copies: u64) -> u64 {
    if copies <= 2 * cached { copies.max(1) } else { cached }
}

/// The most k-blocks of a part. Candidates are an SM's share of a band, and a whole, a half, a third and a quarter of the mean row. The one
/// with the least time wins, were all rows as long as the mean one. Longer rows are cut into more parts, and keep nothing waiting.
pub(crate) fn part_length([rows, copies, band]: [u64; 3], steps: u64, units: u64) -> u64 {
    let (share, mean) = ((steps * band).div_ceil(units).max(LEAST), steps.div_ceil(rows.max(1)).max(1));
    let time = |&length: &u64| {
        let parts = mean.div_ceil(length);
        let (leaving, planning) = if parts > 1 { (PART_TENTHS, PLAN_TENTHS) } else { (0, 0) };
        (rows * copies * parts).div_ceil(units) * (10 * mean.div_ceil(parts) + TILE_TENTHS + leaving) + planning
    };
    // Of equal times the first wins.
    [share].into_iter().chain((1..=4).map(|parts| mean.div_ceil(parts).max(LEAST))).min_by_key(time).unwrap_or(share)
}
