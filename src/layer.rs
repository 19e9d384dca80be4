//! A transformer layer on a device, made of this crate's operations alone; see [`crate::ops::layer`] for what it computes.
//!
//! A [`TransformerLayer`] holds plans and the memory between its launches, once for all layers of a model: weights and states
//! are named by each run. Six launches (seven with rotary positions, or where the MLP is two products) follow each other with nothing between them, so that a
//! run can be captured and replayed as one graph, and each can begin, where the backend can do that, while the one before ends.
//! q, k and v stay in the rows in which one product left them: rotary positions turn q and k where they lie, and attention
//! reads all three as slices with the strides of those rows. Both residuals ride in the epilogues of products.

use derive_where::derive_where;

use crate::backend::{Backend, Kernel};
use crate::device::{Device, Slice};
use crate::error::{Error, Result, ensure};
use crate::ops::attention::AttentionIndex;
use crate::ops::layer::{Layer, Parts};
use crate::ops::{Attention, AttentionArgs, Cost, FusedMlp, FusedMlpArgs, Linear, LinearArgs, Op, Pointwise, PointwiseArgs};
use crate::session::{Graph, Plan, Session};

/// A weight, and the bias of its outputs, where the style has biases.
#[derive_where(Clone, Debug)]
pub struct Affine<D: Device> {
    /// The weight.
    pub weight: Slice<D>,
    /// The bias.
    pub bias: Option<Slice<D>>,
}

/// The weights of one layer, of its dtype, row-major. Rows of the products' weights start on multiples of 16 bytes: they lie
/// [`DType::row_stride`](crate::DType::row_stride) apart, as [`Session::upload_rows`] places them; packed, where their length is one.
#[derive_where(Clone, Debug)]
pub struct Weights<D: Device> {
    /// `[hidden]`: of the norm before attention.
    pub attention_norm: Affine<D>,
    /// `[(heads + 2 · kv_heads) · head_dim, hidden]`: q, k, v one below the other.
    pub qkv: Affine<D>,
    /// `[hidden, heads · head_dim]`.
    pub output: Affine<D>,
    /// `[hidden]`: of the norm before the MLP.
    pub mlp_norm: Affine<D>,
    /// `[intermediate, hidden]`, of a gated MLP.
    pub gate: Option<Slice<D>>,
    /// `[intermediate, hidden]`.
    pub up: Affine<D>,
    /// `[hidden, intermediate]`.
    pub down: Affine<D>,
}

/// What goes through a layer.
#[derive_where(Clone, Debug)]
pub struct States<D: Device> {
    /// `[batch · tokens, hidden]`, read.
    pub x: Slice<D>,
    /// `[batch · tokens]` positions as i32, read; of styles with rotary positions.
    pub positions: Option<Slice<D>>,
    /// `[batch · tokens, hidden]`, written.
    pub y: Slice<D>,
}

/// The plans of a layer's operations, and the memory between them.
pub struct TransformerLayer<D: Backend> {
    layer: Layer,
    norm: Plan<Pointwise, D>,
    qkv: Plan<Linear, D>,
    rope: Option<Plan<Pointwise, D>>,
    attention: Plan<Attention, D>,
    output: Plan<Linear, D>,
    mlp: Mlp<D>,
    /// `[rows, hidden]`: what both norms give.
    normed: Slice<D>,
    /// Rows `[q | k | v]`; behind attention, the intermediate of an MLP of two products, whose rows may be the longer ones.
    rows: Slice<D>,
    /// `[rows, heads · head_dim]`.
    attended: Slice<D>,
    /// `[rows, hidden]`: the states between attention and MLP.
    middle: Slice<D>,
}

/// See [`Layer::mlp_products`].
enum Mlp<D: Backend> {
    Fused(Plan<FusedMlp, D>),
    Products([Plan<Linear, D>; 2]),
}

/// One launch of a layer, by what it does there.
pub struct Step<'a, D: Backend> {
    /// `attention_norm`, `qkv`, `rope`, `attention`, `output`, `mlp_norm` and `mlp`, or `up` and `down`.
    pub name: &'static str,
    /// The launch.
    pub launch: Launch<'a, D>,
}

