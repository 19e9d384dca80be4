//! The book-keeping of pages of K and V. The pages themselves lie on a device; here they are numbers.
//!
//! A page holds a fixed number of tokens. Whoever computes a full page may name it by a [`Digest`] of all tokens up to its end, of the model,
//! and of the adapter's content. A later request with the same beginning takes the page instead of computing it.

mod blocks;
mod prefix;
mod table;

pub use blocks::Blocks;
pub use prefix::{Digest, link, seed};
pub use table::{Hits, Table};
