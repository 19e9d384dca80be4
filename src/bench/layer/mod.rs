//! A whole transformer layer as one captured graph, beside its operations one by one.
//!
//! Each launch is checked on rows drawn from all over its output, against the oracle on what the device itself left for it to
//! read; so an error in one is not lost in the next. The graph, which is what is timed, must then give the same bits as these
//! launches. That the composition is right, tests hold at small sizes against an oracle of the whole.

mod check;
mod points;

use serde::{Deserialize, Serialize};

pub use points::Choice;
pub(super) use points::{LENGTHS, points, small};

use super::Judge;
use super::operand::Values;
use super::report::{Outcome, Rates};
use super::sample::{Checked, poison};
use super::shape::{Point, Shape};
use super::timing::Caches;
use super::work::Made;
use crate::backend::Backend;
use crate::cases::Draw;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layer::{Affine, States, Step, TransformerLayer, Weights};
use crate::ops::Cost;
use crate::ops::layer::{Layer, Style};
use crate::session::{Graph, Session};

/// A layer's launches, each timed by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// The medians of all of them with cold caches, together.
    pub cold_seconds: f64,
    /// The same with warm caches.
    pub warm_seconds: f64,
    /// In the layer's order.
    pub each: Vec<Part>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it does in the layer.
    pub name: String,
    /// The operation.
    pub op: String,
    /// The variant that ran.
    pub variant: String,
    /// The median with cold caches.
    pub cold_seconds: f64,
    /// The median with warm ones.
    pub warm_seconds: f64,
    /// Its work, by itself: what is between two launches counts for both.
    pub cost: Cost,
    /// Rates of the cold median.
    pub rates: Rates,
}

/// The numbers of a weight and its bias.
struct Numbers {
    weight: Values,
    bias: Option<Values>,
}

impl Numbers {
    /// With rows of `columns` values, a row every `stride`.
    fn upload<D: Device>(&self, session: &mut Session<D>, [columns, stride]: [u64; 2]) -> Result<Affine<D>> {
        Ok(Affine { weight: self.weight.upload_rows(session, columns, stride)?, bias: self.bias.as_ref().map(|bias| bias.upload(session)).transpose()? })
    }
}

/// All that a layer reads, as the host knows it.
struct Operands {
    attention_norm: Numbers,
    qkv: Numbers,
    output: Numbers,
    mlp_norm: Numbers,
    gate: Option<Values>,
    up: Numbers,
    down: Numbers,
    x: Values,
    positions: Option<Vec<i32>>,
}

impl Operands {
    /// Random numbers of such a size that states stay of order one.
    fn draw(layer: &Layer, draw: &mut Draw) -> Self {
        let (dtype, sizes, biases, llama) = (layer.dtype, layer.sizes, layer.biases(), layer.style == Style::Llama);
        let mut numbers = |[rows, columns]: [u64; 2], deviation: f64, bias: Option<f64>| Numbers {
            weight: Values::normal(draw, dtype, rows * columns, deviation),
            bias: bias.filter(|_| biases).map(|deviation| Values::normal(draw, dtype, rows, deviation)),
        };
        let [hidden, wide, query] = [sizes.hidden, sizes.intermediate, sizes.query()];
        let root = |columns: u64| 1.0 / (columns as f64).sqrt();
        let attention_norm = numbers([hidden, 1], 1.0, Some(0.5));
        let qkv = numbers([sizes.qkv(), hidden], root(hidden), Some(0.5));
        let output = numbers([hidden, query], root(query), Some(0.5));
        let mlp_norm = numbers([hidden, 1], 1.0, Some(0.5));
        let gate = llama.then(|| numbers([wide, hidden], root(hidden), None).weight);
        let up = numbers([wide, hidden], root(hidden), Some(0.5));
        let down = numbers([hidden, wide], 2.0 * root(wide), Some(0.5));
        let x = numbers([layer.rows(), hidden], 1.0, None).weight;
        // Every sequence begins at position 0.
        let positions = llama.then(|| (0..layer.rows()).map(|row| (row % layer.tokens) as i32).collect());
        Self { attention_norm, qkv, output, mlp_norm, gate, up, down, x, positions }
    }

    /// Of the product that a step of that name is.
    fn of(&self, step: &str) -> &Numbers {
        match step {
            "qkv" => &self.qkv,
            "output" => &self.output,
            "up" => &self.up,
            _ => &self.down,
        }
    }

    fn upload<D: Device>(&self, layer: &Layer, session: &mut Session<D>) -> Result<(Weights<D>, States<D>)> {
        let parts = layer.parts()?;
        let [qkv, output] = [&parts.qkv, &parts.output].map(|product| [product.d_in, product.w_stride]);
        let (up, down) = ([parts.mlp.d_model, parts.mlp.w1_stride], [parts.mlp.d_ff, parts.mlp.w2_stride]);
        let weights = Weights {
            attention_norm: self.attention_norm.upload(session, [1; 2])?,
            qkv: self.qkv.upload(session, qkv)?,
            output: self.output.upload(session, output)?,
            mlp_norm: self.mlp_norm.upload(session, [1; 2])?,
            gate: self.gate.as_ref().map(|gate| gate.upload_rows(session, up[0], up[1])).transpose()?,
            up: self.up.upload(session, up)?,
            down: self.down.upload(session, down)?,
        };
        let positions = self.positions.as_ref().map(|positions| session.upload(positions)).transpose()?;
        let y = session.alloc(layer.rows() * layer.sizes.hidden * layer.dtype.size())?;
        Ok((weights, States { x: self.x.upload(session)?, positions, y }))
    }
}

