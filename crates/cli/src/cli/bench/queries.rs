//! `bench queries`: queries of attention put into the line of a server's operations, without sockets, beside what the kernel alone does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::Slice;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, MapShape};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{Error, Result};
use trifuse_cli::bench::stored::Environment;
use trifuse_serve::operations::regions::{Part as Place, Region};
use trifuse_serve::operations::task::{Attend, Blocks, Done, Job, Source, Task};
use trifuse_serve::operations::{Operate, Operations, OperationsModel, Operator};
use trifuse_serve::queueing::admit::Limits;
use trifuse_serve::queueing::queues::Tenant;
use trifuse_serve::queueing::ticket::{Failure, Waiter};

use super::super::Outcome;
use super::super::interrupt::Interrupt;
use super::super::load::attention::{DTYPE, Options, Part, Sets, Shape};
use super::super::load::histogram::Histogram;
use super::super::output::{Output, Page, Report, Tone};
use super::super::values::device_name;

/// Queries of the launch that the kernel's own rate is told of.
const LAUNCH: u64 = 32;
/// Launches that are timed, and those before them that are not.
const LAUNCHES: u32 = 50;
const BEFORE: u32 = 5;
/// Everything waits for as long as it has to.
const LIMITS: Limits = Limits { max_wait: Duration::from_secs(3600), max_tokens: u64::MAX };
const TENANT: Tenant = Tenant { number: 0, share: 1 };

/// Arguments of `bench queries`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    shape: Options,
    /// Queries under way, each new one behind an answer; several counts run one after another
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,256", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: Vec<u32>,
    /// How long each count runs
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = super::super::load::args::positive)]
    seconds: f64,
    /// What tensors and queries are drawn from
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

/// What came of one count of queries under way.
#[derive(Debug, Serialize)]
struct Run {
    concurrency: u32,
    answered: u64,
    /// Answers whose checksum is not that of the set asked alone.
    wrong: u64,
    per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    most_us: f64,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Told {
    device: String,
    shape: Shape,
    seed: u64,
    seconds: f64,
    /// Queries a second that the kernel does where nothing else is done, in launches of 32.
    kernel_per_second: f64,
    variant: String,
    complete: bool,
    environment: Environment,
    runs: Vec<Run>,
}

/// Measures, and prints.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    let shape = args.shape.shape()?;
    let sets = Sets::new(shape, args.seed);
    let interrupt = Interrupt::listen()?;
    let device = device_name(choice)?;
    let (kernel_per_second, variant) = alone(choice.open_any()?, sets)?;
    let own = choice.clone();
    let regions = 4 * shape.sets * (shape.bytes() + shape.map_stride()) + (1 << 20);
    let model = OperationsModel { device: device.clone(), open: Box::new(move || open(&own)), region_bytes: regions };
    let (operations, thread) = Operations::alone(model, LIMITS)?;
    let resident = Resident::put(&operations, sets)?;
    let known = (0..shape.sets).map(|set| resident.ask(&operations, set)).collect::<Result<Vec<u64>>>()?;
    let mut runs = Vec::new();
    for &concurrency in &args.concurrency {
        if !interrupt.asked() {
            runs.push(resident.run(&operations, &known, concurrency, (args.seconds, args.seed), &interrupt)?);
        }
    }
    operations.close(true);
    drop((resident, operations));
    drop(thread.join());
    let complete = !interrupt.asked();
    let told = Told { device, shape, seed: args.seed, seconds: args.seconds, kernel_per_second, variant, complete, environment: Environment::here(""), runs };
    output.report(&told)?;
    Ok(match (complete, told.runs.iter().all(|run| run.wrong == 0)) {
        (false, _) => Outcome::Interrupted,
        (true, true) => Outcome::Right,
        (true, false) => Outcome::Wrong,
    })
}

/// Opens the device of the operations.
fn open(choice: &Choice) -> Result<Box<dyn Operate>> {
    Ok(Box::new(Operator::new(Arc::new(choice.open_any()?))?))
}

