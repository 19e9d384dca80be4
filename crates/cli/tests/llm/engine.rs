//! The engine: many requests at once against each alone, bit by bit, however they come, are cut, cached or preempted; adapters, ends and faults.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use half::f16;
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trifuse::DType;
use trifuse::adapters::certificate::{Certificate, Rung};
use trifuse::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Population, SharedProjection};
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request, Service};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::{Finish, Finished};
use trifuse::llm::step::RequestId;
use trifuse::llm::{Config, Dense, Files, Model, Ranks};

use super::support::{Changed, Test, on_device};
use super::tiny::{Kind, VOCABULARY, kinds};

/// A request, and the step before which it comes.
pub type Arrival = (usize, Request);

/// What became of a request: its tokens with the bits of their log-probabilities, and its end.
#[derive(Clone, Debug)]
pub struct Answer {
    pub tokens: Vec<(u32, u64)>,
    pub finished: Finished,
    pub error: Option<String>,
}

impl Answer {
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.0).collect()
    }
}

/// A tiny model in a folder of its own.
pub struct Tiny {
    pub files: Files,
    _folder: tempfile::TempDir,
}

impl Tiny {
    /// A model in a folder that lives as long.
    pub fn new(files: Files, folder: tempfile::TempDir) -> Self {
        Self { files, _folder: folder }
    }
}

pub fn tiny(number: usize) -> Tiny {
    tiny_of(&kinds()[number])
}

pub fn tiny_of(kind: &Kind) -> Tiny {
    let folder = tempfile::tempdir().unwrap();
    kind.write(folder.path());
    Tiny { files: Files::open(folder.path()).unwrap(), _folder: folder }
}

/// Options under which nothing is short: pages for all, a budget for every prompt.
pub fn roomy() -> EngineOptions {
    EngineOptions::default().with_page(8).with_cache_bytes(64 << 20).with_seats(32).with_budget(512).with_invariant(true)
}

/// Adapters that are drawn from a seed: `low` of rank 3 on all projections, `high` of rank 8 on q and v, `other` as `low` with other numbers.
pub fn adapters(config: &Config) -> Population {
    let mut random = ChaCha8Rng::seed_from_u64(77);
    let mut population = Population { projections: BTreeMap::new(), adapters: BTreeMap::new() };
    for (name, rank, few) in [("high", 8, true), ("low", 3, false), ("other", 3, false)] {
        let mut projections = BTreeMap::new();
        for (path, [d_out, d_in]) in (0..config.layers).flat_map(|layer| config.projections(layer)) {
            if few && !(path.ends_with("q_proj") || path.ends_with("v_proj")) {
                continue;
            }
            let (d_in, d_out) = (d_in as usize, d_out as usize);
            let mut factor = |rows: usize| {
                let values = (0..rows * rank).map(|_| f16::from_f32(0.3 * (random.random::<f32>() - 0.5))).collect();
                EncodedFactor::Plain(Matrix::new(rows, rank, values).unwrap())
            };
            let (input, output) = (factor(d_in), factor(d_out));
            population.projections.entry(path.clone()).or_insert_with(|| SharedProjection { d_in, d_out, input_bases: Vec::new(), output_bases: Vec::new() });
            projections.insert(path, EncodedProjection { input, core: None, output, scaling: 2.0, certificate: exact(rank) });
        }
        population.adapters.insert(name.into(), EncodedAdapter { config: serde_json::json!({"r": rank}), projections });
    }
    population
}

/// The certificate of a factor as it was trained.
fn exact(rank: usize) -> Certificate {
    let (bytes, bytes_before) = (0, 0);
    let [basis_energy, cos_factor, cos_delta] = [1.0; 3];
    Certificate {
        rung: Rung::Plain,
        rank,
        basis_energy,
        cos_factor,
        cos_delta,
        output_error_gaussian: 0.0,
        output_error_held_out: None,
        calibrated: false,
        bits_per_element: 16.0,
        bytes,
        bytes_before,
    }
}

