//! `load`: requests to a server at a rate of their own, timed from when each was due, and each answer checked.

mod address;
mod answers;
mod args;
mod arrivals;
mod histogram;
mod picture;
mod questions;
mod report;
mod run;
mod said;
mod server;
mod tally;
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
use questions::Questions;
use report::{Loaded, Machine, Run};
use run::Load;
use wire::Lost;

/// The longest file with a key, in bytes.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// Asks at each pace, and tells what came of it.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    for file in args.output.iter().chain(&args.picture) {
        check_file(file)?;
        check_apart(file, args.texts.iter().chain(&args.api_key_file))?;
    }
    let address = Address::parse(&args.url)?;
    let key = args.api_key_file.as_deref().map(key).transpose()?;
    let machine = Machine::here();
    let interrupt = Interrupt::listen()?;
    let addresses = address.resolve()?;
    let Some(models) = server::models(args, &address, &addresses, key.as_deref(), &interrupt)? else { return Ok(Outcome::Interrupted) };
    let questions = Questions::new(args, &address, key.as_deref(), models, &mut ChaCha8Rng::seed_from_u64(args.seed))?;
    let answers = args.check.then(Answers::default);
    let time = Duration::from_secs_f64;
    let load = Load {
        addresses: &addresses,
        questions: &questions,
        route: args.route,
        stream: args.stream,
        warmup: time(args.warmup),
        seconds: time(args.seconds),
        timeout: time(args.timeout),
        connections: args.connections,
        answers: answers.as_ref(),
        interrupt: &interrupt,
    };
    if !probe(&load, &questions)? {
        return Ok(Outcome::Interrupted);
    }
    let runs = measure(args, &load, output)?;
    let (same, compared) = answers.as_ref().filter(|_| args.route == Route::Embeddings).map_or((0, 0), |answers| answers.as_base(&questions.models));
    let loaded = Loaded {
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
        complete: !interrupt.asked(),
        environment: Environment::here(""),
        machine,
        runs,
    };
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
        true if same > 0 || loaded.runs.iter().any(Run::is_wrong) => Outcome::Wrong,
        true => Outcome::Right,
    })
}

/// The key that a file holds.
fn key(path: &Path) -> Result<String> {
    let text = String::from_utf8(read_file(path, MAX_KEY_BYTES)?).unwrap_or_default();
    let key = text.trim();
    let sound = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if sound { Ok(key.to_owned()) } else { Err(Error::input(path, "expected a key of letters, digits and marks on one line, found something else")) }
}

/// Asks each model once, so that a request that is not sound is told before anything is measured; false where the program is to end.
fn probe(load: &Load<'_>, questions: &Questions) -> Result<bool> {
    for question in questions.probes() {
        let name = &questions.models[question.model as usize].name;
        match load.probe(question) {
            // One that is busy, or that fails, is what is to be measured.
            Ok((200..=299 | 429 | 500..=599, _)) => {}
            Ok((status, words)) => return Err(Error::invalid(format!("a request to {name:?}"), "an answer", format!("{status}: {words}"))),
            Err(Lost::Interrupted) => return Ok(false),
            Err(lost) => return Err(Error::input(load.route.path(), format!("expected an answer of {name:?}, found none: {lost}"))),
        }
    }
    Ok(true)
}

fn measure(args: &Args, load: &Load<'_>, output: &Output) -> Result<Vec<Run>> {
    let rates = args.rate.iter().map(|rate| Pace::Rate(*rate));
    let paces: Vec<Pace> = rates.chain(args.concurrency.iter().map(|count| Pace::Concurrency(*count))).collect();
    let each = args.warmup + args.seconds;
    let progress = Progress::new(output, "asking", (each * paces.len() as f64).ceil() as u64);
    let mut runs = Vec::new();
    for (number, pace) in paces.into_iter().enumerate() {
        if load.interrupt.asked() {
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
