//! Entry points of sources that hold several kernels. Each stands in `#ifdef COMPILE_<entry>`, and a unit compiles one of them.

/// One kernel of a source that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The kernel's name, alone in the list of a unit's entries.
    pub(crate) list: &'static [&'static str],
    /// The macro that compiles this kernel.
    pub(crate) define: &'static str,
}

impl Entry {
    pub(crate) const fn name(self) -> &'static str {
        self.list[0]
    }

    /// The definition with which a unit compiles this kernel.
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