/// `W + scaling · output · inputᵀ` of an adapter.
pub fn merge(population: &Population, name: &str, tensor: &str, values: &mut [f32]) {
    let path = tensor.trim_end_matches(".weight");
    let Some(projection) = population.adapters[name].projections.get(path) else { return };
    let (EncodedFactor::Plain(input), EncodedFactor::Plain(output)) = (&projection.input, &projection.output) else { panic!("a plain one") };
    let (d_in, rank) = (input.rows, input.cols);
    for (at, value) in values.iter_mut().enumerate() {
        let (row, column) = (at / d_in, at % d_in);
        let delta: f64 = (0..rank).map(|r| f64::from(output.at(row, r)) * f64::from(input.at(column, r))).sum();
        *value = (f64::from(*value) + f64::from(projection.scaling) * delta) as f32;
    }
}

pub fn engine<D: Backend>(device: &Arc<D>, tiny: &Tiny, options: EngineOptions, adapted: bool) -> Engine<D> {
    engine_in(DType::F32, device, tiny, options, adapted)
}

fn engine_in<D: Backend>(dtype: DType, device: &Arc<D>, tiny: &Tiny, options: EngineOptions, adapted: bool) -> Engine<D> {
    let model = Model::open(device.clone(), &tiny.files, dtype).unwrap();
    let source = adapted.then(|| Box::new(adapters(&tiny.files.config)) as Box<_>);
    Engine::new(model, options, source).unwrap()
}

/// Runs requests to their ends.
pub fn serve<D: Backend>(engine: &mut Engine<D>, arrivals: &[Arrival]) -> Vec<Answer> {
    let mut waiting: Vec<(usize, usize, Request)> = arrivals.iter().enumerate().map(|(number, (step, request))| (*step, number, request.clone())).collect();
    waiting.sort_by_key(|(step, number, _)| (*step, *number));
    waiting.reverse();
    let mut numbers: HashMap<RequestId, usize> = HashMap::new();
    let mut tokens: Vec<Vec<(u32, u64)>> = vec![Vec::new(); arrivals.len()];
    let mut ends: Vec<Option<(Finished, Option<String>)>> = vec![None; arrivals.len()];
    let mut outputs = Vec::new();
    for step in 0..100_000 {
        while waiting.last().is_some_and(|(at, ..)| *at <= step) {
            let (_, number, request) = waiting.pop().unwrap();
            numbers.insert(engine.submit(request).unwrap(), number);
        }
        engine.step(step as u64, &mut outputs).unwrap();
        for output in outputs.drain(..) {
            match output {
                Output::Prompt { .. } => panic!("nobody asked"),
                Output::Token { request, choice } => tokens[numbers[&request]].push((choice.token, choice.log_probability.to_bits())),
                Output::Ended { finished, error } => ends[numbers[&finished.request]] = Some((finished, error)),
            }
        }
        if waiting.is_empty() && engine.is_idle() {
            break;
        }
    }
    tokens.into_iter().zip(ends).map(|(tokens, end)| end.map(|(finished, error)| Answer { tokens, finished, error }).unwrap()).collect()
}

/// Requests of 1 to `longest` tokens, with adapters or without, greedy and drawn, that come one after the other.
pub fn requests(count: usize, longest: usize, adapted: bool, seed: u64) -> Vec<Arrival> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let one = |number: usize| {
        let length = random.random_range(1..=longest);
        let prompt = (0..length).map(|_| random.random_range(0..VOCABULARY as u32)).collect();
        let adapter = [None, Some("low"), Some("high"), Some("other")][random.random_range(0..4)].filter(|_| adapted);
        let sampling = SamplingParams { temperature: [0.0, 1.0][number % 2], top_k: [0, 40][number / 2 % 2], seed: number as u64, ..SamplingParams::default() };
        // Every third is drawn on the host, which knows the tokens before.
        let sampling = if number % 3 == 2 { SamplingParams { repetition: 1.2, ..sampling } } else { sampling };
        let request = Request::new(prompt, random.random_range(1..12)).with_sampling(sampling).with_adapter(adapter.map(str::to_owned));
        (random.random_range(0..10), request)
    };
    (0..count).map(one).collect()
}

