//! The launches of a batch: which projections go together, and as what operations.

use std::collections::BTreeMap;

use super::{Batch, Engine, Target};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Result, ensure};
use crate::ops::{CodebookGemm, CodebookGemmArgs, ScaledBy};
use crate::session::Session;

/// A launch: the map of its classes, and each of them with the number of its target.
type Round = (usize, Vec<(usize, usize)>);

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// Adds `ΔW_a(t) · x[t]` to `y[t]` for every target. All read the same `x [tokens, d_in]`, with rows `x_stride` elements apart. Targets
    /// whose adapters share a form share a launch. Does not block, and may be captured.
    ///
    /// # Errors
    /// A projection that the population does not have, or one with another d_in; operands that are too small or overlap; the errors of
    /// [`check`](Self::check).
    pub fn apply(&mut self, session: &mut Session<D>, batch: &Batch<D>, x: &Slice<D>, x_stride: u64, targets: &[Target<'_, D>]) -> Result<()> {
        self.apply_scaled(session, (batch, None), x, x_stride, targets)
    }

    /// The operations that [`apply`](Self::apply) runs for a batch of `tokens` and the projections of `targets`, each with the elements from one row of its y
    /// to the next. Who plans them ahead, in any session of the device, has their code compiled by then.
    ///
    /// # Errors
    /// A projection that the population does not have, or one with another d_in.
    pub fn operations(&self, tokens: usize, x_stride: u64, targets: &[(&str, u64)]) -> Result<Vec<CodebookGemm>> {
        let rounds = self.rounds(&targets.iter().map(|(projection, _)| *projection).collect::<Vec<_>>())?;
        rounds.iter().map(|(_, round)| self.operation((tokens, ScaledBy::Adapter), x_stride, targets, round)).collect()
    }

    /// Applies a batch as [`apply`](Self::apply) does, with each token's delta times its gate where there are gates.
    pub(super) fn apply_scaled(
        &mut self,
        session: &mut Session<D>,
        (batch, gates): (&Batch<D>, Option<&Slice<D>>),
        x: &Slice<D>,
        x_stride: u64,
        targets: &[Target<'_, D>],
    ) -> Result<()> {
        self.own(session)?;
        self.check(batch)?;
        let named: Vec<(&str, u64)> = targets.iter().map(|target| (target.projection, target.y_stride)).collect();
        let scaled_by = if gates.is_some() { ScaledBy::Token } else { ScaledBy::Adapter };
        for (map, round) in self.rounds(&named.iter().map(|(projection, _)| *projection).collect::<Vec<_>>())? {
            let op = self.operation((batch.tokens, scaled_by), x_stride, &named, &round)?;
            let scaling = gates.unwrap_or(self.classes[round[0].0].scaling()).clone();
            let slices = round.iter().map(|&(at, target)| self.classes[at].args(&targets[target].y)).collect();
            let args = CodebookGemmArgs { x: x.clone(), token_adapter: batch.maps[map].clone(), scaling, slices, prepared: None };
            if !self.plans.contains_key(&op) {
                let plan = session.plan(op.clone())?;
                self.plans.insert(op.clone(), plan);
            }
            session.run(&self.plans[&op], &args)?;
        }
        Ok(())
    }

    /// The launches that projections take.
    fn rounds(&self, projections: &[&str]) -> Result<Vec<Round>> {
        let mut launches: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (number, &projection) in projections.iter().enumerate() {
            ensure(self.shared.contains_key(projection), "projection", "one that the population has", format_args!("{projection:?}"))?;
            let classes = self.classes.iter().enumerate().filter(|(_, class)| class.form().path() == projection);
            for (at, class) in classes {
                launches.entry(class.map()).or_default().push((at, number));
            }
        }
        let mut all = Vec::new();
        for (map, mut parts) in launches {
            // Two classes of one projection both add to the same y, so each round takes a y once.
            while !parts.is_empty() {
                let mut seen = Vec::new();
                let (round, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(|&(_, target)| {
                    !seen.contains(&target) && {
                        seen.push(target);
                        true
                    }
                });
                parts = rest;
                all.push((map, round));
            }
        }
        Ok(all)
    }

    /// The operation of one launch.
    fn operation(&self, (tokens, scaled_by): (usize, ScaledBy), x_stride: u64, targets: &[(&str, u64)], round: &[(usize, usize)]) -> Result<CodebookGemm> {
        let first = &self.classes[round[0].0];
        let (d_in, adapters) = (first.d_in(), first.capacity());
        let slice = |&(at, target): &(usize, usize)| {
            let class = &self.classes[at];
            let (name, own) = (targets[target].0, class.d_in());
            ensure(own == d_in, "targets", format_args!("projections of d_in {d_in}"), format_args!("{name} of {own}"))?;
            Ok(class.slice(targets[target].1))
        };
        let slices = round.iter().map(slice).collect::<Result<_>>()?;
        let (dtype, batch_invariant) = (self.dtype, self.batch_invariant);
        Ok(CodebookGemm { dtype, tokens: tokens as u64, d_in, x_stride, adapters, scaled_by, accumulate: true, slices, batch_invariant })
    }
}
