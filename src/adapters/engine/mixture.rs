//! A mixture of experts (Jacobs et al., 1991; top-k routing after Shazeer et al., 2017) whose experts are the engine's adapters. They share
//! the population's bases, and each is a slot of codes.
//!
//! `y[t] += Σ_k gate[t, k] · ΔW_{expert[t, k]} · x[t]`, summed in the order of `k` and rounded to y's type after each. A row depends on
//! nothing beside it, and slots say only where codes are. Wherever each expert is placed, the bits are equal.

use super::{AdapterId, Batch, Engine, Target};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::error::{Error, Result, ensure};
use crate::ops::CodebookGemm;
use crate::session::Session;

/// The experts that each token goes to, and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    top: usize,
    /// The expert of each token's choices, `[tokens, top]`.
    experts: Vec<Option<AdapterId>>,
    gates: Vec<f32>,
}

impl Routing {
    /// A routing of `experts` and `gates`, `[tokens, top]` each. There is no expert where a token goes to fewer, as when one is full.
    ///
    /// # Errors
    /// A `top` of 0, lengths that are no equal multiples of it, a gate that is not finite.
    pub fn new(top: usize, experts: Vec<Option<AdapterId>>, gates: Vec<f32>) -> Result<Self> {
        let fits = top > 0 && experts.len() == gates.len() && experts.len().is_multiple_of(top.max(1));
        let found = || format!("{} experts and {} gates, top {top}", experts.len(), gates.len());
        ensure(fits, "routing", "as many experts as gates, top of at least 1 for each token", found())?;
        match gates.iter().position(|gate| !gate.is_finite()) {
            Some(at) => Err(Error::invalid("routing", "finite gates", format!("{} for choice {} of token {}", gates[at], at % top, at / top))),
            None => Ok(Self { top, experts, gates }),
        }
    }

    /// A routing to the `top` highest of each token's `scores [tokens, experts]`, weighted by a softmax over those. Of equal scores the
    /// expert that is named first goes first.
    ///
    /// # Errors
    /// `top` of 0 or above the number of experts, scores of another shape, a score that is not finite.
    pub fn top_k(experts: &[AdapterId], scores: &[f32], top: usize) -> Result<Self> {
        let count = experts.len();
        ensure((1..=count).contains(&top), "routing: top", format_args!("1 to {count}, the number of experts"), top)?;
        ensure(scores.len().is_multiple_of(count), "routing: scores", format_args!("a multiple of {count}, the number of experts"), scores.len())?;
        if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
            return Err(Error::invalid("routing: scores", "finite numbers", format!("{} for expert {} of token {}", scores[at], at % count, at / count)));
        }
        let (mut chosen, mut gates) = (Vec::new(), Vec::new());
        for scores in scores.chunks_exact(count) {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order.truncate(top);
            let weights: Vec<f32> = order.iter().map(|&expert| (scores[expert] - scores[order[0]]).exp()).collect();
            let total: f32 = weights.iter().sum();
            chosen.extend(order.iter().map(|&expert| Some(experts[expert])));
            gates.extend(weights.iter().map(|weight| weight / total));
        }
        Self::new(top, chosen, gates)
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.experts.len() / self.top
    }

    /// The number of choices of each token.
    pub fn top(&self) -> usize {
        self.top
    }

    /// The expert and the gate of a token's choice.
    ///
    /// # Panics
    /// The token or the choice does not exist.
    pub fn choice(&self, token: usize, choice: usize) -> (Option<AdapterId>, f32) {
        (self.experts[token * self.top + choice], self.gates[token * self.top + choice])
    }

    /// The experts and gates of every token's choice number `choice`.
    fn pass(&self, choice: usize) -> (Vec<Option<AdapterId>>, Vec<f32>) {
        (0..self.tokens()).map(|token| self.choice(token, choice)).unzip()
    }
}