/// A plan and its operands.
#[allow(missing_docs, reason = "one variant an operation, by its own name")]
pub enum Launch<'a, D: Backend> {
    Pointwise(&'a Plan<Pointwise, D>, PointwiseArgs<D>),
    Linear(&'a Plan<Linear, D>, LinearArgs<D>),
    Attention(&'a Plan<Attention, D>, AttentionArgs<D>),
    FusedMlp(&'a Plan<FusedMlp, D>, FusedMlpArgs<D>),
}

impl<D: Backend> TransformerLayer<D> {
    /// Plans every operation of `layer` and allocates what lies between them. Slow; one serves all layers of a model.
    ///
    /// # Errors
    /// Sizes that fit no operation; an operation that the backend does not do; no device memory.
    pub fn new(session: &Session<D>, layer: Layer) -> Result<Self> {
        let Parts { norm, qkv, rope, attention, output, mlp } = layer.parts()?;
        let (rows, sizes) = (layer.rows(), layer.sizes);
        let room = |columns: u64| session.alloc(rows * columns * layer.dtype.size());
        let products = layer.mlp_products()?;
        let intermediate = products.as_ref().map_or(0, |[up, _]| up.d_out);
        Ok(Self {
            norm: session.plan(norm)?,
            qkv: session.plan(qkv)?,
            rope: rope.map(|rope| session.plan(rope)).transpose()?,
            attention: session.plan(attention)?,
            output: session.plan(output)?,
            mlp: match products {
                Some([up, down]) => Mlp::Products([session.plan(up)?, session.plan(down)?]),
                None => Mlp::Fused(session.plan(mlp)?),
            },
            normed: room(sizes.hidden)?,
            rows: room(sizes.qkv().max(intermediate))?,
            attended: room(sizes.query())?,
            middle: room(sizes.hidden)?,
            layer,
        })
    }

    /// What it was planned for.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The launches of one run, in their order.
    ///
    /// # Errors
    /// Positions that are missing, or there for a style that has none. What else does not fit, the launch refuses.
    pub fn steps(&self, weights: &Weights<D>, states: &States<D>) -> Result<Vec<Step<'_, D>>> {
        ensure(self.rope.is_some() == states.positions.is_some(), "layer: positions", "those of a style with rotary positions, and of no other", "the other")?;
        let size = self.layer.dtype.size();
        let [query, key] = [self.layer.sizes.query(), self.layer.sizes.key()].map(|columns| columns * size);
        // The rows are as long as the longer of the two that lie there, one after the other.
        let packed = |what: &'static str, columns: u64| {
            let bytes = self.layer.rows() * columns * size;
            self.rows.sub_slice(0, bytes).ok_or_else(|| Error::invalid(what, "a part of the rows", bytes))
        };
        let qkv = packed("layer: q, k, v", self.layer.sizes.qkv())?;
        let from = |offset: u64| {
            let part = qkv.len.checked_sub(offset).and_then(|len| qkv.sub_slice(offset, len));
            // Without rows there is nothing to point at.
            part.or_else(|| qkv.sub_slice(0, 0)).ok_or_else(|| Error::invalid("layer: q, k, v", "a part of their rows", offset))
        };
        let normed = |by: &Affine<D>, x: &Slice<D>| {
            let args = PointwiseArgs { weight: Some(by.weight.clone()), bias: by.bias.clone(), ..PointwiseArgs::new(x.clone(), self.normed.clone()) };
            Launch::Pointwise(&self.norm, args)
        };
        let product = |by: &Affine<D>, x: &Slice<D>, residual: Option<&Slice<D>>, y: &Slice<D>| LinearArgs {
            x: x.clone(),
            w: by.weight.clone(),
            bias: by.bias.clone(),
            residual: residual.cloned(),
            delta: None,
            norm: None,
            y: y.clone(),
        };
        let attention = AttentionArgs { q: from(0)?, k: from(query)?, v: from(query + key)?, index: AttentionIndex::None, o: self.attended.clone(), lse: None };
        let mlp = match &self.mlp {
            Mlp::Fused(plan) => {
                let args = FusedMlpArgs {
                    x: self.normed.clone(),
                    w1: weights.up.weight.clone(),
                    wg: weights.gate.clone(),
                    b1: weights.up.bias.clone(),
                    w2: weights.down.weight.clone(),
                    b2: weights.down.bias.clone(),
                    residual: Some(self.middle.clone()),
                    y: states.y.clone(),
                };
                [Some(("mlp", Launch::FusedMlp(plan, args))), None]
            }
            Mlp::Products([up, down]) => {
                ensure(weights.gate.is_none(), "layer: gate", "none: its MLP has one weight in its first product", "one")?;
                let inner = packed("layer: intermediate", up.op().d_out)?;
                let first = product(&weights.up, &self.normed, None, &inner);
                let second = product(&weights.down, &inner, Some(&self.middle), &states.y);
                [Some(("up", Launch::Linear(up, first))), Some(("down", Launch::Linear(down, second)))]
            }
        };
        let rope = self.rope.as_ref().zip(states.positions.clone());
        let steps = [
            Some(("attention_norm", normed(&weights.attention_norm, &states.x))),
            Some(("qkv", Launch::Linear(&self.qkv, product(&weights.qkv, &self.normed, None, &qkv)))),
            rope.map(|(plan, positions)| ("rope", Launch::Pointwise(plan, PointwiseArgs::rope_in_place(qkv.clone(), positions)))),
            Some(("attention", Launch::Attention(&self.attention, attention))),
            Some(("output", Launch::Linear(&self.output, product(&weights.output, &self.attended, Some(&states.x), &self.middle)))),
            Some(("mlp_norm", normed(&weights.mlp_norm, &self.middle))),
        ];
        Ok(steps.into_iter().chain(mlp).flatten().map(|(name, launch)| Step { name, launch }).collect())
    }

    /// Puts a run into the queue. Does not block.
    ///
    /// # Errors
    /// Weights or states of other sizes; a device that fails.
    pub fn run(&self, session: &mut Session<D>, weights: &Weights<D>, states: &States<D>) -> Result<()> {
        self.steps(weights, states)?.iter().try_for_each(|step| step.launch.run(session))
    }

    /// A run as one graph, which [`Session::replay`] puts into the queue.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn capture(&self, session: &mut Session<D>, weights: &Weights<D>, states: &States<D>) -> Result<Graph<D>> {
        session.capture(|session| self.run(session, weights, states))
    }
}

