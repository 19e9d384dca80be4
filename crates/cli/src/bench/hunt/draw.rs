//! Which shapes are measured: those of models of today, odd ones, random ones, and the two beside a change of the choice.

use crate::bench::pool::Pool;
use crate::bench::regret::draw::{Limits, Random, point as random, work};
use crate::bench::regret::race::named;
use crate::bench::sample::Placed;
use crate::bench::shape::{Padding, Point, Shape, Suite};
use crate::bench::work::{Made, Pose, pose};
use trifuse::backend::{Backend, Kernel};
use trifuse::device::Kind;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{Cost, Op};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

use super::axes::Axis;

/// Shapes of one suite one after another: of a model, a random one, and both sides of a change.
const FORMS: u64 = 4;
/// Draws of one shape, at most, until one is within the limits.
const MOST_DRAWS: u32 = 1000;
/// Sizes to which a change of the choice is looked for, over that of the shape.
const TIMES: [u64; 3] = [2, 4, 8];
/// The share of a size to which a change is found.
const GRAIN: u64 = 32;
/// Rows of products, at most.
const MOST_ROWS: u64 = 8192;

/// What a model's layers have: columns of a token's state, heads, heads of keys, elements of a head, columns of the MLP.
const MODELS: [[u64; 5]; 12] = [
    [576, 9, 3, 64, 1536],       // SmolLM2-135M
    [896, 14, 2, 64, 4864],      // Qwen2.5-0.5B
    [2048, 32, 8, 64, 8192],     // Llama-3.2-1B
    [2880, 64, 8, 64, 2880],     // gpt-oss-20b, one expert
    [3584, 16, 8, 256, 14_336],  // Gemma-2-9B
    [3584, 28, 4, 128, 18_944],  // Qwen2.5-7B
    [4096, 32, 32, 128, 11_008], // Llama-2-7B
    [4096, 32, 8, 128, 12_288],  // Qwen3-8B
    [4096, 32, 8, 128, 14_336],  // Llama-3-8B, Mistral-7B
    [5120, 40, 10, 128, 17_920], // Phi-4
    [5120, 64, 8, 128, 25_600],  // Qwen3-32B
    [8192, 64, 8, 128, 28_672],  // Llama-3-70B
];

/// Shape `number` of those that `seed` gives for `suites` by turns.
///
/// # Errors
/// What the device reports while it plans.
pub fn point<D: Backend>(session: &mut Session<D>, suites: &[Suite], dtype: DType, seed: u64, number: u64) -> Result<Point> {
    let kind = session.caps().kind;
    let suite = suites.get((number / FORMS) as usize % suites.len().max(1)).copied().unwrap_or(Suite::Linear);
    let turn = number / FORMS;
    match number % FORMS {
        0 => Ok(of_a_model(suite, dtype, kind, seed, turn).unwrap_or_else(|| random(suite, dtype, kind, seed, 2 * turn + 1))),
        1 => Ok(random(suite, dtype, kind, seed, 2 * turn)),
        side => {
            let base = random(suite, dtype, kind, seed, 2 * turn + 1);
            let sides = beside_a_change(session, &base)?;
            Ok(sides.and_then(|sides| sides.into_iter().nth(usize::from(side == 3))).unwrap_or(base))
        }
    }
}

/// A shape of a model's layer; of products also factors of the ranks that compression leaves. Nothing for a suite that models do not have alone,
/// or where none is within the limits.
fn of_a_model(suite: Suite, dtype: DType, kind: Kind, seed: u64, number: u64) -> Option<Point> {
    let (mut draw, limits) = (Random(Draw::seeded(&format!("hunt {} {dtype} {seed} {number}", suite.name()))), Limits::of(kind));
    for _ in 0..MOST_DRAWS {
        let [hidden, heads, kv_heads, head_dim, intermediate] = draw.one(&MODELS);
        let (query, key) = (heads * head_dim, kv_heads * head_dim);
        let tokens = draw.log(1, MOST_ROWS);
        let shape = match suite {
            Suite::Linear => {
                let products = [[query + 2 * key, hidden], [hidden, query], [2 * intermediate, hidden], [hidden, intermediate], [intermediate, hidden]];
                let [mut d_out, mut d_in] = draw.one(&products);
                let least = d_out.min(d_in);
                let rank = draw.log(least / 8, least * 9 / 10);
                match draw.0.below(5) {
                    0 => d_out = rank,
                    1 => d_in = rank,
                    _ => {}
                }
                let padding = if d_in % 8 == 0 { Padding::None } else { Padding::Weights };
                Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers: 1 }
            }
            Suite::Mlp => Shape::FusedMlp { tokens, d_model: hidden, d_ff: intermediate, gated: true, layers: 1 },
            Suite::Attention => {
                let (batch, kv_len) = (draw.log(1, 64), draw.log(16, 2 * limits.length));
                let q_len = if draw.happens(50) { 1 } else { kv_len };
                Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal: q_len > 1, blocks: None, layers: 1 }
            }
            _ => return None,
        };
        if limits.hold(work(&shape, dtype)) {
            return Some(Point { suite, dtype, captured: true, shape });
        }
    }
    None
}

