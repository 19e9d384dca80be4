//! One shape: everything that can compute it, each answer held against that of the choice, and the fastest timed in turn.

use serde::Serialize;

use crate::bench::sample::{Placed, Probe, poison_all};
use crate::bench::statistics::Statistics;
use crate::bench::timing::{Caches, Flush, Schedule};
use crate::bench::work::{Made, Pose};
use trifuse::backend::{Backend, Kernel};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{Cost, Op};
use trifuse::session::{Graph, Plan, Session};

/// How much slower than the best a configuration may seem that is timed well, and how many of these there are at most.
const NEAR: f64 = 1.3;
const MOST: usize = 12;
/// How much slower than the best one is that is run twice and no more: a kernel for all shapes may take a hundred times as long.
const FAR: f64 = 3.0;
/// Runs of a first estimate.
const ESTIMATE: Schedule = Schedule { warmup: 2, iterations: 3, limit_seconds: 1.0 };
/// Turns in which those that are near are timed, each as often in one: what a clock does meanwhile is the same for all.
const TURNS: usize = 5;
const TURN: Schedule = Schedule { warmup: 2, iterations: 4, limit_seconds: 1.0 };
/// Parts of an output that are compared, and bytes of one at most.
const PARTS: u64 = 32;
const PART_BYTES: u64 = 16 << 10;

/// How a time was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Care {
    /// The median of many runs, in turn with the others that are near.
    Timed,
    /// The median of a few runs.
    Estimated,
    /// The shorter of two runs, the first ones, by what put them into the queue.
    Once,
}

/// What a configuration came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The variant, or the variant and its configuration, as `--variant` takes it.
    pub name: String,
    /// Seconds of one run, where it is right.
    pub seconds: Option<f64>,
    /// How these were found.
    pub care: Option<Care>,
    /// Why there are none, where there are none: a wrong answer, or what failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a shape came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Raced {
    /// What the backend chose.
    pub chosen: String,
    /// What was the fastest.
    pub best: String,
    /// Seconds of the choice.
    pub chosen_seconds: f64,
    /// Seconds of the fastest.
    pub best_seconds: f64,
    /// The first over the second: 1 where nothing is faster.
    pub regret: f64,
    /// All that can compute it.
    pub configs: Vec<Tried>,
}

/// Races a shape.
pub(in crate::bench) struct Race<'a, D: Backend> {
    pub flush: &'a Flush<D>,
    pub dtype: DType,
}

/// One that is right, ready to be run again.
struct Runner<O: Op, D: Kernel<O>> {
    /// Its place among those that were tried.
    place: usize,
    /// What the graph needs: its workspace.
    _plan: Plan<O, D>,
    graph: Graph<D>,
    estimate: f64,
    times: Vec<f64>,
}