impl<D: Backend> Launch<'_, D> {
    /// Puts it into the queue.
    ///
    /// # Errors
    /// Operands that do not fit; a device that fails.
    pub fn run(&self, session: &mut Session<D>) -> Result<()> {
        match self {
            Self::Pointwise(plan, args) => session.run(plan, args),
            Self::Linear(plan, args) => session.run(plan, args),
            Self::Attention(plan, args) => session.run(plan, args),
            Self::FusedMlp(plan, args) => session.run(plan, args),
        }
    }

    /// The operation's name, the variant that was chosen, the configuration of it where it has several, and what it costs.
    pub fn facts(&self) -> (&'static str, &'static str, Option<String>, Cost) {
        fn of<O: Op, D: Kernel<O>>(plan: &Plan<O, D>) -> (&'static str, &'static str, Option<String>, Cost) {
            (O::NAME, plan.variant(), plan.config(), plan.op().cost())
        }
        match self {
            Self::Pointwise(plan, _) => of(plan),
            Self::Linear(plan, _) => of(plan),
            Self::Attention(plan, _) => of(plan),
            Self::FusedMlp(plan, _) => of(plan),
        }
    }

    /// What it writes.
    pub fn output(&self) -> &Slice<D> {
        match self {
            Self::Pointwise(_, args) => &args.y,
            Self::Linear(_, args) => &args.y,
            Self::Attention(_, args) => &args.o,
            Self::FusedMlp(_, args) => &args.y,
        }
    }
}
