//! What the rules of speed answer.

/// Whether a variant is worth taking, or what is faster.
pub(crate) type Worth = std::result::Result<(), String>;

/// That it is, where `worth`.
pub(super) fn when(worth: bool, else_why: impl FnOnce() -> String) -> Worth {
    if worth { Ok(()) } else { Err(else_why()) }
}
