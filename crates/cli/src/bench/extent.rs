//! How much of a suite is measured.

use trifuse::device::Kind;

/// The list of a suite that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// What runs the work: a processor, be it behind a graphics driver, gets shapes that end in its lifetime.
    pub kind: Kind,
    /// A few shapes that stand for the rest.
    pub quick: bool,
}
