//! The answer of speed rules.

/// Whether a variant is worth taking, or what is faster.
pub(crate) type Worth = std::result::Result<(), String>;

/// The answer of a rule: worth taking where `worth` is true, else the reason of `else_why`.
pub(super) fn when(worth: bool, else_why: impl FnOnce() -> String) -> Worth {
    if worth { Ok(()) } else { Err(else_why()) }
}
