//! How much of a suite is measured.

use crate::device::Kind;

/// Which list of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// What runs the work: a processor, be it behind a graphics driver, gets shapes that end in its lifetime.
    pub kind: Kind,
    /// A few shapes that stand for the rest.
    pub quick: bool,
}
