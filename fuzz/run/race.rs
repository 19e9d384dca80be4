//! The inputs of one subject, one after another.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rand::Rng as _;

use super::finding::{Fault, Finding, last_panic, quietly};
use super::memory;
use super::mutate::{Rng, one};
use super::options::Options;
use super::subjects::{Answer, Subject, rng};

/// What one input may take.
pub struct Limits {
    pub memory: usize,
    /// Time of the processor, of all threads.
    pub time: Duration,
}

pub const LIMITS: Limits = Limits { memory: 512 << 20, time: Duration::from_secs(5) };

/// An input that takes this long is told while it runs: it may never end.
const STUCK: Duration = Duration::from_secs(60);
/// Inputs of generators to begin with.
const SOUND: u64 = 16;
/// Inputs of a kind that are changed further, at most, and the longest of them.
const POOL: usize = 256;
const LONGEST: usize = 1 << 14;
/// Findings after which a subject is left.
const ENOUGH: usize = 10;
/// Inputs of a kind that `--keep` writes, at most, and the longest of them.
const KEPT: (usize, usize) = (4, 3 << 10);

/// What became of an input.
#[derive(Debug)]
pub struct Seen {
    pub answer: Answer,
    pub held: usize,
    pub time: Duration,
}

/// What became of all of them.
#[derive(Default)]
pub struct Tally {
    pub inputs: u64,
    pub taken: u64,
    /// Inputs by the sort of their answer.
    pub sorts: HashMap<String, u64>,
    pub held: usize,
    pub slowest: Duration,
    /// Findings with the number of their input.
    pub findings: Vec<(u64, Finding)>,
    seconds: f64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inputs, taken, sorts, held, slowest, findings, seconds } = self;
        write!(
            f,
            "{inputs} inputs in {seconds:.0} s, {taken} taken, {} sorts of answer, {} MiB at most, {:.2} s at most",
            sorts.len(),
            held >> 20,
            slowest.as_secs_f64()
        )?;
        if findings.is_empty() { Ok(()) } else { write!(f, ", {} FINDINGS", findings.len()) }
    }
}

/// Parses one input.
///
/// # Errors
/// A panic, or more memory or time than the limits allow.
pub fn check(subject: &Subject, input: &[u8], limits: &Limits) -> Result<Seen, Finding> {
    let (before, began, processor) = (memory::begin(), Instant::now(), processor_time());
    let parsed = quietly(|| catch_unwind(AssertUnwindSafe(|| (subject.parse)(input))));
    let (held, wall) = (memory::since(before), began.elapsed());
    // Other programs may have had the processor; a clock that ticks seldom is asked where the other says too much.
    let time = if wall > limits.time { processor_time().zip(processor).map_or(wall, |(now, then)| now.saturating_sub(then)) } else { wall };
    let fault = match parsed {
        Err(_) => Fault::Panic(last_panic()),
        Ok(_) if held > limits.memory => Fault::Memory(held),
        Ok(_) if time > limits.time => Fault::Time(time),
        Ok(answer) => return Ok(Seen { answer, held, time }),
    };
    Err(Finding { input: input.to_vec(), fault })
}

/// Time that the process has had of the processor, where the system tells it.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(10 * ticks))
}

