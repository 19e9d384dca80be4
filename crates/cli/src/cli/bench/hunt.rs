//! `bench hunt`: looks for shapes on which ours is slower than another, or than its cost foretells, until its time is over.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::session::Session;
use trifuse::shrink::profile::Profile;
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::hunt::{Against, Edge, Hunted, Ill, Ledger, Line, OFF, Options, Peer, run as hunt};
use trifuse_cli::bench::markdown::seconds;
use trifuse_cli::bench::ranks;
use trifuse_cli::bench::regret::{LOSS, draws};
use trifuse_cli::bench::shape::Suite;

use super::super::Outcome;
use super::super::interrupt::Interrupt;
use super::super::output::{Output, Page, Report, Tone};
use super::super::progress::Progress;
use super::super::values;
use super::measured::measured;

/// The longest budget and limit, in seconds: thirty days.
const LONGEST: f64 = 30.0 * 86_400.0;
/// Edges, and faults, that the page has at most.
const MOST: usize = 20;

/// Arguments of `bench hunt`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hold ours against PyTorch, by this interpreter, rather than against the fastest configuration of any variant
    #[arg(long, value_name = "PYTHON")]
    peers: Option<PathBuf>,
    /// The script that measures peers; it answers a line of JSON with one
    #[arg(long, value_name = "FILE", default_value = "benches/peers/hunt.py", requires = "peers")]
    peer_script: PathBuf,
    /// Seconds that a peer may take for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 180.0, requires = "peers", value_parser = duration)]
    peer_limit: f64,
    /// Seconds after which no shape begins
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = duration)]
    budget: f64,
    /// Measure no more shapes than this
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    shapes: Option<u64>,
    /// Add each measurement to this file, a line of JSON each, and go on where it ends
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// What shapes are drawn from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Whose operations are measured, by turns: linear, mlp, attention, sparse, adapters
    #[arg(long, value_name = "SUITE", value_delimiter = ',', default_value = "linear,mlp,attention", value_parser = suite)]
    suite: Vec<Suite>,
    /// Element type of every operand
    #[arg(long, default_value = "f16", value_name = "DTYPE", value_parser = values::dtype())]
    dtype: DType,
    /// First measure the products of the ranks in this file, which `trifuse profile` wrote
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

fn duration(text: &str) -> Result<f64> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST);
    seconds.ok_or_else(|| Error::invalid("seconds", format!("above 0 and at most {LONGEST}"), format!("{text:?}")))
}

fn suite(text: &str) -> Result<Suite> {
    let found = Suite::ALL.into_iter().find(|suite| suite.name() == text && draws(*suite));
    found.ok_or_else(|| Error::invalid("--suite", "linear, mlp, attention, sparse or adapters", format!("{text:?}")))
}

#[derive(Serialize)]
struct Told<'a> {
    ledger: Option<&'a PathBuf>,
    #[serde(flatten)]
    hunted: Hunted,
}

/// Hunts, and prints what was found.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    let first = match &args.profile {
        Some(path) => ranks::points(&Profile::open(path)?, args.dtype),
        None => Vec::new(),
    };
    let mut ledger = args.ledger.as_deref().map_or(Ok(Ledger::new()), Ledger::open)?;
    if ledger.cut {
        output.note("the last line of the ledger was cut off, and is dropped");
    }
    let interrupt = Interrupt::listen()?;
    let limit = Duration::from_secs_f64(args.peer_limit);
    let peer = args.peers.as_deref().map(|python| Peer::start(python, &args.peer_script, limit)).transpose()?;
    let options =
        Options { suites: args.suite.clone(), dtype: args.dtype, seed: args.seed, budget: Duration::from_secs_f64(args.budget), shapes: args.shapes, first };
    let hunted = measured(choice, Work { options, peer, ledger: &mut ledger, output, interrupt: &interrupt })?;
    if let Some(other) = hunted.peer.as_ref().filter(|who| who.device != hunted.device.name) {
        output.note(format!("{} measures on {}, and trifuse on {}", other.peer, other.device, hunted.device.name));
    }
    let told = Told { ledger: args.ledger.as_ref(), hunted };
    output.report(&told)?;
    // What is slower than it could be is no fault: that is what it is there to tell.
    Ok(match (told.hunted.complete, told.hunted.faults.is_empty()) {
        (false, _) => Outcome::Interrupted,
        (true, true) => Outcome::Right,
        (true, false) => Outcome::Wrong,
    })
}