/// Each request in an engine of its own.
pub fn each_alone<D: Backend>(dtype: DType, device: &Arc<D>, tiny: &Tiny, arrivals: &[Arrival], adapted: bool) -> Vec<Answer> {
    alone_in(&mut engine_in(dtype, device, tiny, roomy(), adapted), arrivals)
}

/// Each request by itself.
pub fn alone_in<D: Backend>(alone: &mut Engine<D>, arrivals: &[Arrival]) -> Vec<Answer> {
    // A salt of its own keeps a request from the pages of those before it.
    let salted = |(number, (_, request)): (usize, &Arrival)| (0, request.clone().with_salt(Some(number.to_le_bytes().to_vec())));
    arrivals.iter().enumerate().map(|arrival| serve(alone, &[salted(arrival)]).remove(0)).collect()
}

/// Tokens are equal, and so are the bits of their log-probabilities.
pub fn assert_same(found: &[Answer], wanted: &[Answer], how: &str) {
    for (number, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.error, None, "{how}: request {number}");
        assert_eq!((&found.tokens, found.finished.reason), (&wanted.tokens, wanted.finished.reason), "{how}: request {number}");
    }
    assert_eq!(found.len(), wanted.len());
}

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 11] = [
        ("engine: a request is answered as the model alone answers it", as_the_model),
        ("engine: steps of few rows in 16 bits give the model's forecasts", in_few_launches),
        ("engine: a request in any batch has the bits that it has alone", in_any_batch),
        ("engine: a prompt in parts has the bits of the whole", in_parts),
        ("engine: a cached prefix has the bits of a computed one, and of its own adapter", cached),
        ("engine: a preempted request has the bits of one that was not", preempted),
        ("engine: an adapter is its merged weights", merged),
        ("engine: what ends early is told, and the others go on", ends_early),
        ("engine: what cannot be answered is refused", refused),
        ("engine: after its first requests no plan is made", warm),
        ("engine: on a thread of its own it answers, gives up and ends", on_a_thread),
    ];
    on_device(device, tests)
}

/// Every family: greedy tokens, and their log-probabilities to float32.
fn as_the_model<D: Backend>(device: &Arc<D>) {
    for number in 0..kinds().len() {
        let tiny = tiny(number);
        let arrivals: Vec<Arrival> =
            requests(6, 40, false, 5).into_iter().map(|(step, request)| (step, request.with_sampling(SamplingParams::greedy()))).collect();
        let answers = serve(&mut engine(device, &tiny, roomy(), false), &arrivals);
        let mut model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
        assert_foretold(&mut model, &arrivals, &answers, |_| 1e-4);
    }
}

/// Each token is a model's most probable one, and as probable as the model says, but for what `most` allows beside its highest logit.
fn assert_foretold<D: Backend>(model: &mut Model<D>, arrivals: &[Arrival], answers: &[Answer], most: impl Fn(f64) -> f64) {
    for ((_, request), answer) in arrivals.iter().zip(answers) {
        let mut context = model.context(request.prompt.len() + request.max_tokens).unwrap();
        let mut logits = model.run(&mut context, &request.prompt, 1).unwrap();
        assert_eq!(answer.tokens.len(), request.max_tokens);
        for (token, bits) in &answer.tokens {
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (sum, off) = (logits.iter().map(|logit| f64::from(logit - highest).exp()).sum::<f64>(), most(highest.abs().into()));
            let (below, found) = (f64::from(logits[*token as usize] - highest), f64::from_bits(*bits));
            assert!((found - below + sum.ln()).abs() <= off && below >= -off, "{found} of {}, {off} allowed", below - sum.ln());
            logits = model.run(&mut context, &[*token], 1).unwrap();
        }
    }
}

