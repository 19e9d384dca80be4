//! Where the time of a step goes: each of its launches timed by itself, beside what the device can do.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use trifuse::backends::AnyDevice;
use trifuse::device::{Caps, Clocks, Device};
use trifuse::llm::engine::{Engine, Output, TimedStep};
use trifuse::llm::schedule::Finish;
use trifuse::session::Launched;
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::ceiling::peak_flops;

use super::load::{Load, submit};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Page;

/// Launches of a step that the page tells of: the slowest.
const TOLD: usize = 3;

/// A step whose launches were timed.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub model: String,
    /// Requests that ran at once, and the adapters that they had in turn.
    pub batch: u32,
    pub adapters: u32,
    /// What the step was: `prefill` or `decode`.
    pub step: &'static str,
    /// Tokens of the step, and the requests that they belong to.
    pub rows: usize,
    pub sequences: usize,
    /// Microseconds of all its launches together, replayed from one graph.
    pub us: f64,
    /// Whether decode steps of this size replay a graph.
    pub graph: bool,
    /// Microseconds of its launches, each by itself, added up.
    pub launches_us: f64,
    /// The clock rates behind it, where the driver tells.
    pub clocks: Option<Clocks>,
}

/// Launches of a step that are alike: of one operation, of one size, by one variant, in all of its layers.
#[derive(Clone, Debug, Serialize)]
pub struct Launch {
    pub model: String,
    pub batch: u32,
    pub adapters: u32,
    pub step: &'static str,
    /// What they are for, such as `gate_up`.
    pub role: &'static str,
    pub operation: &'static str,
    /// Rows of the result, its columns, and the inputs that each element is made of.
    pub m: u64,
    pub n: u64,
    pub k: u64,
    /// The variant, and behind a colon its configuration where it has several.
    pub variant: String,
    /// How many they are.
    pub count: usize,
    /// Microseconds of one, in the mean.
    pub us: f64,
    /// Their part of the time of all launches of the step.
    pub share: f64,
    /// What one moves and executes, by the sizes of its operands.
    pub bytes: f64,
    pub flops: f64,
    pub bytes_per_second: f64,
    pub flops_per_second: f64,
    /// The parts of what the device's memory moves and its matrix units execute at the most, where that is known.
    pub share_of_bandwidth: Option<f64>,
    pub share_of_peak: Option<f64>,
}

/// What the device can do at the most.
struct Peaks {
    bytes_per_second: Option<f64>,
    flops_per_second: Option<f64>,
}

/// The steps that were timed, and their launches, of each the slowest first.
#[derive(Default)]
pub struct Timed {
    pub steps: Vec<Step>,
    pub launches: Vec<Launch>,
}

impl Timed {
    /// Times the launches of a step in which each of a batch's requests gets a token, and where `prefill` those of the first that reads their prompts.
    ///
    /// # Errors
    /// A device that fails; a request that does.
    pub fn measure(
        &mut self,
        (name, device, engine): (&str, &Arc<AnyDevice>, &mut Engine<AnyDevice>),
        load: &Load,
        (batch, adapters): (u32, u32),
        (salt, prefill): (u64, bool),
        interrupt: &Interrupt,
    ) -> Result<()> {
        let dtype = engine.model().dtype();
        let mut add = |step: &'static str, timed: TimedStep| self.add((name, step), (batch, adapters), &timed, (device.caps(), device.clocks(), dtype));
        let requests = submit(engine, load, (batch, adapters), salt)?;
        if prefill {
            engine.time_next(load.launches);
        }
        let (mut begun, mut asked, mut outputs) = (HashSet::new(), false, Vec::new());
        while !engine.is_idle() && !interrupt.asked() {
            // From here on a step that is launched has a row of each request.
            if begun.len() == requests.len() && !asked {
                engine.time_next(load.launches);
                asked = true;
            }
            engine.step(0, &mut outputs)?;
            for output in outputs.drain(..) {
                match output {
                    Output::Token { request, .. } => drop(begun.insert(request)),
                    Output::Ended { error: Some(error), .. } => return Err(Error::invalid("request", "an answer", error)),
                    Output::Ended { .. } | Output::Prompt { .. } => {}
                }
            }
            if let Some(timed) = engine.take_timed() {
                add(if asked { "decode" } else { "prefill" }, timed);
                if asked {
                    break;
                }
            }
        }
        for request in requests {
            engine.finish(request, Finish::Cancelled)?;
        }
        while !engine.is_idle() {
            engine.step(0, &mut outputs)?;
        }
        Ok(())
    }

