//! Every variant there is: for listings, for compiling ahead, and for checks without a GPU.

use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::variant::{RunsOn, Table, TensorCores, Variant};
use crate::ops::{Attention, CodebookGemm, FusedMlp, Linear, Op, Pointwise, PrefixAttention};

/// A variant of an operation.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The operation.
    pub op: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// The architectures that its source is for.
    pub runs_on: RunsOn,
    /// What its machine code must show.
    pub tensor_cores: TensorCores,
    units: fn(Arch) -> Vec<Unit>,
}

impl Entry {
    fn new<O: Op>(variant: &Variant<O>) -> Self {
        Self { op: O::NAME, variant: variant.name, runs_on: variant.runs_on, tensor_cores: variant.tensor_cores, units: variant.units }
    }

    /// Everything of this variant that there is to compile for `arch`; nothing where the variant does not run there.
    pub fn units(&self, arch: Arch) -> Vec<Unit> {
        if self.runs_on.accept(arch).is_ok() { (self.units)(arch) } else { Vec::new() }
    }
}

/// Every variant of every operation, best first for each.
pub fn catalogue() -> Vec<Entry> {
    fn of<O: Table>() -> impl Iterator<Item = Entry> {
        O::VARIANTS.iter().map(Entry::new)
    }
    let first = of::<CodebookGemm>().chain(of::<Attention>()).chain(of::<PrefixAttention>());
    first.chain(of::<FusedMlp>()).chain(of::<Linear>()).chain(of::<Pointwise>()).collect()
}

#[cfg(test)]
mod tests {
    use crate::backends::cuda::jit::unit::Arch;
    use crate::backends::cuda::variant::RunsOn;

    #[test]
    fn sources_run_where_they_say() {
        assert!(RunsOn::From(80).accept(Arch(120)).is_ok());
        assert_eq!(RunsOn::From(80).accept(Arch(75)), Err("compute capability 75 < 80".into()));
        assert!(RunsOn::Only(90).accept(Arch(90)).is_ok());
        assert!(RunsOn::Only(90).accept(Arch(100)).is_err());
    }
}
