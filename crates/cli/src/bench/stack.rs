//! Stacks of one operation, a layer behind the other, each with weights, or keys and values, of its own.

use super::adapters::Chain;
use super::pattern::Pattern;
use super::pool::Source;
use super::sample::{self, Input, MlpValues, Placed, Sampler};
use trifuse::backend::Backend;
use trifuse::error::Result;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::{Attention, AttentionArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// What is looked at of an answer is drawn alike in each run.
fn drawn() -> Draw {
    Draw::seeded("sample")
}

/// Products, each on what the one before wrote.
pub struct Products {
    pub op: Linear,
    /// What is added to each.
    pub adapters: Option<Chain>,
    pub layers: u64,
    /// Rows and columns of an answer that are looked at, at most.
    pub extent: [u64; 2],
}

impl Products {
    pub fn operands<D: Backend>(&self, session: &mut Session<D>, source: &mut Source<'_, D>) -> Result<Placed<Linear, D>> {
        let Linear { dtype, tokens, d_out, d_in, .. } = self.op;
        let extent = self.extent;
        let mut placed = Placed::default();
        let (x, mut on_device) = source.rows(session, "x", dtype, [tokens, d_in, self.op.x_stride], 1.0)?;
        let mut input = Input::Drawn(x);
        for _ in 0..self.layers {
            let (w, weight) = source.rows(session, "w", dtype, [d_out, d_in, self.op.w_stride], 1.0 / (d_in as f64).sqrt())?;
            let y = source.output(session, tokens * d_out * dtype.size())?;
            let mut args = LinearArgs::new(on_device, weight, y.clone());
            let (op, x) = (self.op.clone(), std::mem::replace(&mut input, Input::Left(y.clone())));
            let samples: Box<Sampler<D>> = match &self.adapters {
                None => Box::new(move |session| Ok(sample::linear(&op, &x.values(session, dtype)?, &w, extent, &mut drawn()))),
                Some(chain) => {
                    let (delta, of_row) = chain.delta(session, &mut source.draw, args.x.clone(), y.clone())?;
                    args.delta = Some(delta);
                    Box::new(move |session| sample::adapted(&op, &x.values(session, dtype)?, &w, &of_row, &mut drawn()))
                }
            };
            on_device = y.clone();
            placed.push(args, y, samples);
        }
        Ok(placed)
    }
}

/// MLPs, with biases where these are not gated, each on what the one before wrote.
pub struct Mlps {
    pub op: FusedMlp,
    pub layers: u64,
}

impl Mlps {
    pub fn operands<D: Backend>(&self, session: &mut Session<D>, source: &mut Source<'_, D>) -> Result<Placed<FusedMlp, D>> {
        let FusedMlp { dtype, tokens, d_model, d_ff, .. } = self.op;
        // A row of the oracle's takes a good part of a second.
        let most = if self.layers == 1 { 4 } else { 2 };
        // Behind GELU a value's square is about half of what it was, and of a gated product a third: these keep it along a row of layers.
        let (first, second) = (1.0 / (d_model as f64).sqrt(), (if self.op.gated { 2.8 } else { 2.0 } / d_ff as f64).sqrt());
        let mut placed = Placed::default();
        let (x, mut on_device) = source.normal(session, "x", dtype, tokens * d_model, 1.0)?;
        let mut input = Input::Drawn(x);
        for _ in 0..self.layers {
            let mut normal = |role, count, deviation| source.normal(session, role, dtype, count, deviation);
            let (w1, up) = normal("w1", d_ff * d_model, first)?;
            let (w2, down) = normal("w2", d_model * d_ff, second)?;
            let mut some = |there: bool, role, count, deviation| there.then(|| normal(role, count, deviation)).transpose().map(Option::unzip);
            let (wg, gate) = some(self.op.gated, "wg", d_ff * d_model, first)?;
            let (b1, up_bias) = some(self.op.bias1, "b1", d_ff, 0.5)?;
            let (b2, down_bias) = some(self.op.bias2, "b2", d_model, 0.5)?;
            let values = MlpValues { w1, wg, b1, w2, b2 };
            let y = session.alloc(tokens * d_model * dtype.size())?;
            let args = FusedMlpArgs::new(on_device, up, down, y.clone()).with_wg(gate).with_b1(up_bias).with_b2(down_bias);
            let (op, x) = (self.op.clone(), std::mem::replace(&mut input, Input::Left(y.clone())));
            let samples = move |session: &mut Session<D>| Ok(sample::fused_mlp(&op, &x.values(session, dtype)?, &values, most, &mut drawn()));
            on_device = y.clone();
            placed.push(args, y, Box::new(samples));
        }
        Ok(placed)
    }
}

/// Attention, each time over operands of its own.
pub struct Attentions {
    pub op: Attention,
    /// The blocks that are there, where that is not all.
    pub pattern: Option<Pattern>,
    pub layers: u64,
    /// Queries of an answer that are looked at, at most.
    pub most: u64,
}

impl Attentions {
    pub fn operands<D: Backend>(&self, session: &mut Session<D>, source: &mut Source<'_, D>) -> Result<Placed<Attention, D>> {
        let Attention { dtype, batch, heads, kv_heads, q_len, kv_len, head_dim, .. } = self.op;
        let (queries, keys, most) = (batch * q_len * heads * head_dim, batch * kv_len * kv_heads * head_dim, self.most);
        let mut placed = Placed::default();
        for _ in 0..self.layers {
            let mut normal = |role, count| source.normal(session, role, dtype, count, 1.0);
            let ((q, q_args), (k, k_args), (v, v_args)) = (normal("q", queries)?, normal("k", keys)?, normal("v", keys)?);
            let index = match &self.pattern {
                Some(Pattern { map: Some(map), .. }) => AttentionIndex::BlockMap(session.index(map)?),
                Some(pattern) => AttentionIndex::Blocks(session.index(&pattern.mask)?),
                None => AttentionIndex::None,
            };
            let o = source.output(session, queries * dtype.size())?;
            let args = AttentionArgs::new(q_args, k_args, v_args, o.clone()).with_index(index);
            let (op, pattern) = (self.op.clone(), self.pattern.clone());
            let samples = move |_: &mut Session<D>| Ok(sample::attention(&op, [&q, &k, &v], pattern.as_ref(), most, &mut drawn()));
            placed.push(args, o, Box::new(samples));
        }
        Ok(placed)
    }
}