/// The last shape with the choice of `base` and the first with another, on the first axis where larger sizes have one.
fn beside_a_change<D: Backend>(session: &mut Session<D>, base: &Point) -> Result<Option<[Point; 2]>> {
    let limits = Limits::of(session.caps().kind);
    let Some(own) = chosen(session, base)? else { return Ok(None) };
    let at = |axis: Axis, size: u64| {
        let shape = axis.with(&base.shape, axis.like(&base.shape, size)).filter(|shape| limits.hold(work(shape, base.dtype)));
        shape.map(|shape| Point { shape, ..base.clone() })
    };
    for axis in [Axis::Tokens, Axis::Length, Axis::Batch] {
        let Some(size) = axis.of(&base.shape) else { continue };
        let (mut same, mut other) = (size, None);
        for times in TIMES {
            let Some(larger) = at(axis, size * times) else { break };
            match chosen(session, &larger)? {
                Some(choice) if choice != own => {
                    other = Some(size * times);
                    break;
                }
                Some(_) => same = size * times,
                None => break,
            }
        }
        let Some(mut other) = other else { continue };
        while other - same > (same / GRAIN).max(axis.unit(&base.shape)) {
            let middle = u64::midpoint(same, other);
            let Some(point) = at(axis, middle) else { break };
            if chosen(session, &point)?.as_ref() == Some(&own) { same = middle } else { other = middle }
        }
        if let (Some(same), Some(other)) = (at(axis, same), at(axis, other)) {
            return Ok(Some([same, other]));
        }
    }
    Ok(None)
}

/// The variant and configuration that a shape is given; nothing where there is none.
fn chosen<D: Backend>(session: &mut Session<D>, point: &Point) -> Result<Option<String>> {
    match pose(session, &mut Pool::sharing(), point, Chosen) {
        Ok(Made::Measured(name)) => Ok(Some(name)),
        Ok(_) | Err(Error::OutOfMemory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Plans, and runs nothing.
struct Chosen;

impl<D: Backend> Pose<D> for Chosen {
    type Out = String;

    fn on<O: Op>(
        self,
        session: &mut Session<D>,
        op: O,
        _cost: Option<Cost>,
        _operands: impl FnOnce(&mut Session<D>) -> Result<Placed<O, D>>,
    ) -> Result<Made<String>>
    where
        D: Kernel<O>,
    {
        match session.plan(op) {
            Err(Error::Unsupported { reason, .. }) => Ok(Made::Unsupported(reason)),
            plan => plan.map(|plan| Made::Measured(named(plan.variant(), plan.config()))),
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open;

    const SUITES: [Suite; 5] = [Suite::Linear, Suite::Mlp, Suite::Attention, Suite::Sparse, Suite::Adapters];

    #[test]
    fn a_seed_gives_the_same_shapes_of_every_suite_within_the_limits() {
        let mut session = Session::new(std::sync::Arc::new(Cpu::open(0).unwrap())).unwrap();
        let mut drawn = |seed| (0..40).map(|number| point(&mut session, &SUITES, DType::F32, seed, number).unwrap()).collect::<Vec<_>>();
        let (first, again, other) = (drawn(1), drawn(1), drawn(2));
        assert!(first == again && first != other);
        assert!(SUITES.iter().all(|suite| first.iter().any(|point| point.suite == *suite)));
        let limits = Limits::of(Kind::Cpu);
        assert!(first.iter().all(|point| limits.hold(work(&point.shape, point.dtype))));
    }

    #[test]
    fn models_and_the_ranks_of_their_factors_are_drawn() {
        let drawn: Vec<Point> = (0..200).filter_map(|number| of_a_model(Suite::Linear, DType::F16, Kind::Discrete, 4, number)).collect();
        let has = |form: fn(&Shape) -> bool| drawn.iter().any(|point| form(&point.shape));
        assert!(has(|shape| matches!(shape, Shape::Linear { d_out: 6144, d_in: 4096, .. })));
        assert!(has(|shape| matches!(shape, Shape::Linear { d_in, padding: Padding::Weights, .. } if d_in % 8 != 0)));
        assert!(has(|shape| matches!(shape, Shape::Linear { tokens: 1..=16, .. })) && has(|shape| matches!(shape, Shape::Linear { tokens: 1024.., .. })));
        for (suite, comes) in [(Suite::Mlp, true), (Suite::Attention, true), (Suite::Sparse, false)] {
            assert_eq!(of_a_model(suite, DType::F16, Kind::Discrete, 4, 0).is_some(), comes, "{suite:?}");
        }
    }
}
