//! Adapters whose shared input basis is computed with the model's own product: what is left of their input factor is a choice of columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;

use super::config::Config;
use super::fill::digest;
use super::form::{DOWN, GATE_UP, OUTPUT, QKV};
use crate::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, SharedProjection};
use crate::adapters::engine::AdapterSource;
use crate::error::Result;

/// The end of the path under which the adapters of a projection are known that read what its padding gives.
const END: &str = ".filled";

/// The path of a projection for adapters that read what its padding gives.
pub fn filled(path: &str) -> String {
    format!("{path}{END}")
}

/// The paths of projections whose padding carries the bases of a population, and what the population shares of them there.
#[derive(Clone, Debug, Default)]
pub struct Filled(BTreeMap<String, SharedProjection>);

impl Filled {
    /// The projections of a model whose padding carries just the bases of the population that shares `projections`. Others are left as they are.
    pub fn new(config: &Config, projections: &BTreeMap<String, SharedProjection>) -> Self {
        let mut all = BTreeMap::new();
        for layer in 0..config.layers {
            for group in [QKV, OUTPUT, GATE_UP, DOWN] {
                let fills: Vec<_> = config.projections(layer)[group].iter().filter_map(|(path, _)| Some((path.clone(), config.fill(path)?))).collect();
                let d_in: u64 = fills.iter().map(|(_, fill)| fill.rows()).sum();
                let mut start = 0;
                for (path, fill) in fills {
                    let own = projections.get(&path).filter(|shared| digest(shared) == fill.sha256);
                    if let Some(shared) = own.filter(|shared| shared.input_bases.len() as u64 == fill.bases) {
                        let columns = fill.columns as usize;
                        let input_bases = (0..shared.input_bases.len()).map(|basis| chosen(d_in as usize, start + basis * columns, columns)).collect();
                        all.insert(path, SharedProjection { d_in: d_in as usize, input_bases, ..shared.clone() });
                    }
                    start += fill.rows() as usize;
                }
            }
        }
        Self(all)
    }

    /// An adapter whose parts over shared bases read what the padding gives.
    pub fn adapter(&self, mut adapter: EncodedAdapter) -> EncodedAdapter {
        let moved = |(path, projection): (String, EncodedProjection)| {
            let is_shared = matches!(projection.input, EncodedFactor::Shared(_)) && self.0.contains_key(&path);
            (if is_shared { filled(&path) } else { path }, projection)
        };
        adapter.projections = adapter.projections.into_iter().map(moved).collect();
        adapter
    }

    /// What [`adapter`](Self::adapter) was given.
    pub fn restored(&self, adapter: Arc<EncodedAdapter>) -> Arc<EncodedAdapter> {
        if !adapter.projections.keys().any(|path| self.has(path)) {
            return adapter;
        }
        let own = |path: &String| path.strip_suffix(END).filter(|_| self.has(path)).map_or_else(|| path.clone(), str::to_owned);
        let projections = adapter.projections.iter().map(|(path, projection)| (own(path), projection.clone())).collect();
        Arc::new(EncodedAdapter { config: adapter.config.clone(), projections })
    }

    /// Whether no projection's padding carries the adapters' bases.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a path is one of those that adapters here have besides the model's own.
    pub fn has(&self, path: &str) -> bool {
        path.strip_suffix(END).is_some_and(|path| self.0.contains_key(path))
    }
}

/// The basis `[d_in, columns]` that takes the columns from `start` on.
fn chosen(d_in: usize, start: usize, columns: usize) -> Matrix<f16> {
    let data = (0..d_in * columns).map(|at| if at / columns == start + at % columns { f16::ONE } else { f16::ZERO });
    Matrix { rows: d_in, cols: columns, data: data.collect() }
}

/// A source of adapters of which some read what the padding gives.
pub struct FilledSource {
    inner: Box<dyn AdapterSource>,
    projections: BTreeMap<String, SharedProjection>,
    filled: Filled,
}

impl FilledSource {
    /// The adapters of `inner` for a model.
    ///
    /// # Errors
    /// What all adapters share cannot be read.
    pub fn new(config: &Config, inner: Box<dyn AdapterSource>) -> Result<Self> {
        let mut projections = inner.projections()?;
        let filled_ = Filled::new(config, &projections);
        projections.extend(filled_.0.iter().map(|(path, shared)| (filled(path), shared.clone())));
        Ok(Self { inner, projections, filled: filled_ })
    }

    /// The projections whose padding carries the adapters' bases.
    pub fn filled(&self) -> Filled {
        self.filled.clone()
    }
}

impl AdapterSource for FilledSource {
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>> {
        Ok(self.projections.clone())
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn adapter(&self, name: &str) -> Result<EncodedAdapter> {
        Ok(self.filled.adapter(self.inner.adapter(name)?))
    }
}
