//! Calibration files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trifuse::adapters::encode::calibration::Calibration;

fuzz_target!(|bytes: &[u8]| {
    let _ = Calibration::from_bytes("calibration.safetensors".as_ref(), bytes);
});
