//! Adapters in the form that products take: decoded once for as long as they do not change, not once a pass.

use super::Engine;
use super::class::Class;
use super::delta::side_by_side;
use super::prepared::Prepared;
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::index::TokenAdapters;
use crate::ops::{CodebookGemm, CodebookGemmArgs};
use crate::session::Session;

/// Rows of the launch that stands for all: as many as an encoder's batch has at least, so that a backend chooses as it does there.
const ROWS: usize = 256;

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// Prepares what products of these projections take of adapters (see [`Session::prepare`]). [`delta`](Self::delta) names the result
    /// from then on. Does nothing where the device has no use for it, or where the projections are not [`alike`](Self::alike). It may not
    /// be called inside a capture.
    ///
    /// # Errors
    /// No device memory.
    pub fn prepare(&mut self, session: &mut Session<D>, projections: &[&str]) -> Result<()> {
        self.own(session)?;
        let key: Vec<String> = projections.iter().map(|&path| path.into()).collect();
        if self.prepared.contains_key(&key) || !self.alike(projections) {
            return Ok(());
        }
        let classes: Vec<&Class<D>> = projections.iter().filter_map(|path| self.classes.iter().find(|class| class.form().path() == *path)).collect();
        let Some(first) = classes.first() else { return Ok(()) };
        let d_out: u64 = classes.iter().map(|class| class.d_out()).sum();
        let size = self.dtype.size();
        let (x, y) = (session.alloc(ROWS as u64 * first.d_in() * size)?, session.alloc(ROWS as u64 * d_out * size)?);
        let (op, slices) = side_by_side(&classes, self.dtype, ROWS, &y)?;
        let plan = session.plan(op)?;
        let Some(at) = session.alloc_prepared(&plan)? else {
            self.prepared.insert(key, None);
            return Ok(());
        };
        let token_adapter = session.index(&TokenAdapters::new(&[-1; ROWS], first.capacity())?)?;
        let args = CodebookGemmArgs { x, token_adapter, scaling: first.scaling().clone(), slices, prepared: None };
        session.prepare(&plan, &at, &args)?;
        self.prepared.insert(key, Some(Prepared { plan, args, at, version: self.version }));
        Ok(())
    }

    /// Prepares anew what was prepared before adapters changed. Call it before a replay of work that was captured with it.
    ///
    /// # Errors
    /// A device that fails.
    pub fn refresh(&mut self, session: &mut Session<D>) -> Result<()> {
        self.own(session)?;
        for prepared in self.prepared.values_mut().flatten().filter(|prepared| prepared.version != self.version) {
            session.prepare(&prepared.plan, &prepared.at, &prepared.args)?;
            prepared.version = self.version;
        }
        Ok(())
    }

    /// The prepared result of these projections.
    pub(super) fn prepared(&self, projections: &[&str]) -> Option<Slice<D>> {
        let key: Vec<String> = projections.iter().map(|&path| path.into()).collect();
        self.prepared.get(&key)?.as_ref().map(|prepared| prepared.at.clone())
    }

    /// Bytes of device memory of everything prepared.
    pub fn prepared_bytes(&self) -> u64 {
        self.prepared.values().flatten().map(|prepared| prepared.at.len).sum()
    }
}