/// A routing on the device: a batch for each choice, and its gates. Its contents may change between replays of a captured graph.
pub struct Mixture<D: Device> {
    passes: Vec<(Batch<D>, Slice<D>)>,
}

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// Copies a routing to the device, and all of its experts at once.
    ///
    /// # Errors
    /// An adapter that is not known; more experts than the pool holds at once.
    pub fn mixture(&mut self, session: &mut Session<D>, routing: &Routing) -> Result<Mixture<D>> {
        let placed = self.settle(session, &routing.experts)?;
        let mut passes = Vec::with_capacity(routing.top);
        for choice in 0..routing.top {
            let (ids, gates) = routing.pass(choice);
            passes.push((self.batch_of(session, &ids, placed.clone())?, session.upload(&gates)?));
        }
        Ok(Mixture { passes })
    }

    /// Changes a routing in place. Graphs captured with it see the new one at their next replay.
    ///
    /// # Errors
    /// The errors of [`mixture`](Self::mixture); another number of tokens or choices; a mixture from before the last growth.
    pub fn reroute(&mut self, session: &mut Session<D>, mixture: &mut Mixture<D>, routing: &Routing) -> Result<()> {
        let tokens = mixture.passes.first().map_or(0, |pass| pass.0.tokens);
        let wanted = format!("{tokens} tokens, {} choices each", mixture.passes.len());
        let same = (tokens, mixture.passes.len()) == (routing.tokens(), routing.top);
        ensure(same, "routing", &wanted, format_args!("{} tokens, {} choices each", routing.tokens(), routing.top))?;
        mixture.passes.iter().try_for_each(|(batch, _)| self.current(batch))?;
        let placed = self.settle(session, &routing.experts)?;
        for (choice, (batch, on_device)) in mixture.passes.iter_mut().enumerate() {
            let (ids, gates) = routing.pass(choice);
            self.replace(session, batch, &ids, placed.clone())?;
            session.write(on_device, bytemuck::cast_slice(&gates))?;
        }
        Ok(())
    }

    /// Adds `Σ_k gate[t, k] · ΔW_{expert[t, k]} · x[t]` to `y[t]` for every target. Operands are those of [`apply`](Self::apply). Each
    /// choice is a launch. Does not block, and may be captured.
    ///
    /// # Errors
    /// The errors of [`apply`](Self::apply).
    pub fn apply_mixture(&mut self, session: &mut Session<D>, mixture: &Mixture<D>, x: &Slice<D>, x_stride: u64, targets: &[Target<'_, D>]) -> Result<()> {
        mixture.passes.iter().try_for_each(|(batch, gates)| self.apply_scaled(session, (batch, Some(gates)), x, x_stride, targets))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_scores_are_chosen_and_their_gates_add_up_to_one() {
        let experts: Vec<AdapterId> = (0..4).map(AdapterId).collect();
        let routing = Routing::top_k(&experts, &[0.0, 2.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0], 2).unwrap();
        assert_eq!((routing.tokens(), routing.top()), (2, 2));
        let chosen: Vec<_> = (0..4).map(|at| routing.choice(at / 2, at % 2).0.unwrap().0).collect();
        assert_eq!(chosen, [1, 3, 0, 1]);
        for token in 0..2 {
            assert_eq!(routing.choice(token, 0).1 + routing.choice(token, 1).1, 1.0);
        }
        let large = Routing::top_k(&experts, &[1e30, -1e30, 0.0, 0.0], 3).unwrap();
        assert_eq!((large.choice(0, 0).1, large.choice(0, 1).1), (1.0, 0.0));
    }

    #[test]
    fn what_is_no_routing_is_refused() {
        let experts = [AdapterId(0), AdapterId(1)];
        for (scores, top) in [(&[0.0, 1.0][..], 0), (&[0.0, 1.0], 3), (&[0.0, 1.0, 2.0], 1), (&[0.0, f32::NAN], 1), (&[f32::INFINITY, 0.0], 2)] {
            assert!(Routing::top_k(&experts, scores, top).is_err(), "{scores:?} {top}");
        }
        assert!(Routing::top_k(&[], &[], 1).is_err());
        assert!(Routing::new(2, vec![None; 3], vec![0.0; 3]).is_err());
        assert!(Routing::new(1, vec![None; 2], vec![0.0; 1]).is_err());
        assert!(Routing::new(1, vec![None], vec![f32::NAN]).is_err());
        assert!(Routing::new(0, Vec::new(), Vec::new()).is_err());
    }
}
