//! Serving a mixed batch from a bundle, and holding the answer against the exact one and against uncompressed LoRA.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::engine::{AdapterId, Engine, EngineOptions, Target};
use trifuse::adapters::peft::LoraAdapter;
use trifuse::backends::AnyDevice;
use trifuse::device::{Caps, Kind, Slice};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::inputs::{Activations, Group, groups};
use super::reference::{Check, Totals};

/// Tokens of a batch.
pub const TOKENS: usize = 64;
/// Runs before the clock starts, runs that are timed at most, and the time after which no more are begun.
const WARM_UP: usize = 3;
const TIMED: usize = 20;
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// One bundle to serve from.
pub struct Job<'a> {
    pub bundle: PathBuf,
    /// The adapters as they were.
    pub originals: &'a [LoraAdapter],
    /// What the model really reads; Gaussian inputs where there is nothing.
    pub activations: Option<&'a Activations>,
}

/// How the batch went.
#[derive(Debug, Serialize)]
pub struct Served {
    pub tokens: usize,
    /// Tokens of the base model alone; their rows must not change.
    pub base_only_tokens: usize,
    pub projections: usize,
    pub dtype: DType,
    /// `gaussian` or `held-out activations`.
    pub inputs: &'static str,
    /// Against the exact answer of what the bundle decodes to, in float64: the greatest |error| over what is allowed
    /// there (right at 1 and below).
    pub error_over_allowed: f64,
    /// ‖error‖₂ / ‖answer‖₂ of the worst projection, and the most that is allowed.
    pub relative_l2: f64,
    pub relative_l2_allowed: f64,
    /// Whether all of it is right, in both mixes and for the rows of the base alone.
    pub right: bool,
    /// Against uncompressed LoRA: ‖difference‖₂ / ‖uncompressed‖₂ over every output of the batch.
    pub error_against_uncompressed: f64,
    /// ‖difference‖₂ / ‖uncompressed‖₂ over the tokens of each adapter.
    pub by_adapter: BTreeMap<String, f64>,
    /// Median of the timed runs: every projection, the whole batch.
    pub milliseconds: f64,
    pub runs: usize,
    /// What the time was measured on.
    pub device_kind: Kind,
}

/// What a device serves in.
pub fn dtype(caps: &Caps) -> DType {
    if caps.f16 && caps.kind != Kind::Cpu { DType::F16 } else { DType::F32 }
}

/// Serves every job on one device.
///
/// # Errors
/// A bundle that cannot be read; a device that fails.
pub fn serve(device: &Arc<AnyDevice>, jobs: &[Job<'_>]) -> Result<Vec<Served>> {
    let mut session = Session::new(Arc::clone(device))?;
    jobs.iter().map(|job| served(&mut session, job)).collect()
}

/// What the adapters of a group's projections add to.
fn targets<'a>(group: &'a Group, outputs: &[Slice<AnyDevice>]) -> Vec<Target<'a, AnyDevice>> {
    let target = |((path, d_out), y): (&'a (String, usize), &Slice<AnyDevice>)| Target { projection: path, y: y.clone(), y_stride: *d_out as u64 };
    group.projections.iter().zip(outputs).map(target).collect()
}

/// What lies on the device: inputs by group, outputs by projection.
struct Buffers {
    x: Vec<Slice<AnyDevice>>,
    y: Vec<Vec<Slice<AnyDevice>>>,
}

fn served(session: &mut Session<AnyDevice>, job: &Job<'_>) -> Result<Served> {
    let (kind, dtype) = (session.caps().kind, dtype(session.caps()));
    let bundle = Bundle::open(&job.bundle)?;
    let groups = groups(&bundle, job.activations, TOKENS, dtype);
    let mut check = Check::new(&bundle, job.originals, dtype)?;
    let mut engine = Engine::open(session, Box::new(bundle), EngineOptions::new(dtype))?;
    let adapters: Vec<(String, AdapterId)> = engine.adapters().map(|(name, id)| (name.to_owned(), id)).collect();

    let buffers = upload(session, &groups, dtype)?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut mix = || -> Vec<Option<usize>> { (0..TOKENS).map(|_| Some(rng.random_range(0..=adapters.len())).filter(|&at| at < adapters.len())).collect() };
    let ids = |mix: &[Option<usize>]| -> Vec<Option<AdapterId>> { mix.iter().map(|at| at.map(|at| adapters[at].1)).collect() };

    // The work is recorded once. Then the mix of adapters changes under it, as it does in a server.
    let first = mix();
    let mut batch = engine.batch(session, &ids(&first))?;
    let graph = session.capture(|session| {
        groups.iter().enumerate().try_for_each(|(at, group)| engine.apply(session, &batch, &buffers.x[at], group.d_in as u64, &targets(group, &buffers.y[at])))
    })?;
    let mut totals = Totals::default();
    let mut base_only_tokens = 0;
    for mix in [first, mix()] {
        engine.update(session, &mut batch, &ids(&mix))?;
        clear(session, &buffers)?;
        session.replay(&graph)?;
        base_only_tokens = mix.iter().filter(|at| at.is_none()).count();
        let names: Vec<Option<&str>> = mix.iter().map(|at| at.map(|at| adapters[at].0.as_str())).collect();
        for (group, outputs) in groups.iter().zip(&buffers.y) {
            for ((path, d_out), y) in group.projections.iter().zip(outputs) {
                let found = dtype.decode(&session.read(y)?);
                check.projection(path, group, *d_out, &names, &found, &mut totals)?;
            }
        }
    }
    let mut times = Vec::new();
    let started = Instant::now();
    for run in 0..WARM_UP + TIMED {
        let begun = Instant::now();
        session.replay(&graph)?;
        session.synchronize()?;
        if run >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        if !times.is_empty() && started.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(Served {
        tokens: TOKENS,
        base_only_tokens,
        projections: groups.iter().map(|group| group.projections.len()).sum(),
        dtype,
        inputs: if job.activations.is_some() { "held-out activations" } else { "gaussian" },
        error_over_allowed: totals.error_over_allowed,
        relative_l2: totals.relative_l2,
        relative_l2_allowed: totals.relative_l2_allowed,
        right: totals.right(),
        error_against_uncompressed: totals.against_uncompressed(),
        by_adapter: totals.by_adapter(),
        milliseconds: times.get(times.len() / 2).copied().unwrap_or(f64::NAN),
        runs: times.len(),
        device_kind: kind,
    })
}

fn upload(session: &mut Session<AnyDevice>, groups: &[Group], dtype: DType) -> Result<Buffers> {
    let x = groups.iter().map(|group| session.upload(&dtype.encode(&group.x))).collect::<Result<_>>()?;
    let sizes = |group: &Group| -> Vec<u64> { group.projections.iter().map(|(_, d_out)| (TOKENS * d_out) as u64 * dtype.size()).collect() };
    let y = groups.iter().map(|group| sizes(group).into_iter().map(|bytes| session.alloc(bytes)).collect()).collect::<Result<_>>()?;
    Ok(Buffers { x, y })
}

/// Zeros to add to: what comes out is the adapters' part alone.
fn clear(session: &mut Session<AnyDevice>, buffers: &Buffers) -> Result<()> {
    buffers.y.iter().flatten().try_for_each(|y| session.write(y, &vec![0; y.len() as usize]))
}
