//! Calibration files. What is taken calibrates an encoding.

use rand::Rng as _;
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::peft::inspect_bytes;

use super::super::mutate::{Rng, store, tensors};
use super::bundle::support::{adapter_tensors, config, ramp};
use super::{Answer, Subject, refused};

pub const SUBJECT: Subject = Subject { name: "calibration", sound, change: tensors, parse };

fn sound(rng: &mut Rng) -> Vec<u8> {
    let rows = rng.random_range(8..24);
    store(
        None,
        &[
            ("l.0.q", "F32", &[rows, 4], ramp(0.5, rows * 4)),
            ("l.0.v", "F16", &[rows, 3], [0x11, 0x3c, 0x22, 0xb8].repeat(rows * 3 / 2 + 1)[..rows * 6].to_vec()),
        ],
    )
}

fn parse(bytes: &[u8]) -> Answer {
    let calibration = Calibration::from_bytes("fuzz.safetensors".as_ref(), bytes).map_err(|error| refused(&error))?;
    let adapter = inspect_bytes("fuzz", &config(&serde_json::json!({})), adapter_tensors()).into_adapter().expect("a sound adapter");
    let options = EncodeOptions { calibration: Some(calibration), rank: Some(2), ..EncodeOptions::default() };
    // Names or widths that no projection has are the user's mistake, of two files that do not belong together.
    encode(&[Source::from(&adapter)], &options, &|_, _| {}).map(drop).map_err(|error| error.to_string())
}
