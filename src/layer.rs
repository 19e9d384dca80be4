//! A transformer layer on a device, made of this crate's operations alone. [`crate::ops::layer`] says what it computes.
//!
//! A [`TransformerLayer`] holds plans and the memory between its launches, once for all layers of a model. Each run names its weights and
//! states. There are six launches, or seven with rotary positions or where the MLP is two products. Nothing lies between them, so that a
//! run can be captured and replayed as one graph. Where the backend can do that, each launch begins while the one before ends. q, k and v
//! stay in the rows in which one product left them. Rotary positions rotate q and k in place, and attention reads all three as slices with
//! the strides of those rows. Both residuals are added in the epilogues of products.

use derive_where::derive_where;

use crate::backend::{Backend, Kernel};
use crate::device::{Device, Slice};
use crate::error::{Error, Result, ensure};
use crate::ops::layer::{Layer, Parts};
use crate::ops::{Attention, AttentionArgs, Cost, FusedMlp, FusedMlpArgs, Linear, LinearArgs, Op, Pointwise, PointwiseArgs};
use crate::session::{Graph, Plan, Session};

/// A weight, and the bias of its outputs where the style has biases.
#[derive_where(Clone, Debug)]
pub struct Affine<D: Device> {
    /// The weight.
    pub weight: Slice<D>,
    /// The bias.
    pub bias: Option<Slice<D>>,
}

/// The weights of one layer, in its dtype, row-major. Rows of the products' weights start at multiples of 16 bytes: they lie
/// [`DType::row_stride`](crate::DType::row_stride) apart, as [`Session::upload_rows`] places them. Rows of such a length are packed.
#[derive_where(Clone, Debug)]
pub struct Weights<D: Device> {
    /// The norm before attention, `[hidden]`.
    pub attention_norm: Affine<D>,
    /// The weights of q, k and v, one below the other: `[(heads + 2 · kv_heads) · head_dim, hidden]`.
    pub qkv: Affine<D>,
    /// The output projection of attention, `[hidden, heads · head_dim]`.
    pub output: Affine<D>,
    /// The norm before the MLP, `[hidden]`.
    pub mlp_norm: Affine<D>,
    /// The gate of a gated MLP, `[intermediate, hidden]`.
    pub gate: Option<Slice<D>>,
    /// The MLP's first product, `[intermediate, hidden]`.
    pub up: Affine<D>,
    /// The MLP's second product, `[hidden, intermediate]`.
    pub down: Affine<D>,
}

/// The states that go into a layer and come out of it.
#[derive_where(Clone, Debug)]
pub struct States<D: Device> {
    /// The states that go in, `[batch · tokens, hidden]`, read.
    pub x: Slice<D>,
    /// Positions, `[batch · tokens]` as i32, read, for styles with rotary positions.
    pub positions: Option<Slice<D>>,
    /// The states that come out, `[batch · tokens, hidden]`, written.
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
    /// The result of either norm, `[rows, hidden]`.
    normed: Slice<D>,
    /// Rows `[q | k | v]`. After attention they hold the intermediate of an MLP of two products, whose rows may be the longer ones.
    rows: Slice<D>,
    /// The result of attention, `[rows, heads · head_dim]`.
    attended: Slice<D>,
    /// The states between attention and MLP, `[rows, hidden]`.
    middle: Slice<D>,
}

/// The MLP's plans: see [`Layer::mlp_products`].
enum Mlp<D: Backend> {
    Fused(Plan<FusedMlp, D>),
    Products(Box<[Plan<Linear, D>; 2]>),
}

/// One launch of a layer, with its name.
pub struct Step<'a, D: Backend> {
    /// The launch's place: `attention_norm`, `qkv`, `rope`, `attention`, `output`, `mlp_norm` and `mlp`, or `up` and `down`.
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
    /// Plans every operation of `layer`, and allocates the memory between them. This is slow; one serves all layers of a model.
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
                Some([up, down]) => Mlp::Products(Box::new([session.plan(up)?, session.plan(down)?])),
                None => Mlp::Fused(session.plan(mlp)?),
            },
            normed: room(sizes.hidden)?,
            rows: room(sizes.qkv().max(intermediate))?,
            attended: room(sizes.query())?,
            middle: room(sizes.hidden)?,
            layer,
        })
    }

    /// The descriptor that the layer was planned for.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The launches of one run, in their order.
    ///
    /// # Errors
    /// Positions that are missing, or given for a style that has none. The launch refuses everything else that does not fit.
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
            input_norm: None,
            y: y.clone(),
        };
        let attention = AttentionArgs::new(from(0)?, from(query)?, from(query + key)?, self.attended.clone());
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
            Mlp::Products(products) => {
                let [up, down] = products.as_ref();
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

    /// Enqueues a run. Does not block.
    ///
    /// # Errors
    /// Weights or states of other sizes; a device that fails.
    pub fn run(&self, session: &mut Session<D>, weights: &Weights<D>, states: &States<D>) -> Result<()> {
        self.steps(weights, states)?.iter().try_for_each(|step| step.launch.run(session))
    }

    /// Captures a run as one graph, which [`Session::replay`] enqueues.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn capture(&self, session: &mut Session<D>, weights: &Weights<D>, states: &States<D>) -> Result<Graph<D>> {
        session.capture(|session| self.run(session, weights, states))
    }
}

impl<D: Backend> Launch<'_, D> {
    /// Enqueues the launch.
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

    /// The operation's name, the chosen variant, its configuration where it has several, and the operation's cost.
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

    /// The slice that the launch writes.
    pub fn output(&self) -> &Slice<D> {
        match self {
            Self::Pointwise(_, args) => &args.y,
            Self::Linear(_, args) => &args.y,
            Self::Attention(_, args) => &args.o,
            Self::FusedMlp(_, args) => &args.y,
        }
    }
}
