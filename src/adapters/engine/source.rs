//! The source of an engine's adapters.

use std::collections::BTreeMap;

use super::super::bundle::Bundle;
use super::super::encoded::{EncodedAdapter, Population, SharedProjection};
use crate::error::{Error, Result};

/// A source of encoded adapters: a population in memory, or a bundle that is read adapter by adapter.
pub trait AdapterSource: Send {
    /// The projections that all adapters share, by module path.
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>>;
    /// The names of the adapters, sorted.
    fn names(&self) -> Vec<String>;
    /// The adapter named `name`.
    fn adapter(&self, name: &str) -> Result<EncodedAdapter>;
}

impl AdapterSource for Population {
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>> {
        Ok(self.projections.clone())
    }

    fn names(&self) -> Vec<String> {
        self.adapters.keys().cloned().collect()
    }

    fn adapter(&self, name: &str) -> Result<EncodedAdapter> {
        self.adapters.get(name).cloned().ok_or_else(|| unknown(name, self.adapters.keys()))
    }
}

impl AdapterSource for Bundle {
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>> {
        Self::projections(self).map(|(path, _)| Ok((path.to_owned(), self.shared(path)?))).collect()
    }

    fn names(&self) -> Vec<String> {
        self.adapters().map(str::to_owned).collect()
    }

    fn adapter(&self, name: &str) -> Result<EncodedAdapter> {
        Self::adapter(self, name)
    }
}

/// Names that a message holds at most: a stranger's line must not cost the names of all.
const NAMED: usize = 5;

/// The error for an adapter that the engine does not know.
pub(super) fn unknown<'a>(name: &str, known: impl ExactSizeIterator<Item = &'a String>) -> Error {
    let more = if known.len() > NAMED { format!(" and {} more", known.len() - NAMED) } else { String::new() };
    let some: Vec<&str> = known.take(NAMED).map(String::as_str).collect();
    Error::invalid("adapter", format!("one of {}{more}", some.join(", ")), format!("{name:?}"))
}