/// How many queries a second the kernel does in launches of tensors that lie one behind the other, and which it is.
fn alone(device: AnyDevice, sets: Sets) -> Result<(f64, String)> {
    let mut session = Session::new(Arc::new(device))?;
    let queries = LAUNCH.min(sets.shape.sets);
    let mut all = |part: Part| -> Result<Slice<AnyDevice>> {
        let bytes: Vec<u8> = (0..queries).flat_map(|set| sets.draw(set, part)).collect();
        session.upload(&bytes)
    };
    let (q, k, v) = (all(Part::Q)?, all(Part::K)?, all(Part::V)?);
    let (op, index) = match map(sets.shape, queries) {
        Some(shape) => {
            let bytes: Vec<u8> = (0..queries).flat_map(|set| sets.draw(set, Part::Map)).collect();
            (op(sets.shape).with_form(Form::BlockMap(shape)), AttentionIndex::BlockMap(session.index(&BlockMap::new(&bytes, shape)?)?))
        }
        None => (op(sets.shape), AttentionIndex::None),
    };
    let plan = session.plan(op.with_batch(queries))?;
    let o = session.alloc(queries * sets.shape.bytes())?;
    let args = AttentionArgs::new(q, k, v, o).with_index(index);
    (0..BEFORE).try_for_each(|_| session.run(&plan, &args))?;
    let begun = session.record_event()?;
    (0..LAUNCHES).try_for_each(|_| session.run(&plan, &args))?;
    let ended = session.record_event()?;
    let seconds = session.elapsed(&begun, &ended)?;
    let variant = plan.config().map_or_else(|| plan.variant().to_owned(), |config| format!("{}:{config}", plan.variant()));
    Ok((f64::from(LAUNCHES) * queries as f64 / seconds, variant))
}

fn op(shape: Shape) -> Attention {
    Attention::dense(DTYPE, 1, [shape.heads; 2], [shape.tokens; 2], shape.head_dim)
}

/// The shape of the maps of some sets together, where sets have maps.
fn map(shape: Shape, sets: u64) -> Option<MapShape> {
    let along = shape.along() as u32;
    (shape.blocks > 0).then(|| MapShape { block: shape.block as u32, q_blocks: along, kv_blocks: along, patterns: (shape.heads * sets) as u32 })
}

/// The sets in memory of the device.
struct Resident {
    sets: Sets,
    regions: Vec<(Part, Arc<Region>)>,
}

/// What came of a query that was put in: its set, when, and its answer.
type Answered = (u64, Instant, Result<Vec<Result<Done>>, Failure>);

impl Resident {
    fn put(operations: &Operations, sets: Sets) -> Result<Self> {
        let mut regions = Vec::new();
        for part in sets.parts() {
            let (_, stride) = sets.size(part);
            let mut bytes = Vec::with_capacity((sets.shape.sets * stride) as usize);
            for set in 0..sets.shape.sets {
                bytes.extend(sets.draw(set, part));
                bytes.resize(((set + 1) * stride) as usize, 0);
            }
            let full = |_| Error::invalid("regions", "room for all sets", part.name());
            let region = operations.regions.reserve(bytes.len() as u64).map_err(full)?;
            wait(operations, Task::new(Job::Fill(Arc::clone(&region), bytes.into())))?;
            regions.push((part, region));
        }
        Ok(Self { sets, regions })
    }

    fn source(&self, part: Part, set: u64) -> Result<Source> {
        let (bytes, stride) = self.sets.size(part);
        let place = self.regions.iter().find(|(own, _)| *own == part).and_then(|(_, region)| Place::of(region, set * stride, bytes));
        place.map(Source::Region).ok_or_else(|| Error::invalid("set", format!("below {}", self.sets.shape.sets), set))
    }

    /// The query of a set for its checksum alone.
    fn query(&self, set: u64) -> Result<Task> {
        let shape = self.sets.shape;
        let blocks = match map(shape, 1) {
            Some(map) => Blocks::Map(self.source(Part::Map, set)?, [map.block, map.q_blocks, map.kv_blocks, map.patterns]),
            None => Blocks::All,
        };
        let tensors = [self.source(Part::Q, set)?, self.source(Part::K, set)?, self.source(Part::V, set)?];
        let attend = Attend { op: op(shape), tensors, blocks, output: None, bytes: shape.bytes(), wants_bytes: false, wants_checksum: true };
        Ok(Task::new(Job::Attend(Box::new(attend))))
    }