/// Steps of up to 16 rows, which have launches of their own where a device has the operations: log-probabilities near float32's, also where
/// a request reads some hundreds of keys.
fn in_few_launches<D: Backend>(device: &Arc<D>) {
    // Heads of 64, and a layer of factors whose heads are normed.
    for number in [kinds().len() - 2, kinds().len() - 3] {
        let tiny = tiny(number);
        let mut arrivals: Vec<Arrival> =
            requests(7, 60, false, 43).into_iter().map(|(_, request)| (0, request.with_sampling(SamplingParams::greedy()))).collect();
        arrivals[3].1.prompt = (0..300u32).map(|at| at * at % VOCABULARY as u32).collect();
        let mut model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
        for (dtype, most) in [(DType::F16, 1e-2), (DType::BF16, 8e-2)] {
            let answers = serve(&mut engine_in(dtype, device, &tiny, roomy().with_invariant(false), false), &arrivals);
            assert_foretold(&mut model, &arrivals, &answers, |highest| most * highest);
        }
    }
}

fn in_any_batch<D: Backend>(device: &Arc<D>) {
    let last = kinds().len() - 1;
    for (number, adapted, dtype) in [(0, true, DType::F32), (2, false, DType::F32), (7, false, DType::F32), (last, true, DType::F16), (1, true, DType::BF16)] {
        let tiny = tiny(number);
        let arrivals = requests(24, 90, adapted, 11 + number as u64);
        let alone = each_alone(dtype, device, &tiny, &arrivals, adapted);
        let together = serve(&mut engine_in(dtype, device, &tiny, roomy(), adapted), &arrivals);
        assert_same(&together, &alone, "together");
        let few = roomy().with_seats(3).with_budget(40);
        assert_same(&serve(&mut engine_in(dtype, device, &tiny, few, adapted), &arrivals), &alone, "three at a time");
    }
}

fn in_parts<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let arrivals = requests(4, 150, true, 21);
    let alone = each_alone(DType::F32, device, &tiny, &arrivals, true);
    for budget in [2, 7, 16, 64, 300] {
        let options = roomy().with_seats(2).with_budget(budget);
        assert_same(&serve(&mut engine(device, &tiny, options, true), &arrivals), &alone, &format!("a budget of {budget}"));
    }
}

fn cached<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut engine_ = engine(device, &tiny, roomy(), true);
    for extra in [0, 1, 7] {
        // Five pages, and a little more or none.
        let prompt: Vec<u32> = (0..40 + extra).map(|at| (at * 37 + extra * 101) % VOCABULARY as u32).collect();
        let of = |adapter: Option<&str>| Request::new(prompt.clone(), 6).with_adapter(adapter.map(str::to_owned));
        for (number, adapter) in [None, Some("low"), Some("other")].into_iter().enumerate() {
            let first = serve(&mut engine_, &[(0, of(adapter))]).remove(0);
            assert_eq!(first.finished.cached, 0, "another adapter's pages were taken, {number}");
            let again = serve(&mut engine_, &[(0, of(adapter))]).remove(0);
            // The last token is computed always.
            assert_eq!(again.finished.cached, if extra == 0 { 32 } else { 40 });
            assert_same(&[again], std::slice::from_ref(&first), "from the cache");
            let salted = serve(&mut engine_, &[(0, of(adapter).with_salt(Some(vec![1, 2, extra as u8])))]).remove(0);
            assert_eq!((salted.finished.cached, salted.tokens), (0, first.tokens));
        }
    }
}

