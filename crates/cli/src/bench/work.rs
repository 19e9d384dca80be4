//! A point made ready: planned, its operands on the device, its answer checked through the very path that is timed.

use super::adapters::Chain;
use super::decode::Step;
use super::lora::Trained;
use super::micro;
use super::mixture::Mixture;
use super::pattern::sparse;
use super::pool::Pool;
use super::prefix::Prefix;
use super::projection::Projection;
use super::ragged::Ragged;
use super::registered::Crowd;
use super::sample::{Checked, Copies, Memory, Placed, check, poison_all};
use super::shape::{Delta, Held, Point, Shape, Suite, fused_mlp};
use super::stack::{Attentions, Mlps, Products};
use trifuse::backend::{Backend, Kernel};
use trifuse::device::Device;
use trifuse::error::{Error, Result};
use trifuse::ops::attention::Form;
use trifuse::ops::index::HostIndex;
use trifuse::ops::{Attention, CodeWidth, Cost, Linear, Op};
use trifuse::session::{Graph, Plan, Session};

/// Launches of one plan, one after another.
pub struct Work<O: Op, D: Kernel<O>> {
    plan: Plan<O, D>,
    launches: Vec<O::Args<D>>,
    copies: Vec<Box<Copies<D>>>,
    before: Option<Box<Copies<D>>>,
    graph: Option<Graph<D>>,
    cost: Cost,
    memory: Option<Memory>,
}

/// What to do with work that is ready, whatever its operation.
pub trait Measure<D: Backend> {
    /// What it gives back.
    type Out;
    /// Does it.
    ///
    /// # Errors
    /// What the device reports.
    fn on<O: Op>(self, session: &mut Session<D>, work: &Work<O, D>, checked: Checked) -> Result<Self::Out>
    where
        D: Kernel<O>;
}

/// What to do with a point's operation, and with what makes its operands.
pub trait Pose<D: Backend> {
    /// What it gives back.
    type Out;
    /// Does it. `cost` is that of one launch, where the operation cannot know it.
    ///
    /// # Errors
    /// What the device reports.
    fn on<O: Op>(
        self,
        session: &mut Session<D>,
        op: O,
        cost: Option<Cost>,
        operands: impl FnOnce(&mut Session<D>) -> Result<Placed<O, D>>,
    ) -> Result<Made<Self::Out>>
    where
        D: Kernel<O>;
}

/// What came of a point.
#[derive(Clone, Debug)]
pub enum Made<T> {
    /// The answer is right, and it was measured.
    Measured(T),
    /// The answer is wrong: nothing was measured.
    Wrong(String),
    /// The backend, or the variant, does not do this.
    Unsupported(String),
}

/// What [`Work`] is made of besides its plan.
struct Ready<O: Op, D: Device> {
    launches: Vec<O::Args<D>>,
    copies: Vec<Box<Copies<D>>>,
    before: Option<Box<Copies<D>>>,
    memory: Option<Memory>,
}

impl<O: Op, D: Kernel<O>> Work<O, D> {
    /// Runs `plan` for every one of `launches`, of the cost of `one` each, and captures them where `captured`.
    fn new(session: &mut Session<D>, plan: Plan<O, D>, one: Cost, placed: Ready<O, D>, captured: bool) -> Result<Self> {
        let Ready { launches, copies, before, memory } = placed;
        let times = launches.len() as f64;
        let cost = Cost {
            executed_flops: one.executed_flops * times,
            useful_flops: one.useful_flops * times,
            dense_flops: one.dense_flops * times,
            bytes: one.bytes * times,
        };
        let mut work = Self { plan, launches, copies, before, graph: None, cost, memory };
        if captured {
            work.graph = Some(session.capture(|session| work.launch(session))?);
        }
        Ok(work)
    }

    fn launch(&self, session: &mut Session<D>) -> Result<()> {
        self.launches.iter().enumerate().try_for_each(|(number, args)| {
            self.copies.get(number).map_or(Ok(()), |copies| copies(session))?;
            session.run(&self.plan, args)
        })
    }

