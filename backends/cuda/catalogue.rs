//! Every variant of every operation: for listings, ahead-of-time compilation, and checks without a GPU.

use std::collections::HashSet;

use super::jit::{Arch, Unit};
use super::variant::{RunsOn, Table, TensorCores, Variant};
use crate::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample};

/// A variant of an operation, as listings have it.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The operation's name.
    pub op: &'static str,
    /// The variant's name.
    pub variant: &'static str,
    /// The architectures that the variant's source is for.
    pub runs_on: RunsOn,
    /// The tensor-core instruction that the variant's machine code must show.
    pub tensor_cores: TensorCores,
    units: fn(Arch) -> Vec<Unit>,
}

impl Entry {
    fn new<O: Op>(variant: &Variant<O>) -> Self {
        Self { op: O::NAME, variant: variant.name, runs_on: variant.runs_on, tensor_cores: variant.tensor_cores, units: variant.units }
    }

    /// The variant's own units for `arch`, each once; none where the variant does not run there.
    pub fn units(&self, arch: Arch) -> Vec<Unit> {
        if self.runs_on.accept(arch).is_ok() { distinct((self.units)(arch), arch, &[]) } else { Vec::new() }
    }

    /// The units that the variant's plans launch beside its own, each once. They need not show the tensor-core instruction.
    pub fn helpers(&self, arch: Arch) -> Vec<Unit> {
        let own = self.units(arch);
        let beside = own.iter().flat_map(|unit| unit.all().into_iter().skip(1).cloned()).collect();
        distinct(beside, arch, &own)
    }
}

/// Each of `units` once, without those in `known`. Two units are the same if they give the same machine code.
fn distinct(units: Vec<Unit>, arch: Arch, known: &[Unit]) -> Vec<Unit> {
    let mut met: HashSet<String> = known.iter().map(|unit| unit.hash(arch)).collect();
    units.into_iter().filter(|unit| met.insert(unit.hash(arch))).collect()
}

/// Every variant of every operation, best first for each.
pub fn catalogue() -> Vec<Entry> {
    fn of<O: Table>() -> impl Iterator<Item = Entry> {
        O::VARIANTS.iter().map(Entry::new)
    }
    let first = of::<CodebookGemm>().chain(of::<Attention>()).chain(of::<PrefixAttention>());
    first
        .chain(of::<FusedMlp>())
        .chain(of::<Linear>())
        .chain(of::<GroupedLinear>())
        .chain(of::<Pointwise>())
        .chain(of::<Sample>())
        .chain(of::<Checksum>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::jit::Source;
    use super::*;

    fn unit(name: &str, also: Vec<Unit>) -> Unit {
        Unit { defines: vec![("N", name.into())], also, ..Unit::new(name, Source { path: "probe.cu", text: "" }) }
    }

    #[test]
    fn units_beside_others_are_listed_once_and_apart() {
        fn shared() -> Unit {
            unit("shared", vec![unit("deep", Vec::new()), unit("one", Vec::new())])
        }
        let units: fn(Arch) -> Vec<Unit> = |_| vec![unit("one", vec![shared()]), unit("two", vec![shared()]), unit("one", Vec::new())];
        let entry = Entry { op: "probe", variant: "probe", runs_on: RunsOn::From(80), tensor_cores: TensorCores::By("HMMA"), units };
        let names = |units: Vec<Unit>| units.into_iter().map(|unit| unit.name).collect::<Vec<_>>();
        assert_eq!(names(entry.units(Arch(80))), ["one", "two"]);
        assert_eq!(names(entry.helpers(Arch(80))), ["shared", "deep"]);
        assert_eq!(names([entry.units(Arch(75)), entry.helpers(Arch(75))].concat()), [""; 0]);
    }

    #[test]
    fn sources_run_where_they_say() {
        assert!(RunsOn::From(80).accept(Arch(120)).is_ok());
        assert_eq!(RunsOn::From(80).accept(Arch(75)), Err("compute capability 75 < 80".into()));
        assert!(RunsOn::Only(90).accept(Arch(90)).is_ok());
        assert!(RunsOn::Only(90).accept(Arch(100)).is_err());
    }
}
