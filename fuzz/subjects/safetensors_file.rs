//! Safetensors files, whatever they are for.

use trifuse::safetensors_file::TensorFile;

use super::super::mutate::{Rng, tensors};
use super::bundle::support::adapter_tensors;
use super::{Answer, Subject, refused};

pub const SUBJECT: Subject = Subject { name: "safetensors_file", sound: |_: &mut Rng| adapter_tensors(), change: tensors, parse };

fn parse(bytes: &[u8]) -> Answer {
    let file = TensorFile::from_bytes("fuzz.safetensors", bytes.to_vec()).map_err(|error| refused(&error))?;
    for name in file.names() {
        let (info, data) = file.bytes(&name).expect("a tensor that the header names");
        assert!(info.range.end <= bytes.len() && data.len() == info.range.len(), "{name}: {info:?}");
        if let Ok((_, shape, values)) = file.floats(&name) {
            assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
            assert!(values.iter().all(|value| value.is_finite()), "{name}");
        }
    }
    Ok(())
}