impl<D: Backend> Pose<D> for Race<'_, D> {
    type Out = Raced;

    fn on<O: Op>(
        self,
        session: &mut Session<D>,
        op: O,
        _cost: Option<Cost>,
        operands: impl FnOnce(&mut Session<D>) -> Result<Placed<O, D>>,
    ) -> Result<Made<Raced>>
    where
        D: Kernel<O>,
    {
        let plan = match session.plan(op.clone()) {
            Err(Error::Unsupported { reason, .. }) => return Ok(Made::Unsupported(reason)),
            plan => plan?,
        };
        let chosen = named(plan.variant(), plan.config());
        // Where one configuration alone is able, its variant stands for it.
        let others = session.configs(&op).into_iter().filter(|name| *name != chosen && *name != plan.variant());
        let names: Vec<String> = std::iter::once(chosen.clone()).chain(others).collect();
        let placed = operands(session)?;
        let (mut tried, mut runners, mut expected, mut first) = (Vec::new(), Vec::<Runner<O, D>>::new(), None, Some(plan));
        for (place, name) in names.into_iter().enumerate() {
            let plan = first.take().map_or_else(|| session.plan_variant(op.clone(), Some(&name)), Ok);
            let best = runners.iter().map(|runner| runner.estimate).fold(f64::INFINITY, f64::min);
            let found = plan.and_then(|plan| self.estimate(session, plan, &placed, expected.as_ref(), best));
            let of = |seconds, care, why| Tried { name: name.clone(), seconds, care, why };
            tried.push(match found {
                Err(error) if place == 0 => return Err(error),
                Ok(Found::Wrong(why)) if place == 0 => return Ok(Made::Wrong(why)),
                Err(error) => of(None, None, Some(error.to_string())),
                Ok(Found::Wrong(why)) => of(None, None, Some(why)),
                Ok(Found::Far(seconds)) => of(Some(seconds), Some(Care::Once), None),
                Ok(Found::Near { plan, graph, estimate, answer }) => {
                    expected.get_or_insert(answer);
                    runners.push(Runner { place, _plan: plan, graph, estimate, times: Vec::new() });
                    of(Some(estimate), Some(Care::Estimated), None)
                }
            });
            // A plan may hold much memory.
            let best = runners.iter().map(|runner| runner.estimate).fold(f64::INFINITY, f64::min);
            runners.retain(|runner| runner.place == 0 || runner.estimate <= NEAR * best);
        }
        runners.sort_by(|a, b| (a.place > 0).cmp(&(b.place > 0)).then(a.estimate.total_cmp(&b.estimate)));
        runners.truncate(MOST);
        self.time(session, &mut runners)?;
        for runner in &runners {
            let median = Statistics::of(&runner.times).map(|times| times.median);
            (tried[runner.place].seconds, tried[runner.place].care) = (median, Some(Care::Timed));
        }
        outcome(chosen, tried).map(Made::Measured)
    }
}

/// What a first look at a plan came to.
enum Found<O: Op, D: Kernel<O>> {
    Near { plan: Plan<O, D>, graph: Graph<D>, estimate: f64, answer: Vec<f64> },
    Far(f64),
    Wrong(String),
}

impl<D: Backend> Race<'_, D> {
    /// Runs a plan, compares its answer with what is expected, and times it a little, unless it takes far longer than `best`.
    fn estimate<O: Op>(&self, session: &mut Session<D>, plan: Plan<O, D>, placed: &Placed<O, D>, expected: Option<&Vec<f64>>, best: f64) -> Result<Found<O, D>>
    where
        D: Kernel<O>,
    {
        let once = |session: &mut Session<D>| -> Result<f64> {
            let began = session.record_event()?;
            launch(session, &plan, placed)?;
            let ended = session.record_event()?;
            session.elapsed(&began, &ended)
        };
        poison_all(session, &placed.probes)?;
        let first = once(session)?;
        let answer = looked_at(session, self.dtype, &placed.probes)?;
        if let Some(why) = difference(self.dtype, &answer, expected.unwrap_or(&answer)) {
            return Ok(Found::Wrong(why));
        }
        let seconds = first.min(once(session)?);
        if seconds > FAR * best {
            return Ok(Found::Far(seconds));
        }
        let graph = session.capture(|session| launch(session, &plan, placed))?;
        let times = self.flush.time(session, ESTIMATE, Caches::Cold, &mut |session| session.replay(&graph))?;
        Ok(Found::Near { plan, graph, estimate: times.seconds.median, answer })
    }

    /// Times all in turn, forwards and backwards.
    fn time<O: Op>(&self, session: &mut Session<D>, runners: &mut [Runner<O, D>]) -> Result<()>
    where
        D: Kernel<O>,
    {
        for turn in 0..TURNS {
            let count = runners.len();
            for at in 0..count {
                let Some(Runner { graph, times, .. }) = runners.get_mut(if turn % 2 == 0 { at } else { count - 1 - at }) else { continue };
                times.extend(self.flush.time(session, TURN, Caches::Cold, &mut |session| session.replay(graph))?.samples);
            }
        }
        Ok(())
    }
}

/// A variant and its configuration, as `--variant` takes them.
pub(in crate::bench) fn named(variant: &str, config: Option<String>) -> String {
    config.map_or_else(|| variant.to_owned(), |config| format!("{variant}:{config}"))
}

/// Puts all launches of a plan into the queue, each behind what is copied before it.
fn launch<O: Op, D: Kernel<O>>(session: &mut Session<D>, plan: &Plan<O, D>, placed: &Placed<O, D>) -> Result<()> {
    placed.launches.iter().enumerate().try_for_each(|(number, args)| {
        placed.copies.get(number).map_or(Ok(()), |copies| copies(session))?;
        session.run(plan, args)
    })
}

