use std::borrow::Cow;

use super::HostIndex;
use crate::error::Result;

/// The basis, of several shared ones, on which each adapter was encoded. Words: one an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasisOf {
    basis: Vec<i32>,
    bases: u32,
}

/// What the device's copy is sized and checked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BasisShape {
    /// The number of adapters.
    pub adapters: u32,
    /// The number of bases.
    pub bases: u32,
}

impl BasisOf {
    /// A list of the basis of each adapter, as numbers below `bases`.
    ///
    /// # Errors
    /// A basis outside `0..bases`.
    pub fn new(basis: &[i32], bases: u32) -> Result<Self> {
        super::below("basis_of", "adapter", basis, bases)?;
        Ok(Self { basis: basis.to_vec(), bases })
    }

    /// The basis of each adapter.
    pub fn basis(&self) -> &[i32] {
        &self.basis
    }
}

impl HostIndex for BasisOf {
    const NAME: &'static str = "basis_of";
    type Shape = BasisShape;

    fn shape(&self) -> BasisShape {
        BasisShape { adapters: self.basis.len() as u32, bases: self.bases }
    }

    fn words(&self) -> Cow<'_, [i32]> {
        self.basis.as_slice().into()
    }

    fn capacity(shape: &BasisShape) -> u64 {
        u64::from(shape.adapters)
    }
}
