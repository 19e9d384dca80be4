//! Language models. What is here decides without a device, a clock or a thread, so that tests can try every case of it.
//!
//! | module | what is in it |
//! |---|---|
//! | [`cache`] | pages of K and V: reference counts, prefixes by chained hashes, a request's list of pages |
//! | [`sample`] | the choice of a token from logits |
//! | [`step`] | what a schedule tells a model to compute |

pub mod cache;
pub mod sample;
pub mod schedule;
pub mod step;
