//! Language models. What is here decides without a device, a clock or a thread, so that tests can try every case of it.
//!
//! | module | what is in it |
//! |---|---|
//! | [`cache`] | pages of K and V: reference counts, prefixes by chained hashes, a request's list of pages |
//! | [`schedule`] | which requests run in a step, and with how many tokens |
//! | [`step`] | what a schedule tells a model to compute |

pub mod cache;
pub mod schedule;
pub mod step;
