//! `load`: requests to a server at a rate of their own, timed from when each was due, and each answer checked.

mod address;
mod answers;
pub(super) mod args;
mod arrivals;
pub(super) mod attention;
mod caller;
mod cpu;
pub(super) mod histogram;
mod picture;
mod questions;
mod report;
mod run;
mod said;
mod server;
mod tally;
mod unread;
mod wire;

use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use trifuse::adapters::whole::{check_apart, check_file, write_file};
use trifuse::read::read_file;
use trifuse::{Error, Result};
use trifuse_cli::bench::stored::Environment;

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::Output;
use super::progress::Progress;
use address::Address;
use answers::Answers;
pub use args::Args;
use args::Route;
use arrivals::Pace;
use attention::{Proven, Resident, Sets};
use caller::{Caller, Stop};
use questions::{Question, Questions};
use report::{Loaded, Machine, Run};
use run::Load;
use wire::Lost;

/// The longest file with a key, in bytes.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// Asks at each pace, and tells what came of it.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    match loaded(args, output) {
        Err(Stop::Interrupted) => Ok(Outcome::Interrupted),
        Err(Stop::Failed(error)) => Err(error),
        Ok(loaded) => {
            if let Some(path) = &args.picture {
                match picture::picture(&loaded)? {
                    Some(text) => write_file(path, |out| out.write_all(text.as_bytes()))?,
                    None => output.note("nothing to draw: nothing was answered"),
                }
            }
            if let Some(path) = &args.output {
                output.file(path, &loaded)?;
            }
            output.report(&loaded)?;
            Ok(match loaded.complete {
                false => Outcome::Interrupted,
                true if loaded.is_wrong() => Outcome::Wrong,
                true => Outcome::Right,
            })
        }
    }
}

/// What comes of it. The regions of the server that it made are gone then, whatever comes.
fn loaded(args: &Args, output: &Output) -> Result<Loaded, Stop> {
    for file in args.output.iter().chain(&args.picture) {
        check_file(file)?;
        check_apart(file, args.texts.iter().chain(&args.api_key_file))?;
    }
    questions::check(args)?;
    let sets = if args.route == Route::Attention { Some(Sets::new(args.attention.shape()?, args.seed)) } else { None };
    let address = Address::parse(&args.url)?;
    let key = args.api_key_file.as_deref().map(key).transpose()?;
    let machine = Machine::here();
    let interrupt = Interrupt::listen()?;
    let addresses = address.resolve()?;
    let caller = Caller { address: &address, addresses: &addresses, key: key.as_deref(), interrupt: &interrupt };
    let mut resident = None;
    let questions = match sets {
        None => Questions::new(args, &caller, server::models(args, &caller)?, &mut ChaCha8Rng::seed_from_u64(args.seed))?,
        Some(sets) => {
            let models = server::operation(&caller)?;
            let progress = Progress::new(output, "sending tensors", sets.shape.sets * sets.parts().count() as u64);
            let resident = resident.insert(Resident::new(&caller, sets));
            resident.put(&|| progress.step())?;
            Questions::of_sets(&caller, models, resident.queries())
        }
    };
    let answers = args.check.then(Answers::default);
    let time = Duration::from_secs_f64;
    let load = Load {
        caller: &caller,
        questions: &questions,
        route: args.route,
        stream: args.stream,
        warmup: time(args.warmup),
        seconds: time(args.seconds),
        timeout: time(args.timeout),
        connections: args.connections,
        answers: answers.as_ref(),
    };
    probe(&load, &questions)?;
    let proven = match (&mut resident, &answers) {
        (Some(resident), Some(answers)) => Some(prove(args, resident, answers, &load)?),
        _ => None,
    };
    // Of a server whose outputs are wrong nothing is measured.
    let is_right = proven.as_ref().is_none_or(|proven: &Proven| proven.wrong.is_empty());
    let runs = if is_right { measure(args, &load, output)? } else { Vec::new() };
    let (same, compared) = answers.as_ref().filter(|_| args.route == Route::Embeddings).map_or((0, 0), |answers| answers.as_base(&questions.models));
    Ok(Loaded {
        url: args.url.clone(),
        route: args.route,
        stream: args.stream,
        models: questions.models.iter().map(|model| model.name.clone()).collect(),
        seed: args.seed,
        inputs: args.inputs,
        seconds: args.seconds,
        warmup: args.warmup,
        checked: args.check,
        compared_with_base: compared,
        answered_as_base: same,
        tensors: sets.map(|sets| sets.shape),
        proven,
        complete: !interrupt.asked(),
        environment: Environment::here(""),
        machine,
        runs,
    })
}

