//! Case files: what can be read has an answer of its own to be held against.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trifuse_testkit::casefile::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(case) = parse("case.safetensors".as_ref(), bytes) {
        assert!(!case.expected.is_empty());
    }
});
