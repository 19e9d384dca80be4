//! The header of a bundle: what `__metadata__` holds, and how it is checked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::adapters::encoded::{EncodedAdapter, Rung};

/// The value of `format` in `__metadata__`.
pub(super) const FORMAT: &str = "s2lc";
/// The value of `version` in `__metadata__`. It is raised when an older reader could not read the file or would misread it.
pub(super) const VERSION: &str = "1";
/// The key that holds [`Header`] in JSON.
pub(super) const HEADER_KEY: &str = "s2lc";

/// The beginning of a bundle after its eight bytes of length. The checksum's 64 digits follow.
const OPENING: &str = r#"{"__metadata__":{"header_sha256":""#;
const LENGTH_BYTES: usize = 8;
const DIGITS: usize = 64;

/// The projections and adapters of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The projections, by module path.
    pub projections: BTreeMap<String, ProjectionEntry>,
    /// The adapters, by name.
    pub adapters: BTreeMap<String, AdapterEntry>,
}

/// One projection of the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectionEntry {
    /// Columns of the weight.
    pub d_in: usize,
    /// Rows of the weight.
    pub d_out: usize,
    /// SHA-256 of the shared bases, the input side first; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha256: Option<String>,
}

/// One adapter of the header: a summary for listings. The certificates themselves are in the adapter's index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterEntry {
    /// The least cosine of ΔW over the adapter's projections; 1 where it has none.
    pub least_cos_delta: f64,
    /// The number of projections on each rung.
    pub rungs: BTreeMap<Rung, usize>,
    /// SHA-256 of the adapter's tensors: values32, codes, values, index.
    pub sha256: String,
}

impl AdapterEntry {
    pub(super) fn new(adapter: &EncodedAdapter, sha256: String) -> Self {
        let mut rungs = BTreeMap::new();
        let mut least_cos_delta = 1.0;
        for projection in adapter.projections.values() {
            *rungs.entry(projection.certificate.rung).or_default() += 1;
            least_cos_delta = projection.certificate.cos_delta.min(least_cos_delta);
        }
        Self { least_cos_delta, rungs, sha256 }
    }
}

/// The digest in lower-case digits.
pub(super) fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The header's bytes, length in front. They are made from the JSON of the rest of `__metadata__` (without its opening brace) and of what
/// follows it. The checksum is that of all these bytes with zeros for its digits.
pub(super) fn seal(metadata: &str, tensors: &str) -> Vec<u8> {
    let mut json = format!("{OPENING}{}\",{metadata}{tensors}", "0".repeat(DIGITS)).into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = [&(json.len() as u64).to_le_bytes(), json.as_slice()].concat();
    let mut digest = Sha256::new();
    digest.update(&bytes);
    bytes[slot()].copy_from_slice(hex(digest).as_bytes());
    bytes
}

/// Whether the checksum in a header is its own.
///
/// # Errors
/// The bytes are not a bundle's header, or a damaged one.
pub(super) fn check(header: &[u8]) -> Result<(), String> {
    let opening = header.get(LENGTH_BYTES..LENGTH_BYTES + OPENING.len());
    let (Some(stated), true) = (header.get(slot()), opening == Some(OPENING.as_bytes())) else {
        return Err("expected a bundle, found another safetensors file, or a damaged header".into());
    };
    let mut digest = Sha256::new();
    digest.update(&header[..slot().start]);
    digest.update([b'0'; DIGITS]);
    digest.update(&header[slot().end..]);
    let found = hex(digest);
    if found.as_bytes() == stated { Ok(()) } else { Err(format!("the header is damaged: its SHA-256 is {found}, not {}", String::from_utf8_lossy(stated))) }
}

const fn slot() -> std::ops::Range<usize> {
    let start = LENGTH_BYTES + OPENING.len();
    start..start + DIGITS
}