    /// Puts all of it into the queue once.
    ///
    /// # Errors
    /// What the device reports.
    pub fn enqueue(&self, session: &mut Session<D>) -> Result<()> {
        self.before.as_ref().map_or(Ok(()), |before| before(session))?;
        match &self.graph {
            Some(graph) => session.replay(graph),
            None => self.launch(session),
        }
    }

    /// Work and least traffic of all launches together.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// How many launches it is.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// What adapters take, where there are any.
    pub fn memory(&self) -> Option<Memory> {
        self.memory
    }

    /// The variant that runs it.
    pub fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    /// The configuration of that variant, where it has several.
    pub fn config(&self) -> Option<String> {
        self.plan.config()
    }
}

/// Makes `point` ready with the named variant, or the backend's choice, checks its answer and hands it to `measure`.
///
/// # Errors
/// What the device reports. A wrong answer is no error but [`Made::Wrong`].
pub fn with_point<D: Backend, M: Measure<D>>(session: &mut Session<D>, point: &Point, variant: Option<&str>, measure: M) -> Result<Made<M::Out>> {
    with_pooled(session, &mut Pool::default(), point, variant, measure)
}

/// Makes `point` ready as [`with_point`] does. The operands of a sweep come from `pool`, and stay there for its next size.
///
/// # Errors
/// The errors of [`with_point`].
pub fn with_pooled<D: Backend, M: Measure<D>>(
    session: &mut Session<D>,
    pool: &mut Pool<D>,
    point: &Point,
    variant: Option<&str>,
    measure: M,
) -> Result<Made<M::Out>> {
    pose(session, pool, point, Making { point, variant, measure })
}