/// The work on one backend.
struct Work<'a> {
    options: Options,
    peer: Option<Peer>,
    ledger: &'a mut Ledger,
    output: &'a Output,
    interrupt: &'a Interrupt,
}

impl Visit for Work<'_> {
    type Out = Hunted;

    fn visit<B: Backend>(self, backend: B) -> Result<Hunted> {
        let mut session = Session::new(Arc::new(backend))?;
        let progress = Progress::new(self.output, "hunt", 0);
        hunt(&mut session, &self.options, self.peer, self.ledger, (&|| self.interrupt.asked(), &mut |name| progress.now(name)))
    }
}

impl Report for Told<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let told = &self.hunted;
        let revision = told.environment.revision.get(..7).unwrap_or(&told.environment.revision);
        let suites: Vec<&str> = told.suites.iter().map(|suite| suite.name()).collect();
        page.line(page.tone(Tone::Strong, format!("hunt for {} on {}", suites.join(", "), told.backend)))?;
        page.line(format!("{}, {}; {}; revision {revision}; seed {}", told.device.name, told.device.driver, told.dtype, told.seed))?;
        let against = match (&told.peer, told.against) {
            (Some(who), _) => who.peer.as_str(),
            (None, Against::Peers) => "a peer that was not reached",
            (None, Against::Configs) => "the fastest configuration of any variant",
        };
        page.line(format!(
            "{} measured in {:.0} s, {} known, of which {} take more than {:.2} times as long as {against}",
            told.measured, told.seconds, told.known, told.lost, LOSS
        ))?;
        if told.of_others > 0 {
            page.line(format!("{} lines of the ledger are of another device, backend, type or peer, and are not compared", told.of_others))?;
        }
        let rows: Vec<Vec<String>> = told.worst.iter().map(|line| ratio(page, line)).collect();
        if !rows.is_empty() {
            page.table(&["worst ratios", "ours", "variant", "theirs", "peer", "ratio"], &[1, 3, 5], rows)?;
        }
        let rows: Vec<Vec<String>> = told.edges.iter().take(MOST).map(edge).collect();
        if !rows.is_empty() {
            page.table(&["edges of", "what", "times", "size", "has it", "has it not"], &[2, 4, 5], rows)?;
        }
        let rows: Vec<Vec<String>> = told.predictions.iter().map(prediction).collect();
        if !rows.is_empty() {
            page.table(&["worst predictions", "variant", "predicted", "measured", "times"], &[2, 3, 4], rows)?;
            page.line(format!("predicted: the operation's cost at the ceilings, and its launches; told where it is off by more than {OFF:.0} times"))?;
        }
        for fault in told.faults.iter().take(MOST) {
            page.line(page.tone(Tone::Bad, format!("fault: {}: {}", fault.name, fault.why)))?;
        }
        if told.edges.len().max(told.faults.len()) > MOST {
            page.line("note: and more edges or faults, which --json has")?;
        }
        if told.complete { Ok(()) } else { page.line("note: interrupted: the ledger has what was measured") }
    }
}

fn ratio(page: &Page, line: &Line) -> Vec<String> {
    let ratio = line.ratio.unwrap_or(f64::NAN);
    let told = page.tone(if ratio > LOSS { Tone::Warning } else { Tone::Good }, format!("{ratio:.3}"));
    let time = |time: Option<f64>| time.map_or_else(|| "–".into(), seconds);
    vec![line.name.clone(), time(line.ours), name(line.variant.as_deref()), time(line.theirs), name(line.peer.as_deref()), told]
}

fn name(of: Option<&str>) -> String {
    of.unwrap_or("–").to_owned()
}

fn edge(edge: &Edge) -> Vec<String> {
    let what = if edge.of == Ill::Loss { "loss" } else { "prediction" };
    vec![edge.name.clone(), what.into(), format!("{:.2}", edge.times), edge.axis.name().into(), edge.ill.to_string(), edge.well.to_string()]
}

fn prediction(line: &Line) -> Vec<String> {
    let time = |time: Option<f64>| time.map_or_else(|| "–".into(), seconds);
    let times = line.off().map_or_else(|| "–".into(), |off| format!("{off:.2}"));
    vec![line.name.clone(), name(line.variant.as_deref()), time(line.predicted), time(line.ours), times]
}
