//! Random operations for the tests of choices, and what holds of every variant for each of them.

use std::collections::{HashMap, HashSet};

use super::{Table, Target, choose};
use crate::backends::cuda::jit::{Arch, Unit};

/// Pseudo-random numbers, by xorshift.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A random one of `all`.
    pub(crate) fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.next() as usize % all.len()]
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }

    /// A size of up to `most`. Small sizes are as likely as large ones, and three out of four are multiples of 8 or more.
    pub(crate) fn size(&mut self, most: u64) -> u64 {
        let below = most >> (self.next() % 12).min(most.ilog2().into());
        (self.next() % below.max(1) + 1).next_multiple_of(self.one(&[1, 8, 32, 64]))
    }
}

/// What decides the machine code of a unit.
fn key(unit: &Unit) -> String {
    format!("{} {:?} {:?} {}", unit.name, unit.entries, unit.defines, unit.shared_bytes)
}

/// Every unit that a variant lists for an architecture, by the variant's name.
fn listed<O: Table>(arch: Arch) -> HashMap<&'static str, HashSet<String>> {
    let mut lists: HashMap<_, HashSet<_>> = HashMap::new();
    for variant in O::VARIANTS.iter().filter(|variant| variant.runs_on.accept(arch).is_ok()) {
        lists.entry(variant.name).or_default().extend((variant.units)(arch).iter().flat_map(Unit::all).map(key));
    }
    lists
}

/// Checks each operation on one of the tested chips in turn. The chosen configuration is able. A variant supports an operation if and only
/// if one of its configurations does. The units of the chosen configuration, and of a random one of each variant, are listed. No workspace
/// overflows.
pub(crate) fn check<O: Table>(operations: impl IntoIterator<Item = O>, numbers: &mut Numbers) {
    let lists = Target::TESTED.map(|target| listed::<O>(target.arch));
    for (turn, op) in operations.into_iter().enumerate() {
        let (chip, lists) = (Target::TESTED[turn % Target::TESTED.len()], &lists[turn % Target::TESTED.len()]);
        let mut tried = Vec::new();
        for variant in O::VARIANTS.iter().filter(|variant| variant.runs_on.accept(chip.arch).is_ok()) {
            let able = variant.able(&op, &chip);
            let can = variant.accepts(&op, &chip);
            if variant.configs.is_some() {
                assert_eq!(can.is_ok(), !able.is_empty(), "{}: {op:?} on {chip:?}: {can:?}", variant.label);
            }
            if can.is_ok() {
                let cheapest = variant.cheapest(&op, &chip);
                assert!(
                    variant.configs.is_none() || able.iter().any(|(target, _)| target.config == cheapest.config),
                    "{}: {op:?} on {cheapest:?}",
                    variant.label
                );
                tried.push((variant, cheapest));
                tried.extend((!able.is_empty()).then(|| (variant, able[numbers.next() as usize % able.len()].0)));
            }
        }
        tried.extend(choose(O::VARIANTS, &op, &chip, None).ok());
        for (variant, target) in tried {
            let (unit, bytes) = ((variant.unit)(&op, &target), (variant.workspace)(&op, &target));
            let own = lists.get(variant.name);
            let missing: Vec<_> = unit.all().into_iter().filter(|unit| own.is_none_or(|own| !own.contains(&key(unit)))).map(|unit| &unit.name).collect();
            assert!(missing.is_empty(), "{}: {op:?} on {target:?}: {missing:?}", variant.label);
            assert!(bytes < 1 << 48, "{}: {op:?} on {target:?}: {bytes} bytes", variant.label);
        }
    }
}