/// Fuzzes a subject. The inputs are the same for the same seed.
pub fn run(subject: &Subject, options: &Options, limits: &Limits) -> Tally {
    let (running, began) = (Mutex::new((Instant::now(), Vec::new())), Instant::now());
    let (done, stop) = channel::<()>();
    std::thread::scope(|scope| {
        let running = &running;
        scope.spawn(move || {
            while stop.recv_timeout(STUCK / 8) == Err(RecvTimeoutError::Timeout) {
                let (since, input) = &*running.lock().unwrap();
                if since.elapsed() > STUCK {
                    let path = options.found.join(format!("{}-{}-stuck", subject.name, options.seed));
                    std::fs::create_dir_all(&options.found).and_then(|()| std::fs::write(&path, input)).unwrap();
                    println!("{}: an input does not end: --target {} --input {}", subject.name, subject.name, path.display());
                    std::process::exit(1);
                }
            }
        });
        let mut tally = Tally::default();
        let mut pool = Pool::first(subject, options.seed);
        while tally.inputs < options.count && began.elapsed() < options.seconds && tally.findings.len() < ENOUGH {
            let number = tally.inputs;
            let rng = &mut rng(options.seed, number);
            let input = pool.next(subject, rng, number);
            *running.lock().unwrap() = (Instant::now(), input.clone());
            tally.inputs += 1;
            match check(subject, &input, limits) {
                Err(finding) => tally.findings.push((number, finding)),
                Ok(seen) => {
                    tally.held = tally.held.max(seen.held);
                    tally.slowest = tally.slowest.max(seen.time);
                    tally.taken += u64::from(seen.answer.is_ok());
                    let count = tally.sorts.entry(sort(&seen.answer)).or_default();
                    *count += 1;
                    pool.add(rng, input, seen.answer.is_ok(), *count == 1);
                }
            }
        }
        drop(done);
        if let Some(folder) = &options.keep {
            pool.keep(&folder.join(subject.name)).unwrap();
        }
        tally.seconds = began.elapsed().as_secs_f64();
        tally
    })
}

/// The sort of an answer: what was expected, or else the last words, without numbers and what is quoted from the file.
fn sort(answer: &Answer) -> String {
    let Err(why) = answer else { return "taken".into() };
    let words = why.rsplit_once("expected").map_or(why.as_str(), |(_, rest)| rest.split("found").next().unwrap_or(rest));
    let own = words.split(['"', '\'', '`']).step_by(2).flat_map(str::chars).filter(|c| c.is_ascii_lowercase() || *c == ' ');
    let own: Vec<char> = own.collect();
    own[own.len().saturating_sub(60)..].iter().collect()
}

/// The inputs that are changed further.
struct Pool {
    /// Those that it began with, and some that were taken.
    taken: Vec<Vec<u8>>,
    /// Those that it began with.
    first: usize,
    /// One of each sort that was refused.
    refused: Vec<Vec<u8>>,
}

impl Pool {
    /// The inputs of `fuzz/kept`, and some of the generator's.
    fn first(subject: &Subject, seed: u64) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/kept").join(subject.name);
        let mut files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let mut taken: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
        taken.extend((0..SOUND).map(|number| (subject.sound)(&mut rng(!seed, number))));
        Self { first: taken.len(), taken, refused: Vec::new() }
    }

    /// The pool as it began, one by one, then changes of what is in it.
    fn next(&self, subject: &Subject, rng: &mut Rng, number: u64) -> Vec<u8> {
        if let Some(input) = self.taken[..self.first].get(number as usize) {
            return input.clone();
        }
        let from = if self.refused.is_empty() || rng.random_ratio(7, 8) { &self.taken } else { &self.refused };
        let (input, other) = (one(rng, from), one(rng, &self.taken));
        subject.next(rng, input, other)
    }

    /// Takes what gave an answer of a new sort, and now and then what was taken: changes add up.
    fn add(&mut self, rng: &mut Rng, input: Vec<u8>, taken: bool, new: bool) {
        let wanted = new || taken && rng.random_ratio(1, 16);
        let (pool, kept) = if taken { (&mut self.taken, self.first) } else { (&mut self.refused, 0) };
        if input.len() > LONGEST || !wanted {
        } else if pool.len() < kept + POOL {
            pool.push(input);
        } else {
            let at = rng.random_range(kept..pool.len());
            pool[at] = input;
        }
    }

    /// Writes the newest small ones of both kinds.
    fn keep(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for (kind, inputs) in [("taken", &self.taken[self.first..]), ("refused", &self.refused)] {
            let small = inputs.iter().rev().filter(|input| input.len() <= KEPT.1).take(KEPT.0);
            small.enumerate().try_for_each(|(number, input)| std::fs::write(folder.join(format!("{kind}-{number}")), input))?;
        }
        Ok(())
    }
}
