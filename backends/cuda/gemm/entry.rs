//! The kernels of a source that has several, each of which is compiled by itself.

use crate::backends::cuda::jit::Unit;

/// A kernel between `#ifdef COMPILE_<name>` and `#endif`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    names: &'static [&'static str; 1],
    /// What leaves this kernel in its source, and no other.
    define: &'static str,
}

impl Entry {
    pub(crate) const fn new(names: &'static [&'static str; 1], define: &'static str) -> Self {
        Self { names, define }
    }

    /// What a plan launches it by.
    pub(crate) const fn name(self) -> &'static str {
        self.names[0]
    }

    /// The unit of this kernel alone, where `unit` has what all kernels of the source want.
    pub(crate) fn alone(self, unit: Unit) -> Unit {
        let defines = unit.defines.into_iter().chain([(self.define, "1".into())]).collect();
        Unit { defines, entries: self.names, ..unit }
    }
}

/// What a variant lists: its own kernels, and beside the first of them all that its plans launch with any.
pub(crate) fn listed(own: impl IntoIterator<Item = Unit>, also: impl IntoIterator<Item = Unit>) -> Vec<Unit> {
    let mut units: Vec<Unit> = own.into_iter().collect();
    if let Some(first) = units.first_mut() {
        first.also.extend(also);
    }
    units
}

/// The first of `units`, with the others beside it.
pub(crate) fn gathered(units: impl IntoIterator<Item = Unit>) -> Option<Unit> {
    let mut units = units.into_iter();
    let first = units.next()?;
    Some(Unit { also: units.collect(), ..first })
}

macro_rules! entry {
    ($name:literal) => {
        $crate::backends::cuda::gemm::entry::Entry::new(&[$name], concat!("COMPILE_", $name))
    };
}
pub(crate) use entry;
