//! What the parts of a population take in memory, so that a small file of many adapters cannot ask for all of it.

use std::mem::size_of;

use half::f16;
use serde_json::Value;

use crate::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, SharedShape};
use crate::ops::codes::CodeWidth;

/// Bytes of an adapter, about: what its structures and their lists take, without what an allocator adds.
pub(super) fn adapter_bytes(adapter: &EncodedAdapter) -> u64 {
    let projections = adapter.projections.iter().map(|(path, projection)| (size_of::<String>() + path.len()) as u64 + projection_bytes(projection));
    value_bytes(&adapter.config) + projections.sum::<u64>()
}

/// Bytes of the bases of a projection once they are read: two an element, also where the file has steps of one byte.
pub(super) fn bases_bytes(shape: &SharedShape) -> u64 {
    let side =
        |d: usize, [bases, rank]: [usize; 2]| [bases, rank, size_of::<f16>()].iter().fold(d as u64, |product, &size| product.saturating_mul(size as u64));
    side(shape.d_in, shape.input).saturating_add(side(shape.d_out, shape.output))
}

fn projection_bytes(projection: &EncodedProjection) -> u64 {
    let core = projection.core.as_ref().map_or(0, |core| core.data.len() * size_of::<f32>());
    let own = size_of::<EncodedProjection>() + core;
    own as u64 + factor_bytes(&projection.input) + factor_bytes(&projection.output)
}

fn factor_bytes(factor: &EncodedFactor) -> u64 {
    let bytes = match factor {
        EncodedFactor::Shared(_) => 0,
        EncodedFactor::Plain(values) => values.data.len() * size_of::<f16>(),
        EncodedFactor::Coded(coded) => {
            let words: usize = coded.columns.iter().map(|(_, words)| words.len()).sum();
            coded.columns.len() * size_of::<(CodeWidth, Vec<u32>)>() + words * size_of::<u32>()
        }
    };
    bytes as u64
}

fn value_bytes(value: &Value) -> u64 {
    let inner = match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| (size_of::<String>() + key.len()) as u64 + value_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() as u64 + inner
}
