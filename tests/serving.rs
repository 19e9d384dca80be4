//! What serving decides without a device: pages, schedules, sampling, text as it comes.
#![cfg(feature = "llm")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "serving/cache.rs"]
mod cache;
#[path = "serving/load.rs"]
mod load;
#[path = "serving/sample.rs"]
mod sample;
#[path = "serving/schedule.rs"]
mod schedule;
#[path = "serving/tokens.rs"]
mod tokens;
