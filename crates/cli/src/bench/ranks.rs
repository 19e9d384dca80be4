//! The products of factored projections, at the ranks of a file of times: what `bench hunt` measures first, and pictures find again.

use trifuse::DType;
use trifuse::shrink::profile::Profile;

use super::shape::{Padding, Point, Shape, Suite};

/// The two products of a projection `[d_out, d_in]` in factors of that rank, the first one first.
pub fn factors([d_out, d_in]: [u64; 2], rank: u64, tokens: u64) -> [Shape; 2] {
    let product = |d_out: u64, d_in: u64| {
        // As weights are packed when they are loaded.
        let padding = if d_in.is_multiple_of(8) { Padding::None } else { Padding::Weights };
        Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers: 1 }
    };
    [product(rank, d_in), product(d_out, rank)]
}

/// The whole projection.
pub fn whole([d_out, d_in]: [u64; 2], tokens: u64) -> Shape {
    let [first, _] = factors([d_out, d_in], d_out, tokens);
    first
}

/// Every product of the profile's shapes, ranks and rows.
pub fn points(profile: &Profile, dtype: DType) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for times in &profile.shapes {
        for &rows in &profile.rows {
            let ranks = times.ranks.keys().flat_map(|&rank| factors(times.shape, rank, rows));
            for shape in std::iter::once(whole(times.shape, rows)).chain(ranks) {
                let point = Point { suite: Suite::Linear, dtype, captured: true, shape };
                // Projections share some.
                if !points.contains(&point) {
                    points.push(point);
                }
            }
        }
    }
    points
}
