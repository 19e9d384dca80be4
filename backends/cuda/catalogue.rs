//! Every variant of every operation: for listings, ahead-of-time compilation, and checks without a GPU.

use std::collections::HashSet;

use super::jit::{Arch, Unit};
use super::variant::{RunsOn, Table, TensorCores, Variant};
use crate::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Pointwise, PrefixAttention, Sample};

/// What a line of a table lists for an architecture.
type Units = fn(Arch) -> Vec<Unit>;

/// A variant of an operation, as listings have it.
#[derive(Clone)]
pub struct Entry {
    /// The operation's name.
    pub op: &'static str,
    /// The variant's name.
    pub variant: &'static str,
    /// The architectures that the variant's source is for, of one line of its table at least.
    pub runs_on: RunsOn,
    /// The tensor-core instruction that the variant's machine code must show.
    pub tensor_cores: TensorCores,
    /// What the variant's lines list for the architectures that each is for.
    lines: Vec<(RunsOn, Units)>,
}

impl Entry {
    fn new<O: Table>(name: &'static str) -> Option<Self> {
        let lines: Vec<&Variant<O>> = O::VARIANTS.iter().filter(|line| line.name == name).collect();
        let runs_on = lines.iter().map(|line| line.runs_on).reduce(RunsOn::or)?;
        let tensor_cores = lines.first()?.tensor_cores;
        Some(Self { op: O::NAME, variant: name, runs_on, tensor_cores, lines: lines.iter().map(|line| (line.runs_on, line.units)).collect() })
    }

    /// The variant's own units for `arch`, each once; none where the variant does not run there.
    pub fn units(&self, arch: Arch) -> Vec<Unit> {
        let lines = self.lines.iter().filter(|(runs_on, _)| runs_on.accept(arch).is_ok());
        distinct(lines.flat_map(|(_, units)| units(arch)).collect(), arch, &[])
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
        O::NAMES.iter().filter_map(|name| Entry::new::<O>(name))
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
        let units: Units = |_| vec![unit("one", vec![shared()]), unit("two", vec![shared()]), unit("one", Vec::new())];
        let entry =
            Entry { op: "probe", variant: "probe", runs_on: RunsOn::From(80), tensor_cores: TensorCores::By("HMMA"), lines: vec![(RunsOn::From(80), units)] };
        let names = |units: Vec<Unit>| units.into_iter().map(|unit| unit.name).collect::<Vec<_>>();
        assert_eq!(names(entry.units(Arch(80))), ["one", "two"]);
        assert_eq!(names(entry.helpers(Arch(80))), ["shared", "deep"]);
        assert_eq!(names([entry.units(Arch(75)), entry.helpers(Arch(75))].concat()), [""; 0]);
    }

    /// What lines of one variant must have in common, and what not.
    fn check_lines<O: Table>() {
        for name in O::NAMES {
            let lines: Vec<&Variant<O>> = O::VARIANTS.iter().filter(|line| line.name == *name).collect();
            assert!(lines.iter().all(|line| (line.label, line.tensor_cores) == (lines[0].label, lines[0].tensor_cores)), "{}/{name}", O::NAME);
            assert_eq!(format!("{}/{name}", O::NAME), lines[0].label);
            assert!(lines.len() == 1 || lines.iter().all(|line| line.configs.is_some()), "{}/{name}: a line that no configuration names", O::NAME);
            for arch in Arch::CHECKED {
                let configs: Vec<String> = lines.iter().flat_map(|line| line.config_names(arch)).collect();
                assert_eq!(configs.iter().collect::<HashSet<_>>().len(), configs.len(), "{}/{name}: {configs:?}", O::NAME);
            }
        }
    }

    #[test]
    fn lines_of_one_variant_are_told_apart_by_their_configurations_alone() {
        check_lines::<CodebookGemm>();
        check_lines::<Attention>();
        check_lines::<Linear>();
        check_lines::<Pointwise>();
    }

    #[test]
    fn sources_run_where_they_say() {
        assert!(RunsOn::From(80).accept(Arch(120)).is_ok());
        assert_eq!(RunsOn::From(80).accept(Arch(75)), Err("compute capability 75 < 80".into()));
        assert!(RunsOn::Only(90).accept(Arch(90)).is_ok());
        assert!(RunsOn::Only(90).accept(Arch(100)).is_err());
        assert_eq!(RunsOn::From(90).or(RunsOn::From(80)), RunsOn::From(80));
    }
}
