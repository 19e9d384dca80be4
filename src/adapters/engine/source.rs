//! The source of an engine's adapters.

use std::collections::BTreeMap;

use super::super::bundle::Bundle;
use super::super::encoded::{EncodedAdapter, Population, SharedProjection};
use crate::error::{Error, Result, ensure};

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

/// A source together with the projections of a model, so that an engine of it takes any adapter of that model by
/// [`Engine::add`](super::Engine::add), also where the source touches fewer projections, or is none.
pub struct ForModel {
    source: Option<Box<dyn AdapterSource>>,
    projections: BTreeMap<String, [usize; 2]>,
}

impl ForModel {
    /// The adapters of `source`, and room for others of a model whose weights are `projections`: module paths with `[d_out, d_in]`.
    pub fn new(source: Option<Box<dyn AdapterSource>>, projections: impl IntoIterator<Item = (String, [u64; 2])>) -> Self {
        Self { source, projections: projections.into_iter().map(|(path, shape)| (path, shape.map(|d| d as usize))).collect() }
    }
}

impl AdapterSource for ForModel {
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>> {
        let mut all = self.source.as_ref().map_or_else(|| Ok(BTreeMap::new()), |source| source.projections())?;
        for (path, [d_out, d_in]) in &self.projections {
            let (d_out, d_in) = (*d_out, *d_in);
            let own = all.entry(path.clone()).or_insert_with(|| SharedProjection { d_in, d_out, input_bases: Vec::new(), output_bases: Vec::new() });
            ensure(
                [own.d_out, own.d_in] == [d_out, d_in],
                format_args!("adapters: {path}"),
                format_args!("[{d_out}, {d_in}]"),
                format_args!("[{}, {}]", own.d_out, own.d_in),
            )?;
        }
        Ok(all)
    }

    fn names(&self) -> Vec<String> {
        self.source.as_ref().map_or_else(Vec::new, |source| source.names())
    }

    fn adapter(&self, name: &str) -> Result<EncodedAdapter> {
        match &self.source {
            Some(source) => source.adapter(name),
            None => Err(unknown(name, [].iter())),
        }
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