fn preempted<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let arrivals: Vec<Arrival> =
        (0..4u32).map(|number| (0, Request::new((0..20).map(|at| (at * 31 + number * 7) % VOCABULARY as u32).collect(), 60))).collect();
    let alone = each_alone(DType::F32, device, &tiny, &arrivals, false);
    // A request of 80 tokens takes 10 pages of 8, and there are 13.
    let page_bytes = 2 * tiny.files.config.key() * 4 * tiny.files.config.layers as u64 * 8;
    let options = roomy().with_cache_bytes(13 * page_bytes);
    let found = serve(&mut engine(device, &tiny, options, false), &arrivals);
    assert!(found.iter().map(|answer| answer.finished.preemptions).sum::<u32>() > 0);
    assert_same(&found, &alone, "preempted");
}

fn merged<D: Backend>(device: &Arc<D>) {
    for number in [0, 7, kinds().len() - 1] {
        let tiny = tiny(number);
        let population = adapters(&tiny.files.config);
        let prompt: Vec<u32> = (0..30).map(|at| at * at % VOCABULARY as u32).collect();
        let mut adapted = engine(device, &tiny, roomy(), true);
        let base = serve(&mut adapted, &[(0, Request::new(prompt.clone(), 1))]).remove(0);
        for name in ["low", "high", "other"] {
            let found = serve(&mut adapted, &[(0, Request::new(prompt.clone(), 1).with_adapter(Some(name.into())))]).remove(0);
            let source = Dense(tiny.files.weights.as_ref());
            let changed = Changed { inner: &source, change: &|tensor, values| merge(&population, name, tensor, values) };
            let mut model = Model::new(device.clone(), Config { ranks: Ranks::default(), ..tiny.files.config.clone() }, &changed, DType::F32).unwrap();
            let mut context = model.context(prompt.len()).unwrap();
            let logits = model.run(&mut context, &prompt, 1).unwrap();
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
            let (token, bits) = found.tokens[0];
            let want = f64::from(logits[token as usize]) - sum;
            assert!((f64::from_bits(bits) - want).abs() < 2e-4, "{name}: {} of {want}", f64::from_bits(bits));
            assert_ne!(bits, base.tokens[0].1, "{name} changes nothing");
        }
    }
}

fn ends_early<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut engine = engine(device, &tiny, roomy(), false);
    let free = engine.usage().free_pages;
    let prompt: Vec<u32> = (0..20).collect();
    let whole = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30))]).remove(0);
    assert_eq!((whole.tokens.len(), whole.finished.reason), (30, Finish::Length));
    // At its third token; by its deadline; and by its caller.
    let stopped = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30).with_stop(vec![whole.ids()[2]]))]).remove(0);
    let first = whole.ids().iter().position(|id| *id == whole.ids()[2]).unwrap();
    assert_eq!((stopped.ids(), stopped.finished.reason), (whole.ids()[..=first].to_vec(), Finish::Stop));
    let late = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30).with_deadline(Some(5))), (0, Request::new(prompt.clone(), 30))]);
    assert_eq!((late[0].finished.reason, late[0].tokens.len()), (Finish::Deadline, 5));
    assert_eq!(late[1].tokens, whole.tokens);
    let [given_up, other] = [0, 1].map(|_| engine.submit(Request::new(prompt.clone(), 30)).unwrap());
    let (mut outputs, mut step) = (Vec::new(), 0);
    while !engine.is_idle() {
        if step == 4 {
            assert_eq!(engine.finish(given_up, Finish::Cancelled).unwrap().unwrap().reason, Finish::Cancelled);
            assert!(engine.finish(given_up, Finish::Cancelled).unwrap().is_none());
        }
        engine.step(step, &mut outputs).unwrap();
        step += 1;
    }
    let count = |of: RequestId| outputs.iter().filter(|output| matches!(output, Output::Token { request, .. } if *request == of)).count();
    assert_eq!((count(given_up), count(other)), (4, 30));
    // Nothing is held any more.
    let usage = engine.usage();
    assert_eq!((usage.running, usage.waiting, usage.used_pages, usage.free_pages), (0, 0, 0, free));
}