/// Hands the operation of `point`, and what makes its operands, to `visitor`.
///
/// # Errors
/// The errors of `visitor`; sizes past what an index holds.
pub fn pose<D: Backend, P: Pose<D>>(session: &mut Session<D>, pool: &mut Pool<D>, point: &Point, visitor: P) -> Result<Made<P::Out>> {
    let mut source = pool.source(point);
    let dtype = point.dtype;
    match point.shape {
        Shape::Linear { tokens, d_out, d_in, delta, padding, layers } => {
            let adapters = delta.map(|Delta { adapters, rank }| Chain {
                dtype,
                tokens,
                adapters,
                projections: 1,
                d: d_in,
                rank,
                width: CodeWidth::FourThree,
                grouped: false,
                share: 1,
                held: Held::Device,
            });
            let op = padding.of(Linear::new(dtype, [tokens, d_in, d_out]).with_delta(adapters.as_ref().map(Chain::delta_op)));
            let extent = if point.suite == Suite::Align { [8, 64] } else { [16, 256] };
            let products = Products { op, adapters, layers, extent };
            visitor.on(session, products.op.clone(), None, |session| products.operands(session, &mut source))
        }
        Shape::FusedMlp { tokens, d_model, d_ff, gated, layers } => {
            let mlps = Mlps { op: fused_mlp(dtype, [tokens, d_model, d_ff], gated), layers };
            visitor.on(session, mlps.op.clone(), None, |session| mlps.operands(session, &mut source))
        }
        Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, layers, .. } => {
            let pattern = point.shape.pattern()?;
            let dense = Attention::dense(dtype, batch, [heads, kv_heads], [q_len, kv_len], head_dim).with_causal(causal);
            let op = sparse(dense, pattern.as_ref());
            let most = if point.suite == Suite::Align { 16 } else { 64 };
            // What a map holds is not in its shape; what is computed is what the lists would say.
            let cost = pattern.as_ref().map(|pattern| op.clone().with_form(Form::Blocks(pattern.mask.shape())).cost());
            let attentions = Attentions { op, pattern, layers, most };
            visitor.on(session, attentions.op.clone(), cost, |session| attentions.operands(session, &mut source))
        }
        Shape::Decode { batch, heads, kv_heads, kv_len, head_dim, layers } => {
            let step = Step { dtype, batch, heads: [heads, kv_heads], kv_len, head_dim, layers };
            visitor.on(session, step.attention(), None, |session| step.operands(session, &mut source.draw))
        }
        Shape::Ragged(ref sequences) => {
            let ragged = Ragged { dtype, sequences: sequences.clone() };
            let cost = Some(ragged.cost());
            visitor.on(session, ragged.op()?, cost, |session| ragged.operands(session, &mut source.draw))
        }
        Shape::Prefix { batch, heads, kv_heads, tokens, head_dim, rank } => {
            let prefix = Prefix { dtype, batch, heads: [heads, kv_heads], tokens, head_dim };
            match rank {
                None => visitor.on(session, prefix.plain(), None, |session| prefix.plain_operands(session, &mut source.draw)),
                Some(rank) => visitor.on(session, prefix.coded(rank), None, |session| prefix.coded_operands(session, &mut source.draw, rank)),
            }
        }
        Shape::CodebookGemm { tokens, adapters, projections, d, rank, grouped, share, held } => {
            let chain = Chain { dtype, tokens, adapters, projections, d, rank, width: CodeWidth::FourThree, grouped, share, held };
            visitor.on(session, chain.op(), None, |session| chain.operands(session, &mut source.draw))
        }
        Shape::Registered { tokens, adapters, bits, projections, d, rank } => {
            let width = CodeWidth::from_bits(bits).filter(|width| width.bits() > 0);
            let width = width.ok_or_else(|| Error::invalid("bits", "a width of codes: 2, 3, 4, 7 or 16", bits))?;
            let crowd = Crowd { dtype, tokens, adapters, projections, d, rank, width };
            visitor.on(session, crowd.op(), None, |session| crowd.operands(session, &mut source.draw))
        }
        Shape::Lora { tokens, adapters, projections, d, rank, added } => {
            let chain = Trained { dtype, tokens, adapters, projections, d, rank, added };
            visitor.on(session, chain.op(), None, |session| chain.operands(session, &mut source.draw))
        }
        Shape::Mixture { tokens, experts, top, projections, d, rank } => {
            let mixture = Mixture { dtype, tokens, experts, top, projections, d, rank };
            visitor.on(session, mixture.op(), None, |session| mixture.operands(session, &mut source.draw))
        }
        Shape::Projection(sizes) => {
            let projection = Projection { dtype, sizes };
            visitor.on(session, projection.op()?, None, |session| projection.operands(session, &mut source.draw))
        }
        Shape::Launches { count } => visitor.on(session, micro::least(dtype), None, |session| micro::launches(session, count, dtype, &mut source.draw)),
        Shape::Layer { .. } => Ok(Made::Unsupported("a layer is several operations: `trifuse bench layer` measures it".into())),
        // No operation of this crate: `copy_point` measures it.
        Shape::Copy { .. } => Ok(Made::Unsupported("a copy is no operation".into())),
    }
}

/// What every operation's way through [`with_point`] needs.
struct Making<'a, M> {
    point: &'a Point,
    variant: Option<&'a str>,
    measure: M,
}

impl<D: Backend, M: Measure<D>> Pose<D> for Making<'_, M> {
    type Out = M::Out;

    fn on<O: Op>(
        self,
        session: &mut Session<D>,
        op: O,
        cost: Option<Cost>,
        operands: impl FnOnce(&mut Session<D>) -> Result<Placed<O, D>>,
    ) -> Result<Made<M::Out>>
    where
        D: Kernel<O>,
    {
        let Self { point, variant, measure } = self;
        // Before the operands: what is not supported should not be drawn and copied first.
        let plan = match session.plan_variant(op, variant) {
            Err(Error::Unsupported { reason, .. }) => return Ok(Made::Unsupported(reason)),
            plan => plan?,
        };
        let Placed { launches, probes, copies, before, memory } = operands(session)?;
        let cost = cost.unwrap_or_else(|| plan.op().cost());
        let work = Work::new(session, plan, cost, Ready { launches, copies, before, memory }, point.captured)?;
        poison_all(session, &probes)?;
        work.enqueue(session)?;
        match check(session, point.dtype, &probes)? {
            Err(why) => Ok(Made::Wrong(why)),
            Ok(checked) => measure.on(session, &work, checked).map(Made::Measured),
        }
    }
}
