//! Where the rows of a tensor of sequences, tokens and heads lie.

/// Elements from one index to the next, along each axis. Packed strides that no u64 holds are the greatest u64, which every operation refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// Elements from a sequence to the next; for paged k and v, from a page to the next.
    pub batch: u64,
    /// Elements from a token to the next.
    pub token: u64,
    /// Elements from a head to the next.
    pub head: u64,
}

impl Strides {
    /// Packed strides of `[b, s, h, d]`.
    pub const fn bshd(tokens: u64, heads: u64, head_dim: u64) -> Self {
        let token = heads.saturating_mul(head_dim);
        Self { batch: tokens.saturating_mul(token), token, head: head_dim }
    }

    /// Packed strides of `[b, h, s, d]`.
    pub const fn bhsd(tokens: u64, heads: u64, head_dim: u64) -> Self {
        let head = tokens.saturating_mul(head_dim);
        Self { batch: heads.saturating_mul(head), token: head_dim, head }
    }
}