    /// The checksum of a set that is asked alone.
    fn ask(&self, operations: &Operations, set: u64) -> Result<u64> {
        wait(operations, self.query(set)?)?.checksum.ok_or_else(|| Error::invalid("an answer", "a checksum", "none"))
    }

    fn enter(&self, operations: &Operations, set: u64, sender: &Sender<Answered>) -> Result<Waiter> {
        let (sender, began) = (sender.clone(), Instant::now());
        let answer = Box::new(move |result| drop(sender.send((set, began, result))));
        operations.enter(TENANT, self.query(set)?, None, answer).map_err(|closed| Error::device("a query", format!("{closed:?}")))
    }

    /// Keeps so many queries under way.
    fn run(&self, operations: &Operations, known: &[u64], concurrency: u32, (seconds, seed): (f64, u64), interrupt: &Interrupt) -> Result<Run> {
        let (sender, receiver): (Sender<Answered>, Receiver<Answered>) = channel();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = || random.random_range(0..self.sets.shape.sets);
        // Who asked must not go away before the answer: the last so many are still waited for.
        let mut waiting = (0..concurrency).map(|_| self.enter(operations, draw(), &sender)).collect::<Result<std::collections::VecDeque<Waiter>>>()?;
        let (mut answered, mut wrong, mut times, mut under_way) = (0, 0, Histogram::default(), u64::from(concurrency));
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        while under_way > 0 {
            let (set, began, result) = receiver.recv().map_err(|_| Error::device("a query", "no answer came"))?;
            under_way -= 1;
            let now = Instant::now();
            let done = result.map_err(|failure| Error::device("a query", format!("{failure:?}")))?.pop();
            let done = done.ok_or_else(|| Error::device("a query", "an empty answer"))??;
            if now < end {
                answered += 1;
                wrong += u64::from(done.checksum != known.get(set as usize).copied());
                times.add(now - began);
                if !interrupt.asked() {
                    waiting.push_back(self.enter(operations, draw(), &sender)?);
                    under_way += 1;
                }
            }
            // Answers come nearly in order, and four times as many are kept as are under way.
            while waiting.len() > 4 * concurrency as usize {
                waiting.pop_front();
            }
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        Ok(Run {
            concurrency,
            answered,
            wrong,
            per_second: answered as f64 / seconds,
            mean_us: micros(times.mean()),
            p50_us: micros(times.quantile(0.5)),
            p99_us: micros(times.quantile(0.99)),
            most_us: micros(times.most()),
        })
    }
}

/// Puts a task in and waits for it.
fn wait(operations: &Operations, task: Task) -> Result<Done> {
    let (sender, receiver) = channel();
    let closed = |closed| Error::device("a task", format!("{closed:?}"));
    let waiter = operations.enter(TENANT, task, None, Box::new(move |result| drop(sender.send(result)))).map_err(closed)?;
    let result = receiver.recv().map_err(|_| Error::device("a task", "no answer came"))?;
    drop(waiter);
    let mut done = result.map_err(|failure| Error::device("a task", format!("{failure:?}")))?;
    done.pop().ok_or_else(|| Error::device("a task", "an empty answer"))?
}

impl Report for Told {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let Shape { sets, tokens, heads, head_dim, blocks, block } = self.shape;
        page.line(page.tone(Tone::Strong, format!("queries of attention on {}", self.device)))?;
        page.line(format!("{sets} sets of {tokens} tokens, {heads} heads of {head_dim}, {blocks} blocks of {block} each; f16; seed {}", self.seed))?;
        page.line(format!("the kernel alone, launches of {LAUNCH}: {:.0} a second ({})", self.kernel_per_second, self.variant))?;
        let row = |run: &Run| {
            let times = [run.p50_us, run.p99_us, run.most_us].map(|time| format!("{time:.0} µs"));
            let share = format!("{:.2}", run.per_second / self.kernel_per_second);
            let counts = vec![run.concurrency.to_string(), format!("{:.0}", run.per_second), share];
            [counts, times.to_vec(), vec![run.wrong.to_string()]].concat()
        };
        page.table(&["under way", "a second", "of the kernel", "p50", "p99", "most", "wrong"], &[0, 1, 2, 3, 4, 5, 6], self.runs.iter().map(row))?;
        if self.complete { Ok(()) } else { page.line("note: interrupted") }
    }
}
