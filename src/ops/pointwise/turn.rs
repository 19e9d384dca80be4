//! Rotary positions: how far the pairs of a head turn.

/// How far each pair `j` of a head turns from a position to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// By `base^(−2j/d)` radians, of a base that is usually 10,000: the bits of an f32.
    Base(u32),
    /// By the radians that the operand `frequencies` has, as contexts need that were stretched. From 2²⁴ on they mean nothing.
    Table,
}

impl Turn {
    /// By powers of a base.
    pub const fn base(base: f32) -> Self {
        Self::Base(base.to_bits())
    }
}