/// The key that a file holds.
fn key(path: &Path) -> Result<String> {
    let text = String::from_utf8(read_file(path, MAX_KEY_BYTES)?).unwrap_or_default();
    let key = text.trim();
    let sound = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if sound { Ok(key.to_owned()) } else { Err(Error::input(path, "expected a key of letters, digits and marks on one line, found something else")) }
}

/// Asks each model once, so that a request that is not sound is told before anything is measured. With a check each query of attention is
/// asked alone: all answers under load are compared with these.
fn probe(load: &Load<'_>, questions: &Questions) -> Result<(), Stop> {
    let ask = |question: Question| {
        let name = &questions.models[question.model as usize].name;
        match load.probe(question) {
            Ok(answer) => Ok(answer),
            Err(Lost::Interrupted) => Err(Stop::Interrupted),
            Err(lost) => Err(Error::input(load.route.path(), format!("expected an answer of {name:?}, found none: {lost}")).into()),
        }
    };
    let refused = |question: Question, status: u16, body: &[u8]| {
        let name = &questions.models[question.model as usize].name;
        Stop::from(Error::invalid(format!("a request to {name:?}"), "an answer", format!("{status}: {}", said::fault(body))))
    };
    if let (Route::Attention, Some(answers)) = (load.route, load.answers) {
        for question in questions.all_texts() {
            let (status, body) = ask(question)?;
            let sum = said::checksum(&body).filter(|_| (200..=299).contains(&status)).ok_or_else(|| refused(question, status, &body))?;
            answers.agrees(question, &sum.to_le_bytes());
        }
        return Ok(());
    }
    for question in questions.probes() {
        let (status, body) = ask(question)?;
        // One that is busy, or that fails, is what is to be measured.
        if !matches!(status, 200..=299 | 429 | 500..=599) {
            return Err(refused(question, status, &body));
        }
    }
    Ok(())
}

/// Compares some outputs of attention with float64, and their checksums with those that came first.
fn prove(args: &Args, resident: &mut Resident<'_>, answers: &Answers, load: &Load<'_>) -> Result<Proven, Stop> {
    let first = |set: u64, body: &[u8]| {
        let sum = said::checksum(body)?;
        answers.agrees(Question { text: set as u32, model: 0 }, &sum.to_le_bytes()).then_some(sum)
    };
    attention::prove(resident, args.seed, load.timeout, &first)
}

fn measure(args: &Args, load: &Load<'_>, output: &Output) -> Result<Vec<Run>> {
    let rates = args.rate.iter().map(|rate| Pace::Rate(*rate));
    let paces: Vec<Pace> = rates.chain(args.concurrency.iter().map(|count| Pace::Concurrency(*count))).collect();
    let each = args.warmup + args.seconds;
    let progress = Progress::new(output, "asking", (each * paces.len() as f64).ceil() as u64);
    let mut runs = Vec::new();
    for (number, pace) in paces.into_iter().enumerate() {
        if load.caller.interrupt.asked() {
            break;
        }
        // Another rate has other arrivals.
        let measured = load.run(pace, args.seed.wrapping_add(number as u64), &|| progress.step())?;
        let run = Run::new(pace, args.route, measured);
        progress.now(format!("{}: p99 {:.1} ms", run.name(), run.latency.p99 * 1e3));
        runs.push(run);
    }
    Ok(runs)
}
