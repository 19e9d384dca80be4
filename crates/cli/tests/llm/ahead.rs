//! Steps that are launched before the one before them is read: the answers are those of an engine that waits, whatever comes, ends or is taken back.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish;

use super::engine::{Answer, Arrival, Tiny, assert_same, engine, requests, roomy, serve, tiny};
use super::support::{Test, on_device};
use super::tiny::VOCABULARY;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 4] = [
        ("engine: a step that is launched early gives the tokens of one that waits", as_one_that_waits),
        ("engine: a step that is launched early outlives ends, cancels and deadlines", ends),
        ("engine: a step that is launched early bears preemption", preempted),
        ("engine: a step waits where the host has a part in it", waits),
    ];
    on_device(device, tests)
}

/// Requests whose tokens the device draws.
fn free(count: usize, longest: usize, adapted: bool, seed: u64) -> Vec<Arrival> {
    let of_device = |(step, request): Arrival| {
        let sampling = SamplingParams { repetition: 1.0, ..request.sampling.clone() };
        (step, request.with_sampling(sampling))
    };
    requests(count, longest, adapted, seed).into_iter().map(of_device).collect()
}

/// What an engine answers whose steps are launched early, or wait, and how many were early.
fn answered<D: Backend>(device: &Arc<D>, tiny: &Tiny, options: EngineOptions, arrivals: &[Arrival], ahead: bool) -> (Vec<Answer>, u64) {
    let mut engine = engine(device, tiny, options.with_ahead(ahead), true);
    let answers = serve(&mut engine, arrivals);
    assert_unused(&engine);
    (answers, engine.steps_ahead())
}

/// Nothing is held, and no step is left to be read.
fn assert_unused<D: Backend>(engine: &Engine<D>) {
    let usage = engine.usage();
    assert_eq!((usage.running, usage.waiting, usage.ending, usage.used_pages, usage.steps), (0, 0, 0, 0, 0));
}

fn as_one_that_waits<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    // All together; in parts, few at a time; with an order of rows that changes as answers end.
    let few = roomy().with_seats(3);
    for (options, seed) in [(roomy(), 31), (few.with_budget(7), 32), (few.with_budget(40), 33)] {
        let arrivals = free(24, 60, true, seed);
        let (wanted, none) = answered(device, &tiny, options, &arrivals, false);
        let (found, early) = answered(device, &tiny, options, &arrivals, true);
        assert_same(&found, &wanted, "early");
        assert!(none == 0 && early > 8, "{none}, {early} of {options:?}");
        // A stop that nobody foresaw: the third token of each answer that has one.
        let stopped = |(answer, (step, request)): (&Answer, &Arrival)| (*step, request.clone().with_stop(answer.ids().get(2).copied().into_iter().collect()));
        let stopped: Vec<Arrival> = wanted.iter().zip(&arrivals).map(stopped).collect();
        let wanted = answered(device, &tiny, options, &stopped, false).0;
        assert!(wanted.iter().filter(|answer| answer.finished.reason == Finish::Stop).count() > 8);
        assert_same(&answered(device, &tiny, options, &stopped, true).0, &wanted, "with stops");
    }
}

fn ends<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut engine = engine(device, &tiny, roomy().with_ahead(true), false);
    let prompt: Vec<u32> = (0..20).collect();
    let whole = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30))]).remove(0);
    assert_eq!((whole.tokens.len(), whole.finished.reason, whole.finished.generated), (30, Finish::Length, 30));
    // Every step but the first was launched before the one before it was read.
    assert_eq!(engine.steps_ahead(), 29);
    // The last request that is there stops: the step behind it is let go of.
    let stop = whole.ids()[2];
    let stopped = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30).with_stop(vec![stop]))]).remove(0);
    let first = whole.ids().iter().position(|id| *id == stop).unwrap();
    assert_eq!((stopped.ids(), stopped.finished.generated), (whole.ids()[..=first].to_vec(), first + 1));
    assert_unused(&engine);
    let late = serve(&mut engine, &[(0, Request::new(prompt.clone(), 30).with_deadline(Some(5))), (0, Request::new(prompt.clone(), 30))]);
    assert_eq!((late[0].finished.reason, late[0].tokens.len(), late[0].finished.generated), (Finish::Deadline, 5, 5));
    assert_eq!(late[1].ids(), whole.ids());
    // Given up while a step with it is under way; another comes to its seat at once.
    let (mut outputs, mut numbers) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let request = engine.submit(Request::new(prompt.clone(), 30)).unwrap();
        numbers.push(request);
        for step in 0..3 + round {
            assert!(engine.step(step, &mut outputs).unwrap());
        }
        assert_eq!(engine.usage().steps, 1);
        assert_eq!(engine.finish(request, Finish::Cancelled).unwrap().unwrap().generated, 3 + round as usize);
        assert_unused(&engine);
    }
    for (round, number) in numbers.into_iter().enumerate() {
        let told = |output: &Output| if let Output::Token { request, choice } = output { (*request == number).then_some(choice.token) } else { None };
        assert_eq!(outputs.iter().filter_map(told).collect::<Vec<u32>>(), whole.ids()[..3 + round]);
    }
    assert_eq!(serve(&mut engine, &[(0, Request::new(prompt, 30))])[0].ids(), whole.ids());
}

fn preempted<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let arrivals: Vec<Arrival> =
        (0..4u32).map(|number| (0, Request::new((0..20).map(|at| (at * 31 + number * 7) % VOCABULARY as u32).collect(), 60))).collect();
    let wanted = answered(device, &tiny, roomy(), &arrivals, false).0;
    // A request of 80 tokens takes 10 pages of 8, and there are 13.
    let page_bytes = 2 * tiny.files.config.key() * 4 * tiny.files.config.layers as u64 * 8;
    let (found, early) = answered(device, &tiny, roomy().with_cache_bytes(13 * page_bytes), &arrivals, true);
    assert!(found.iter().map(|answer| answer.finished.preemptions).sum::<u32>() > 0 && early > 60, "{early}");
    assert_same(&found, &wanted, "preempted");
}

fn waits<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    // Every third of these is drawn on the host; between them the device goes on alone.
    let arrivals = requests(24, 60, true, 41);
    let (wanted, _) = answered(device, &tiny, roomy(), &arrivals, false);
    assert_same(&answered(device, &tiny, roomy(), &arrivals, true).0, &wanted, "some on the host");
    // Alone, such a request is never early; nor is one whose prompt is told of, before its answer is.
    let mut engine = engine(device, &tiny, roomy().with_ahead(true), false);
    for sampling in [SamplingParams { repetition: 1.2, ..SamplingParams::greedy() }, SamplingParams { top: 2, ..SamplingParams::greedy() }] {
        let answer = serve(&mut engine, &[(0, Request::new(vec![1, 2, 3], 9).with_sampling(sampling))]).remove(0);
        assert_eq!((answer.tokens.len(), engine.steps_ahead()), (9, 0));
    }
}
