//! What is hunted for.

use std::time::Duration;

use crate::bench::shape::{Point, Suite};
use trifuse::dtype::DType;

/// What to hunt for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The suites whose operations are measured, by turns.
    pub suites: Vec<Suite>,
    /// Element type of every operand.
    pub dtype: DType,
    /// What shapes are drawn from.
    pub seed: u64,
    /// How long: no shape begins after it.
    pub budget: Duration,
    /// How many shapes at most, where not all that there is time for.
    pub shapes: Option<u64>,
    /// Shapes that are measured before any is drawn.
    pub first: Vec<Point>,
}
