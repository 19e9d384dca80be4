//! The last norm and the head: logits from states, in f32 whatever the model computes in. Of a vocabulary's logits in bf16 the highest are often alike,
//! and the first of them would be drawn.

use super::config::Config;
use super::part::part;
use super::placed::Placed;
use super::plans::Arena;
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::Kind;
use crate::ops::{Linear, LinearArgs, Pointwise, PointwiseArgs};
use crate::session::{Plan, Session};

/// The plans of the last norm and the head, for the logits of some rows.
pub struct Head<D: Backend> {
    norm: Plan<Pointwise, D>,
    head: Plan<Linear, D>,
}

impl<D: Backend> Head<D> {
    /// Plans the logits of `rows` tokens, which may have to have the same bits among any others.
    ///
    /// # Errors
    /// An operation that the backend does not do.
    pub fn new(session: &Session<D>, config: &Config, dtype: DType, (rows, batch_invariant): (usize, bool)) -> Result<Self> {
        let product = Linear::new(dtype, [rows as u64, config.hidden, config.vocabulary.into()]);
        let norm = Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false };
        Ok(Self {
            norm: session.plan(Pointwise::new(dtype, rows as u64, config.hidden, norm))?,
            head: session.plan(product.with_padded_weights().with_batch_invariant(batch_invariant).with_wide_outputs(true))?,
        })
    }

    /// The logits of the first rows of `states`, in the arena's `logits`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn run(&self, session: &mut Session<D>, weights: &Placed<D>, arena: &Arena<D>, states: &Slice<D>) -> Result<Slice<D>> {
        let (norm, head) = (self.norm.op(), self.head.op());
        let bytes = norm.rows * norm.columns * norm.dtype.size();
        session.role("head");
        let (x, normed) = (part(states, 0, bytes)?, part(&arena.normed, 0, bytes)?);
        session.run(&self.norm, &PointwiseArgs { weight: Some(weights.norm.clone()), ..PointwiseArgs::new(x, normed.clone()) })?;
        let logits = part(&arena.logits, 0, head.tokens * head.d_out * head.y_dtype().size())?;
        session.run(&self.head, &LinearArgs::new(normed, weights.head.clone(), logits.clone()))?;
        Ok(logits)
    }
}
