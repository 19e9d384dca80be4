//! Test 3: nothing between x and y is written to device memory.
//!
//! The reference counts bytes written to DRAM; on a GPU with a large L2 even the output never gets there. What has to be
//! asserted is that L2 write sectors are those of the output, and that there is no local-memory traffic: hardware
//! counters, which only a profiler reads, from outside the process.

use super::{Check, Verdict};
use crate::backend::Backend;

pub fn check<D: Backend>(name: &'static str) -> Check {
    let why = match D::NAME {
        "cuda" => "hardware counters are read from outside, by Nsight Compute",
        _ => "hardware counters need a CUDA device and Nsight Compute",
    };
    Check { number: 3, name, verdict: Verdict::Skipped(why.into()), figures: Vec::new() }
}
