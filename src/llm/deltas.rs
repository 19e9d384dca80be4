//! The adapters of a pass: what each row's own adapter adds to each projection.

use super::config::Config;
use super::filled::filled;
use crate::adapters::engine::{Batch, Engine, Target};
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::error::Result;
use crate::session::Session;

/// A projection of a layer, in the order of [`Config::projections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

/// The paths of a projection under which adapters touch it: its own, and that of adapters that read what its padding gives. `None` where none does.
pub type Paths = Vec<[[Option<String>; 2]; 7]>;

/// The paths of a model's projections that `served` says yes to.
pub fn paths(config: &Config, served: impl Fn(&str) -> bool) -> Paths {
    let of = |(path, _): (String, [u64; 2])| {
        let filled = filled(&path);
        [path, filled].map(|path| Some(path).filter(|path| served(path)))
    };
    (0..config.layers).map(|layer| config.projections(layer).map(of)).collect()
}

/// The adapters of the rows of a pass.
pub struct Deltas<'a, D: Device + crate::backend::Kernel<crate::ops::CodebookGemm>> {
    pub engine: &'a mut Engine<D>,
    pub batch: &'a Batch<D>,
    /// The adapters of the tokens of gathered pages, where pages hold what their bases give.
    pub gathered: Option<&'a Batch<D>>,
    pub paths: &'a Paths,
}

impl<D: Backend> Deltas<'_, D> {
    /// Adds `ΔW x` of each row's adapter to the rows of each target; those that no adapter touches stay as they are. `filled` is what the padding of
    /// first factors made of `x`, with its stride.
    ///
    /// # Errors
    /// A batch whose adapters lost their room; a device that fails.
    pub fn add(
        &mut self,
        session: &mut Session<D>,
        layer: usize,
        x: (&Slice<D>, u64),
        filled: Option<(&Slice<D>, u64)>,
        targets: &[(Projection, &Slice<D>, u64)],
    ) -> Result<()> {
        self.apply(session, (layer, 0), self.batch, x, targets)?;
        filled.map_or(Ok(()), |filled| self.apply(session, (layer, 1), self.batch, filled, targets))
    }

    /// Adds what the adapters of the tokens of gathered pages make of what their bases gave, `filled`.
    ///
    /// # Errors
    /// The errors of [`add`](Self::add).
    pub fn add_gathered(&mut self, session: &mut Session<D>, layer: usize, filled: (&Slice<D>, u64), targets: &[(Projection, &Slice<D>, u64)]) -> Result<()> {
        self.gathered.map_or(Ok(()), |batch| self.apply(session, (layer, 1), batch, filled, targets))
    }

    /// Adds to the targets that adapters touch by that one of their paths.
    fn apply(
        &mut self,
        session: &mut Session<D>,
        (layer, path): (usize, usize),
        batch: &Batch<D>,
        (x, x_stride): (&Slice<D>, u64),
        targets: &[(Projection, &Slice<D>, u64)],
    ) -> Result<()> {
        let paths = self.paths.get(layer);
        let touched = targets.iter().filter_map(|(projection, y, y_stride)| {
            let path = paths?[*projection as usize][path].as_deref()?;
            Some(Target { projection: path, y: (*y).clone(), y_stride: *y_stride })
        });
        let targets: Vec<Target<'_, D>> = touched.collect();
        if targets.is_empty() {
            return Ok(());
        }
        session.role("adapters");
        self.engine.apply(session, batch, x, x_stride, &targets)
    }
}