fn refused<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut with = engine(device, &tiny, roomy().with_context(Some(100)), true);
    let sampling = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
    for (request, part) in [
        (Request::new(vec![], 3), "prompt"),
        (Request::new(vec![1; 100], 3), "context"),
        (Request::new(vec![1], 0), "max_tokens"),
        (Request::new(vec![VOCABULARY as u32], 1), "ids below 257"),
        (Request::new(vec![1], 1).with_sampling(sampling), "top_p"),
        (Request::new(vec![1], 1).with_adapter(Some("nobody".into())), "one of high, low, other"),
    ] {
        let error = with.submit(request).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(with.is_idle());
    let mut without = engine(device, &tiny, roomy(), false);
    assert!(without.submit(Request::new(vec![1], 1).with_adapter(Some("low".into()))).unwrap_err().to_string().contains("without adapters"));
    for options in [roomy().with_seats(0), roomy().with_page(0), roomy().with_budget(3), roomy().with_cache_bytes(10), roomy().with_context(Some(5000))] {
        let model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
        assert!(Engine::new(model, options, None).is_err(), "{options:?}");
    }
    let mut strange = adapters(&tiny.files.config);
    strange.projections.insert("model.layers.9.no.such".into(), SharedProjection { d_in: 96, d_out: 96, input_bases: Vec::new(), output_bases: Vec::new() });
    let model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
    let error = Engine::new(model, roomy(), Some(Box::new(strange))).unwrap_err().to_string();
    assert!(error.contains("model.layers.9.no.such"), "{error}");
}

fn warm<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut engine = engine(device, &tiny, roomy(), true);
    let arrivals = requests(20, 60, true, 3);
    let salted = |salt: u8| arrivals.iter().map(|(step, request)| (*step, request.clone().with_salt(Some(vec![salt])))).collect::<Vec<Arrival>>();
    let first = serve(&mut engine, &salted(1));
    let made = engine.plans_made();
    assert!(made > 0);
    for salt in 2..5 {
        assert_same(&serve(&mut engine, &salted(salt)), &first, "again");
    }
    assert_eq!(engine.plans_made(), made);
}

fn on_a_thread<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let request = || Request::new((0..20).collect(), 30);
    let wanted = serve(&mut engine(device, &tiny, roomy(), false), &[(0, request())]).remove(0);
    let service = Service::start(engine(device, &tiny, roomy(), false)).unwrap();
    let ids = |outputs: Vec<Output>| -> Vec<u32> {
        outputs.into_iter().filter_map(|output| if let Output::Token { choice, .. } = output { Some(choice.token) } else { None }).collect()
    };
    let reason = |output: &Output| if let Output::Ended { finished, .. } = output { Some(finished.reason) } else { None };
    // One that is listened to, one whose caller goes after its first token, one that is given up, and one that is refused.
    let whole = service.stream(request()).unwrap();
    let mut short = service.stream(Request::new((0..20).collect(), 900)).unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    let call = service.submit(Request::new((5..25).collect(), 900), Box::new(move |output| sender.send(output).is_ok())).unwrap();
    let mut wrong = service.stream(Request::new(vec![], 1)).unwrap();
    assert!(wrong.next().unwrap().is_err() && wrong.next().is_none());
    assert!(matches!(short.next().unwrap().unwrap(), Output::Token { .. }));
    drop(short);
    told.recv().unwrap().unwrap();
    service.cancel(call).unwrap();
    let rest: Vec<Output> = told.into_iter().map(Result::unwrap).collect();
    assert_eq!(rest.last().and_then(reason), Some(Finish::Cancelled));
    assert!(rest.len() < 900);
    let whole: Vec<Output> = whole.map(Result::unwrap).collect();
    assert_eq!(whole.last().and_then(reason), Some(Finish::Length));
    assert_eq!(ids(whole), wanted.ids());
    // All pages are back, and what runs when it is to end is answered first.
    let last = service.stream(request()).unwrap();
    service.drain();
    assert_eq!(ids(last.map(Result::unwrap).collect()), wanted.ids());
}
