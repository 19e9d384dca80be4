//! Entry points of sources that hold several kernels. A unit compiles one of them.

use crate::backends::cuda::jit::Unit;

/// A kernel of a source that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The kernel's name, in the list that a unit takes.
    pub(crate) list: &'static [&'static str; 1],
    /// The macro with which the source compiles this kernel.
    pub(crate) define: &'static str,
}

/// The kernel of a name, which stands in its source under `#ifdef COMPILE_` and that name.
macro_rules! entry {
    ($name:literal) => {
        $crate::backends::cuda::codebook_gemm::entry::Entry { list: &[$name], define: concat!("COMPILE_", $name) }
    };
}
pub(crate) use entry;

impl Entry {
    /// The kernel's name.
    pub(crate) const fn name(self) -> &'static str {
        self.list[0]
    }

    /// `base` with this kernel alone, whose blocks have `shared_bytes` of dynamic shared memory. The unit's name gets the part of the
    /// kernel's name behind `family`.
    pub(crate) fn unit(self, mut base: Unit, family: &str, shared_bytes: u32) -> Unit {
        let word = self.name().strip_prefix(family).unwrap_or(self.name()).trim_start_matches('_');
        if !word.is_empty() {
            base.name = format!("{} {word}", base.name);
        }
        base.defines.push((self.define, "1".into()));
        Unit { entries: self.list, shared_bytes, ..base }
    }
}

/// The unit of a plan: `main`, which every plan may launch, and each of `others` once beside it.
pub(crate) fn together(main: Entry, others: impl IntoIterator<Item = Entry>, unit: impl Fn(Entry) -> Unit) -> Unit {
    let mut also: Vec<Entry> = Vec::new();
    for other in others {
        if other != main && !also.contains(&other) {
            also.push(other);
        }
    }
    Unit { also: also.into_iter().map(&unit).collect(), ..unit(main) }
}

/// Operations of every form, on several devices, for tests of a plan's kernels.
#[cfg(test)]
pub(crate) mod reach {
    use trifuse_testkit::cases::Draw;

    use crate::backends::cuda::codebook_gemm::choose::tests::random;
    use crate::backends::cuda::jit::{Arch, Unit};
    use crate::backends::cuda::variant::Target;
    use crate::ops::CodebookGemm;

    /// Hopper's chips by their SMs, A100 and RTX 3090.
    pub(crate) const TARGETS: [Target; 6] = [
        Target { arch: Arch(90), units: 78, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 114, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 144, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None },
        Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None },
    ];

    /// Calls `visit` with operations of every form, on each of [`TARGETS`].
    pub(crate) fn each_operation(mut visit: impl FnMut(&CodebookGemm, &Target)) {
        let mut draw = Draw::seeded("operations");
        for number in 0..400 {
            let mut op = random(&mut draw);
            for (at, slice) in op.slices.iter_mut().enumerate() {
                slice.core = number % 5 == 4;
                // Slices that differ, the first of them the widest.
                if number % 7 == 6 && at % 3 > 0 {
                    (slice.d_out, slice.rank) = (slice.d_out.div_ceil(2), slice.rank.div_ceil(2));
                }
            }
            TARGETS.iter().for_each(|target| visit(&op, target));
        }
    }

    /// The names of the kernels of a plan's units. Each unit has one.
    pub(crate) fn names(unit: &Unit) -> Vec<&'static str> {
        let units = unit.all();
        assert!(units.iter().all(|unit| unit.entries.len() == 1), "{units:?}");
        units.iter().map(|unit| unit.entries[0]).collect()
    }
}
