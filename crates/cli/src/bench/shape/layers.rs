//! How many operations are in a row, each on what the one before wrote: one, where a name or a report does not say.

/// What follows a name where there are more than one.
pub(super) fn in_a_row(layers: u64) -> String {
    if is_one(&layers) { String::new() } else { format!(", {layers} layers") }
}

/// What a report leaves out.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
pub(super) fn is_one(layers: &u64) -> bool {
    *layers == 1
}

/// What is meant where a report has left it out.
pub(super) const fn one() -> u64 {
    1
}
