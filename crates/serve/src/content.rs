//! What tells the contents of adapters apart.

use std::path::Path;

use sha2::{Digest, Sha256};
use trifuse::{Error, Result};

/// The SHA-256 of an adapter's files in their order, and of its name where one file holds many adapters.
///
/// # Errors
/// A file that cannot be read.
pub fn content<'a>(files: impl IntoIterator<Item = &'a Path>, name: &str) -> Result<String> {
    let mut digest = Sha256::new();
    for path in files {
        let mut file = std::fs::File::open(path).map_err(Error::io(path, "open"))?;
        let bytes = std::io::copy(&mut file, &mut digest).map_err(Error::io(path, "read"))?;
        // Bytes that move from one file to the next make another content.
        digest.update(bytes.to_le_bytes());
    }
    digest.update(name);
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
