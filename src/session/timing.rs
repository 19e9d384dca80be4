//! What is known of launches that are timed by themselves.

use crate::ops::Cost;

/// A launch that was timed by itself.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Launched {
    /// What the launch was for, as its caller named it; empty where it named nothing.
    pub role: &'static str,
    /// The name of the operation.
    pub operation: &'static str,
    /// The rows of the result, their columns, and what each element is made of ([`Op::sizes`](crate::ops::Op::sizes)).
    pub sizes: [u64; 3],
    /// The variant that ran.
    pub variant: &'static str,
    /// Its configuration, where it has several.
    pub config: Option<String>,
    /// The work and the least traffic of the operation.
    pub cost: Cost,
    /// The seconds from the end of what came before to its own end.
    pub seconds: f64,
}

/// The launches of a body that is timed.
pub(super) struct Timing<E> {
    /// What the launches from here on are for.
    pub role: &'static str,
    /// Each with the event behind it. Its time is not known yet.
    pub launches: Vec<(Launched, E)>,
}
