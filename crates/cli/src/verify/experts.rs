//! Test 5: adapters as the experts of a mixture; wherever each expert lies on the device, the answer has the same bits.

use rayon::prelude::*;

use super::findings::Findings;
use super::samples::Samples;
use super::served::{deltas, encode_all, one_layer, times};
use trifuse::adapters::encode::EncodeOptions;
use trifuse::adapters::encoded::Population;
use trifuse::adapters::engine::{AdapterId, Engine, EngineOptions, Routing, Target};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;
use trifuse_testkit::tolerance::Tolerance;

const TOKENS: usize = 19;
const EXPERTS: usize = 4;
const TOP: usize = 2;
const DTYPE: DType = DType::F16;

pub fn findings<D: Backend>(session: &mut Session<D>, samples: &Samples) -> Result<Findings> {
    let mut adapters = one_layer(&samples.adapters);
    adapters.truncate(EXPERTS);
    let population = encode_all(&adapters, &EncodeOptions { rank: Some(8), ..EncodeOptions::default() })?;
    let names: Vec<String> = population.adapters.keys().cloned().collect();
    let mut found = Findings::default();
    let Some((path, shared)) = population.projections.iter().next() else { return Ok(found) };
    let mut draw = Draw::seeded("experts");
    let scores: Vec<f32> = draw.normal(DType::F32, (TOKENS * names.len()) as u64, 1.0).into_iter().map(|score| score as f32).collect();
    let [x, y] = [shared.d_in, shared.d_out].map(|d| draw.normal(DTYPE, (TOKENS * d) as u64, 1.0));

    let (mut answers, mut placed) = (Vec::new(), Vec::new());
    for order in permutations(names.len()) {
        let options = EngineOptions::new(DTYPE);
        let mut engine = Engine::open(session, Box::new(population.clone()), options)?;
        let experts = names.iter().map(|name| engine.adapter(name)).collect::<Result<Vec<_>>>()?;
        // The first to be used takes the first place.
        for &expert in &order {
            engine.batch(session, &[Some(experts[expert])])?;
        }
        placed.push(experts.iter().map(|&expert| engine.slots(expert)).collect::<Vec<_>>());
        answers.push(mixture(session, &mut engine, &experts, &scores, (path, shared.d_out), [&x, &y])?);
    }
    placed.sort();
    placed.dedup();
    found.at_least("different placements tried", placed.len() as f64, (1..=names.len()).product::<usize>() as f64);
    let different = answers.iter().filter(|answer| !answer.iter().zip(&answers[0]).all(|(a, b)| a.to_bits() == b.to_bits())).count();
    found.at_most("placements whose bits differ from the first's", different as f64, 0.0);

    let (reference, plain) = expected(&population, &names, path, &scores, [&x, &y])?;
    let metrics = Tolerance::new(DTYPE, &reference, &plain, 0.0).compare(&reference, &answers[0])?;
    found.at_most("greatest error over what is allowed", metrics.max_abs / metrics.tolerance.max_abs, 1.0);
    found.at_most("relative L2 error", metrics.relative_l2, 1e-3);
    Ok(found)
}

/// y after the mixture was added, in float64, and rounded after each choice as every backend does.
type Expected = (Vec<Option<f64>>, Vec<Option<f64>>);

fn expected(population: &Population, names: &[String], path: &str, scores: &[f32], [x, y]: [&[f64]; 2]) -> Result<Expected> {
    let deltas = deltas(population, path)?;
    let (d_in, d_out) = (x.len() / TOKENS, y.len() / TOKENS);
    let answers = (0..TOKENS).into_par_iter().flat_map(|token| {
        let own = &scores[token * names.len()..(token + 1) * names.len()];
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by(|&a, &b| own[b].total_cmp(&own[a]));
        let total: f64 = order[..TOP].iter().map(|&expert| f64::from(own[expert]).exp()).sum();
        let mut sums: Vec<[f64; 2]> = y[token * d_out..(token + 1) * d_out].iter().map(|&before| [before; 2]).collect();
        for &expert in &order[..TOP] {
            let gate = f64::from(own[expert]).exp() / total;
            let delta = times(&deltas[&names[expert]], &x[token * d_in..(token + 1) * d_in]);
            for (sum, value) in sums.iter_mut().zip(delta) {
                *sum = [sum[0] + gate * value, DTYPE.round(sum[1] + gate * value)];
            }
        }
        sums.into_iter().map(|[reference, plain]| (Some(reference), Some(plain))).collect::<Vec<_>>()
    });
    Ok(answers.unzip())
}

/// Every order of `0..count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |orders, next| {
        orders.iter().flat_map(|order: &Vec<usize>| (0..=order.len()).map(|at| [&order[..at], &[next], &order[at..]].concat()).collect::<Vec<_>>()).collect()
    })
}

/// y after the mixture was added, from a captured graph that was made with another routing.
fn mixture<D: Backend>(
    session: &mut Session<D>,
    engine: &mut Engine<D>,
    experts: &[AdapterId],
    scores: &[f32],
    (path, d_out): (&str, usize),
    [x, y]: [&[f64]; 2],
) -> Result<Vec<f64>> {
    let (input, output) = (session.upload(&DTYPE.encode(x))?, session.upload(&DTYPE.encode(y))?);
    let turned: Vec<f32> = scores.iter().rev().copied().collect();
    let mut mixture = engine.mixture(session, &Routing::top_k(experts, &turned, TOP)?)?;
    let targets = [Target { projection: path, y: output.clone(), y_stride: d_out as u64 }];
    let graph = session.capture(|session| engine.apply_mixture(session, &mixture, &input, (x.len() / TOKENS) as u64, &targets))?;
    engine.reroute(session, &mut mixture, &Routing::top_k(experts, scores, TOP)?)?;
    session.replay(&graph)?;
    Ok(DTYPE.decode(&session.read(&output)?))
}