/// A layer that was checked, as one graph and as the launches that it is made of.
pub struct Ready<'a, D: Backend> {
    /// The whole.
    pub graph: Graph<D>,
    /// Its work.
    pub cost: Cost,
    steps: Vec<Step<'a, D>>,
    checked: Checked,
}

/// Makes the layer of a point ready, checks it, and hands it to `measure`.
///
/// # Errors
/// What the device reports; a point that is no layer. A wrong answer is no error but [`Made::Wrong`].
pub fn with_layer<D: Backend, T>(
    session: &mut Session<D>,
    point: &Point,
    measure: impl FnOnce(&mut Session<D>, &Ready<'_, D>) -> Result<T>,
) -> Result<Made<T>> {
    let Shape::Layer { batch, tokens, sizes, style, causal, .. } = point.shape else {
        return Err(Error::invalid("layer", "a layer's sizes", format!("{:?}", point.shape)));
    };
    let layer = Layer::new(point.dtype, [batch, tokens], sizes, style, causal);
    let planned = match TransformerLayer::new(session, layer.clone()) {
        Err(Error::Unsupported { reason, .. }) => return Ok(Made::Unsupported(reason)),
        planned => planned?,
    };
    let operands = Operands::draw(&layer, &mut Draw::seeded(&format!("{} {}", point.shape.name(), point.dtype)));
    let (weights, states) = operands.upload(&layer, session)?;
    let steps = planned.steps(&weights, &states)?;
    let checked = match check::steps(session, &layer, &operands, &steps)? {
        Ok(checked) => checked,
        Err(why) => return Ok(Made::Wrong(why)),
    };
    let expected = session.read(&states.y)?;
    let graph = planned.capture(session, &weights, &states)?;
    poison(session, &states.y)?;
    session.replay(&graph)?;
    if let Some(why) = difference(session, point.dtype, &states.y, &expected)? {
        return Ok(Made::Wrong(why));
    }
    measure(session, &Ready { graph, cost: layer.cost()?, steps, checked }).map(Made::Measured)
}

/// Checks and measures the layer of a point.
///
/// # Errors
/// What the device reports; a point that is no layer.
pub(super) fn measure<D: Backend>(session: &mut Session<D>, point: &Point, variant: Option<&str>, judge: &Judge<'_, D>) -> Result<Outcome> {
    if variant.is_some() {
        return Err(Error::invalid("--variant", "none: a layer is several operations, each by the backend's choice", format!("{variant:?}")));
    }
    let made = with_layer(session, point, |session, ready| {
        let facts = (ready.checked, ready.cost, None);
        let outcome = judge.times(session, ("layer", ready.steps.len()), facts, |session| session.replay(&ready.graph))?;
        let Outcome::Measured(mut measured) = outcome else { return Ok(outcome) };
        match parts(session, &ready.steps, judge)? {
            Ok(parts) => measured.parts = Some(parts),
            Err(why) => return Ok(Outcome::Refused { why }),
        }
        Ok(Outcome::Measured(measured))
    })?;
    Ok(made.into())
}

/// What the graph computed otherwise than the launches that it is made of.
fn difference<D: Device>(session: &mut Session<D>, dtype: DType, y: &Slice<D>, expected: &[u8]) -> Result<Option<String>> {
    let found = session.read(y)?;
    let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
    Ok(place.map(|at| format!("element {} of the graph's output differs from that of its launches one by one", at as u64 / dtype.size())))
}

/// Each launch by itself; the inner error is a time that cannot be true. Rotary positions turn again what they turned before.
fn parts<D: Backend>(session: &mut Session<D>, steps: &[Step<'_, D>], judge: &Judge<'_, D>) -> Result<Result<Parts, String>> {
    let mut each = Vec::with_capacity(steps.len());
    for Step { name, launch } in steps {
        let mut median = |caches| judge.flush.time(session, judge.schedule, caches, |session| launch.run(session)).map(|times| times.seconds.median);
        let [cold_seconds, warm_seconds] = [median(Caches::Cold)?, median(Caches::Warm)?];
        let (op, variant, cost) = launch.facts();
        if let Some(why) = judge.ceilings.impossible(cost, cold_seconds.min(warm_seconds), judge.flush.bytes()) {
            return Ok(Err(format!("{name}: {why}")));
        }
        let rates = Rates::of(cost, cold_seconds, judge.ceilings);
        each.push(Part { name: (*name).into(), op: op.into(), variant: variant.into(), cold_seconds, warm_seconds, cost, rates });
    }
    let sum = |of: fn(&Part) -> f64| each.iter().map(of).sum();
    Ok(Ok(Parts { cold_seconds: sum(|part| part.cold_seconds), warm_seconds: sum(|part| part.warm_seconds), each }))
}