/// Elements from all over the outputs.
fn looked_at<D: Device>(session: &mut Session<D>, dtype: DType, probes: &[Probe<D>]) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    for Probe { output, .. } in probes {
        let (size, bytes) = (dtype.size(), PART_BYTES.min(output.len()));
        // The last begins where it ends with the output.
        let starts: Vec<u64> = if output.len() <= PARTS * PART_BYTES {
            (0..output.len()).step_by(PART_BYTES as usize).collect()
        } else {
            (0..PARTS).map(|part| (output.len() - bytes) / size * part / (PARTS - 1) * size).collect()
        };
        for start in starts {
            let part: Option<Slice<D>> = output.sub_slice(start, bytes.min(output.len() - start));
            let part = part.ok_or_else(|| Error::invalid("output", "a part inside it", start))?;
            values.extend(dtype.decode(&session.read(&part)?));
        }
    }
    Ok(values)
}

/// What is wrong with an answer, where it is not that of another kernel up to rounding: sums in another order, in the element's type.
fn difference(dtype: DType, found: &[f64], expected: &[f64]) -> Option<String> {
    if let Some(place) = found.iter().position(|value| !value.is_finite()) {
        return Some(format!("element {place} of those that were looked at was not written, or is not finite"));
    }
    let allowed = match dtype {
        DType::F16 => 5e-3,
        DType::BF16 => 4e-2,
        DType::F32 => 1e-3,
    };
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let (off, of) = (norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected)), norm(&mut expected.iter().copied()));
    let right = found.len() == expected.len() && off <= allowed * of;
    (!right).then(|| format!("off by {:.2e} of what the choice computes, {allowed:e} at most", off / of))
}

/// The choice against the fastest of those that were timed well.
fn outcome(chosen: String, configs: Vec<Tried>) -> Result<Raced> {
    let timed = configs.iter().filter(|tried| tried.care == Some(Care::Timed));
    let best = timed.min_by(|a, b| a.seconds.unwrap_or(f64::INFINITY).total_cmp(&b.seconds.unwrap_or(f64::INFINITY)));
    let times = configs.first().and_then(|first| first.seconds).zip(best.and_then(|best| Some((best.name.clone(), best.seconds?))));
    let (chosen_seconds, (best, best_seconds)) = times.ok_or_else(|| Error::invalid("regret", "a time of the choice", "none"))?;
    Ok(Raced { chosen, best, chosen_seconds, best_seconds, regret: chosen_seconds / best_seconds, configs })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tried(name: &str, seconds: f64, care: Care) -> Tried {
        Tried { name: name.into(), seconds: Some(seconds), care: Some(care), why: None }
    }

    #[test]
    fn the_best_is_one_that_was_timed_well() {
        let all = vec![tried("a:x", 1.2, Care::Timed), tried("b", 1.0, Care::Timed), tried("c", 0.9, Care::Estimated)];
        let raced = outcome("a:x".into(), all.clone()).unwrap();
        assert_eq!((raced.best.as_str(), raced.chosen_seconds, raced.best_seconds, raced.regret), ("b", 1.2, 1.0, 1.2));
        assert_eq!(outcome("a:x".into(), all[..1].to_vec()).unwrap().regret, 1.0);
        assert!(outcome("a".into(), Vec::new()).is_err());
    }

    #[test]
    fn rounding_passes_and_what_was_not_written_does_not() {
        let right: Vec<f64> = (0..1000).map(|n| f64::from(n % 17) - 8.0).collect();
        let changed = |change: fn(usize, f64) -> f64| right.iter().enumerate().map(|(n, &value)| change(n, value)).collect::<Vec<_>>();
        assert_eq!(difference(DType::F16, &changed(|_, value| value * 1.0005), &right), None);
        assert!(difference(DType::F16, &changed(|n, value| if n < 20 { 0.0 } else { value }), &right).is_some());
        assert!(difference(DType::F16, &changed(|n, value| if n == 7 { f64::NAN } else { value }), &right).is_some());
        assert!(difference(DType::F16, &right[1..], &right).is_some());
    }
}
