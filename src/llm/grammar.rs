//! Languages that an answer may be held to: a rule says which tokens may come next.

use std::fmt::Debug;

use crate::error::Result;

/// A language of answers.
pub trait Grammar: Debug + Send + Sync {
    /// The rule of an answer that has no token yet.
    ///
    /// # Errors
    /// A language that has no answer.
    fn begin(&self) -> Result<Box<dyn Rule>>;
}

/// How far one answer has come in its language.
pub trait Rule: Send {
    /// Sets the bits of the tokens that may come next, in a mask of zeros: id `i` is bit `i mod 32` of word `i / 32`. A token that ends the answer is
    /// among them where the answer is complete.
    ///
    /// # Errors
    /// A state from which nothing can come, or that takes more work than is allowed.
    fn allow(&mut self, mask: &mut [u32]) -> Result<()>;

    /// Takes the token that was drawn.
    ///
    /// # Errors
    /// A token that was not allowed.
    fn push(&mut self, token: u32) -> Result<()>;
}
