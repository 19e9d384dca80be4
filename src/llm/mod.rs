//! Language models. What is here decides without a device, a clock or a thread, so that tests can try every case of it.
//!
//! | module | what is in it |
//! |---|---|
//! | [`cache`] | pages of K and V: reference counts, prefixes by chained hashes, a request's list of pages |
//! | [`schedule`] | which requests run in a step, and with how many tokens |
//! | [`sample`] | the choice of a token from logits |
//! | [`step`] | what a schedule tells a model to compute |
//! | [`tokens`] | text from tokens as they come: UTF-8 and stop strings across their edges |

pub mod cache;
pub mod sample;
pub mod schedule;
pub mod step;
pub mod tokens;
