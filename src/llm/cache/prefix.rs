//! Names of pages: SHA-256 over all that K and V of the page depend on.

use sha2::{Digest as _, Sha256};

/// A SHA-256 value. It names content: of a model, of an adapter, or of a page with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// The start of a chain: names the model, the content of the adapter, and a salt.
///
/// Requests share pages only where all three are equal. A salt of its own keeps a tenant's pages from the others: with a shared cache, the
/// time to a first token tells whether somebody asked the same before.
pub fn seed(model: &Digest, adapter: Option<&Digest>, salt: Option<&[u8]>) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"trifuse prefix 1");
    hash.update(model.0);
    // A byte says what is there, so that no two choices give the same bytes.
    match adapter {
        Some(content) => hash.update([&[1], &content.0[..]].concat()),
        None => hash.update([0]),
    }
    match salt {
        Some(salt) => hash.update([&[1], salt].concat()),
        None => hash.update([0]),
    }
    Digest(hash.finalize().into())
}

/// The name of a full page: its tokens, and the name of the page before it, or the seed.
pub fn link(parent: &Digest, tokens: &[u32]) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"page");
    hash.update(parent.0);
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    Digest(hash.finalize().into())
}
