//! The bytes of a file besides codes and bases, before there is one, for an encoder with a limit of bytes.
//!
//! A few digits are not known before they are written. These figures are at the upper end of what is usual, and the file itself is counted
//! at the end.

use std::collections::BTreeMap;

use super::index;
use super::stored::used_entries;
use super::write::Parts;
use crate::adapters::encoded::{EncodedAdapter, EncodedProjection, Population, SharedProjection};
use crate::error::Result;
use crate::ops::codes::CodeWidth;

/// A projection's entry in an adapter's index, with its certificate but without the columns of coded factors.
pub(crate) const ENTRY_BYTES: u64 = 110;
/// An adapter's entries in the header for the tensors that a blank adapter lacks, without its name.
const TENSOR_BYTES: u64 = 90;
/// Bytes that the header has for an adapter beyond a blank one: rungs, the least cosine, longer offsets; and its padding.
const SUMMARY_BYTES: u64 = 130;
/// Bytes of a basis in the header: its tensor and its checksum, without its name.
const BASIS_BYTES: u64 = 190;

/// A number of a projection with as many digits as most files have.
const LONG_NUMBER: usize = 999;

/// Bytes of a coded factor's centroids, and of its columns in the index: columns of these widths, then empty ones up to `rank`.
pub(crate) fn factor_bytes(widths: impl Iterator<Item = CodeWidth> + Clone, rank: usize) -> u64 {
    let centroids = used_entries(widths.clone()).iter().filter(|used| **used).count() as u64;
    let (mut runs, mut last, mut columns) = (0, None, 0);
    for width in widths {
        runs += u64::from(last != Some(width));
        (last, columns) = (Some(width), columns + 1);
    }
    let run = "[4,],".len() as u64 + columns.max(rank).to_string().len() as u64;
    2 * centroids + "[16,[]]".len() as u64 + run * (runs + u64::from(columns < rank))
}

/// Bytes of one adapter in one projection: its numbers and its entry in the index.
pub(crate) fn projection_bytes(path: &str, projection: &EncodedProjection) -> Result<u64> {
    let adapter = EncodedAdapter { config: serde_json::Value::Null, projections: [(path.to_owned(), projection.as_stored())].into() };
    let numbers = BTreeMap::from([(path, LONG_NUMBER)]);
    let (index, streams) = index::encode(&adapter, &numbers).map_err(super::write::json_error)?;
    Ok(streams.bytes() + index.len() as u64 - r#"{"config":null,"projections":[]}"#.len() as u64 + 1)
}

/// Bytes of a file of these adapters with nothing kept in any projection, which no encoding can do without.
///
/// # Errors
/// A name that cannot be a folder's.
pub(crate) fn frame_bytes<'a>(
    adapters: impl Iterator<Item = (&'a str, &'a serde_json::Value)>,
    projections: impl Iterator<Item = (&'a str, [usize; 2])>,
) -> Result<u64> {
    let shared = |[d_out, d_in]: [usize; 2]| SharedProjection { d_in, d_out, input_bases: vec![], output_bases: vec![] };
    let blank = |config: &serde_json::Value| EncodedAdapter { config: config.clone(), projections: BTreeMap::new() };
    let population = Population {
        projections: projections.map(|(path, shape)| (path.to_owned(), shared(shape))).collect(),
        adapters: adapters.map(|(name, config)| (name.to_owned(), blank(config))).collect(),
    };
    let more = population.adapters.keys().map(|name| 2 * (TENSOR_BYTES + name.len() as u64) + SUMMARY_BYTES);
    Ok(Parts::new(&population)?.len() + more.sum::<u64>())
}

/// Bytes of the header for a projection's basis.
pub(crate) fn basis_frame_bytes(path: &str) -> u64 {
    BASIS_BYTES + path.len() as u64
}
