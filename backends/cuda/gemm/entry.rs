//! Entry points of sources that hold several kernels. Each kernel is compiled by itself.

use crate::backends::cuda::jit::Unit;

/// A kernel between `#ifdef COMPILE_<name>` and `#endif`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    names: &'static [&'static str; 1],
    /// The macro that leaves this kernel alone in its source.
    define: &'static str,
}

impl Entry {
    pub(crate) const fn new(names: &'static [&'static str; 1], define: &'static str) -> Self {
        Self { names, define }
    }

    /// The name by which a plan launches the kernel.
    pub(crate) const fn name(self) -> &'static str {
        self.names[0]
    }

    /// The unit of this kernel alone. `unit` has what every kernel of the source needs.
    pub(crate) fn alone(self, unit: Unit) -> Unit {
        let defines = unit.defines.into_iter().chain([(self.define, "1".into())]).collect();
        Unit { defines, entries: self.names, ..unit }
    }
}

/// The unit of a kernel whose outputs are f32 where its operands are not (`kernels/gemm/y_element.cuh`).
pub(crate) fn widened(unit: Unit) -> Unit {
    let defines = unit.defines.into_iter().chain([("WIDE_OUTPUTS", "1".into())]).collect();
    Unit { name: format!("{}, f32 outputs", unit.name), defines, ..unit }
}

/// The units that a variant lists: its own kernels. The first has `also`, the kernels that the variant's plans launch with any of them,
/// beside it.
pub(crate) fn listed(own: impl IntoIterator<Item = Unit>, also: impl IntoIterator<Item = Unit>) -> Vec<Unit> {
    let mut units: Vec<Unit> = own.into_iter().collect();
    if let Some(first) = units.first_mut() {
        first.also.extend(also);
    }
    units
}

/// The first of `units`, with the others beside it in `also`.
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