    fn add(&mut self, (model, step): (&str, &'static str), (batch, adapters): (u32, u32), timed: &TimedStep, of: (&Caps, Option<Clocks>, DType)) {
        let (caps, clocks, dtype) = of;
        let peaks = Peaks { bytes_per_second: caps.memory_bytes_per_second.map(|bytes| bytes as f64), flops_per_second: peak_flops(caps, dtype) };
        let all: f64 = timed.launches.iter().map(|launch| launch.seconds).sum();
        self.steps.push(Step {
            model: model.to_owned(),
            batch,
            adapters,
            step,
            rows: timed.rows,
            sequences: timed.sequences,
            us: 1e6 * timed.seconds,
            graph: timed.graph,
            launches_us: 1e6 * all,
            clocks,
        });
        let mut alike: BTreeMap<_, Vec<&Launched>> = BTreeMap::new();
        for launch in &timed.launches {
            alike.entry((launch.role, launch.operation, launch.sizes, launch.variant, launch.config.as_deref())).or_default().push(launch);
        }
        let mut launches: Vec<Launch> = Vec::new();
        for ((role, operation, [m, n, k], variant, config), some) in alike {
            let (count, seconds) = (some.len(), some.iter().map(|launch| launch.seconds).sum::<f64>());
            let one = seconds / count as f64;
            let cost = some.first().map(|launch| launch.cost).unwrap_or_default();
            let (bytes_per_second, flops_per_second) = (cost.bytes / one, cost.executed_flops / one);
            launches.push(Launch {
                model: model.to_owned(),
                batch,
                adapters,
                step,
                role,
                operation,
                m,
                n,
                k,
                variant: config.map_or_else(|| variant.to_owned(), |config| format!("{variant}:{config}")),
                count,
                us: 1e6 * one,
                share: seconds / all,
                bytes: cost.bytes,
                flops: cost.executed_flops,
                bytes_per_second,
                flops_per_second,
                share_of_bandwidth: peaks.bytes_per_second.map(|peak| bytes_per_second / peak),
                share_of_peak: peaks.flops_per_second.map(|peak| flops_per_second / peak),
            });
        }
        launches.sort_by(|a, b| b.share.total_cmp(&a.share));
        self.launches.extend(launches);
    }
}

/// The slowest launches of each step.
pub fn page(steps: &[Step], launches: &[Launch], page: &mut Page) -> fmt::Result {
    let mut rows = Vec::new();
    for step in steps {
        let own = |launch: &&Launch| (&launch.model, launch.batch, launch.adapters, launch.step) == (&step.model, step.batch, step.adapters, step.step);
        for launch in launches.iter().filter(own).take(TOLD) {
            let share = |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share));
            let what = [format!("{} of {}", step.step, step.rows), step.adapters.to_string(), launch.role.to_owned()];
            let sizes = [format!("{} x {} x {}", launch.m, launch.n, launch.k), launch.variant.clone(), launch.count.to_string()];
            let times = [format!("{:.1}", launch.us), share(Some(launch.share)), share(launch.share_of_bandwidth), share(launch.share_of_peak)];
            rows.push(what.into_iter().chain(sizes).chain(times).collect());
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let head = ["step", "adapters", "launch", "m x n x k", "variant", "times", "us", "of the step", "bandwidth", "peak"];
    page.table(&head, &[1, 5, 6, 7, 8, 9], rows)?;
    page.line("the slowest launches of each step, each by itself; --json has all")
}
