//! Sources that hold several kernels: each stands in `#ifdef COMPILE_<entry>`, and a unit compiles one of them.

/// One kernel of such a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name, alone in the list of a unit's entries.
    pub(crate) list: &'static [&'static str],
    /// The macro that has it compiled.
    pub(crate) define: &'static str,
}

impl Entry {
    pub(crate) const fn name(self) -> &'static str {
        self.list[0]
    }

    /// What a unit defines to compile this kernel.
    pub(crate) fn defined(self) -> (&'static str, String) {
        (self.define, "1".into())
    }
}

macro_rules! entry {
    ($name:literal) => {
        $crate::backends::cuda::attention::entry::Entry { list: &[$name], define: concat!("COMPILE_", $name) }
    };
}
pub(crate) use entry;
