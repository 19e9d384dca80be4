//! The result of a compilation, and the hashes that name it.

use sha2::{Digest, Sha256};

/// Machine code and the compiler's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The CUBIN.
    pub cubin: Vec<u8>,
    /// The output of the compiler and the assembler.
    pub log: String,
}

/// The hash of a list of texts. Each is hashed with its length, so that no two lists run together.
pub fn hash<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Bytes in hexadecimal, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_texts_do_not_run_together() {
        let [one, two] = [["ab", "c"], ["a", "bc"]].map(|texts| hash(texts.map(str::as_bytes)));
        assert_ne!(one, two);
        assert_eq!((one.len(), hex(&[0, 0x1f, 0xa0])), (64, "001fa0".to_owned()));
    }
}
