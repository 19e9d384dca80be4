//! An engine that is warm makes nothing any more: no plan, no compiled code, no graph, no memory, whatever comes, ends or changes. What has to be made is
//! named here, and counted.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::adapters::encoded::{EncodedAdapter, Population};
use trifuse::backend::Backend;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish;
use trifuse::session::Counters;

use super::backends;
use super::coming::open;
use super::engine::{adapters, alone_in, assert_same, engine, requests, roomy, serve, tiny, tiny_of};
use super::support::Test;
use super::tiny::{VOCABULARY, latents};

/// The trials of a backend. Each opens a device of its own: what is compiled is counted by the device, and other trials compile too.
pub fn trials(name: &'static str) -> Vec<Trial> {
    let tests: [Test<AnyDevice>; 4] = [
        ("engine: once warm it plans, compiles, captures and allocates nothing, step by step", nothing_is_made),
        ("engine: once warm it answers with the bits of one that is not", as_one_that_is_cold),
        ("engine: adapters within the reserve take nothing of a warm engine, and others what is counted", adapters_come_and_go),
        ("engine: where pages hold latents, once warm nothing is made", latents_too),
    ];
    let trial = |(title, test): Test<AnyDevice>| {
        Trial::test(title, move || {
            let device = Arc::new(Choice::Named(name, 0).open_any().unwrap());
            // Never dropped: its driver may go before the last of its work does.
            std::mem::forget(device.clone());
            test(&device);
            Ok(())
        })
    };
    let device = Choice::Named(name, 0).open_any().unwrap();
    backends::in_turn(&device, tests.into_iter().map(trial).collect())
}

/// Few seats and a small budget, so that requests wait and prompts come in parts.
fn tight() -> EngineOptions {
    roomy().with_seats(12).with_budget(40).with_context(Some(128))
}

/// Runs requests of all kinds until `steps` steps are done, and says how many tokens came. After each step nothing is made.
fn run<D: Backend>(engine: &mut Engine<D>, adapted: bool, steps: usize) -> usize {
    let before = engine.counters();
    let mut outputs = Vec::new();
    let (mut tokens, mut round, mut waiting) = (0, 0, Vec::new());
    for step in 0..steps {
        if waiting.is_empty() {
            round += 1;
            // By turns many at once and one alone.
            waiting = requests(if round % 3 == 0 { 1 } else { 20 }, 100, adapted, round);
            waiting.iter_mut().for_each(|(at, _)| *at += step + usize::from(round % 3 == 0) * 30);
        }
        let (now, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(at, _)| *at <= step);
        waiting = later;
        for (number, (_, request)) in now.into_iter().enumerate() {
            let request = request.with_salt(Some(vec![round as u8]));
            let request = if number % 7 == 3 { request.with_prompt_logprobs(2) } else { request };
            let id = engine.submit(request).unwrap();
            if number % 11 == 5 {
                engine.finish(id, Finish::Cancelled).unwrap();
            }
        }
        engine.step(step as u64, &mut outputs).unwrap();
        tokens += outputs.drain(..).filter(|output| matches!(output, Output::Token { .. })).count();
        assert_eq!(engine.counters() - before, Counters::default(), "step {step} of {engine:?}");
    }
    tokens
}

fn nothing_is_made<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    for (adapted, invariant, ahead) in [(true, false, true), (true, true, false), (false, false, false)] {
        let mut engine = engine(device, &tiny, tight().with_invariant(invariant).with_ahead(ahead), adapted);
        engine.warm_up().unwrap();
        let made = engine.counters();
        assert!(made.plans > 0 && made.buffers > 0 && made.bytes > made.buffers && made.graphs > 0, "{made:?}");
        let tokens = run(&mut engine, adapted, 250);
        assert!(tokens > 400 && (engine.steps_ahead() > 0) == ahead, "{tokens} tokens, {} steps ahead", engine.steps_ahead());
        // Another warm-up finds all there.
        while !engine.is_idle() {
            engine.step(1000, &mut Vec::new()).unwrap();
        }
        let before = engine.counters();
        engine.warm_up().unwrap();
        assert_eq!(engine.counters() - before, Counters::default());
    }
}

fn as_one_that_is_cold<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let arrivals = requests(24, 90, true, 51);
    let alone = alone_in(&mut engine(device, &tiny, roomy(), true), &arrivals);
    let mut warm = engine(device, &tiny, tight(), true);
    warm.warm_up().unwrap();
    assert_same(&serve(&mut warm, &arrivals), &alone, "warm");
    assert!(warm.submit(Request::new(vec![1], 3)).is_ok());
    let refused = warm.warm_up().unwrap_err().to_string();
    assert!(refused.contains("without requests"), "{refused}");
}

fn adapters_come_and_go<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let Population { adapters, .. } = adapters(&tiny.files.config);
    let of = |name: &str| -> EncodedAdapter { adapters[name].clone() };
    let mut engine = open(DType::F32, device, &tiny, tight().with_invariant(false).with_reserve(2));
    engine.add_adapter("first", of("low")).unwrap();
    engine.warm_up().unwrap();
    let before = engine.counters();
    let mut outputs = Vec::new();
    for round in 0..30u32 {
        // Two of one form beside the first, in turn: each comes to the device, is used and goes.
        let name = format!("number {round}");
        engine.add_adapter(&name, of(["low", "other"][round as usize % 2])).unwrap();
        for adapter in ["first", &name] {
            let prompt = (0..1 + round % 20).map(|at| (at * 31 + round) % VOCABULARY as u32).collect();
            engine.submit(Request::new(prompt, 6).with_adapter(Some(adapter.to_owned())).with_sampling(SamplingParams::greedy())).unwrap();
        }
        engine.remove_adapter(&name).unwrap();
        for step in 0..10 {
            engine.step(step, &mut outputs).unwrap();
            assert_eq!(engine.counters() - before, Counters::default(), "round {round}, step {step}");
        }
    }
    let failed = outputs.iter().any(|output| matches!(output, Output::Ended { error: Some(_), .. }));
    let tokens = outputs.iter().filter(|output| matches!(output, Output::Token { .. })).count();
    assert!(!failed && tokens == 30 * 2 * 6, "{tokens}");
    // An adapter of another form takes memory for the form; what is planned and captured with it is made by a warm-up, and then nothing is.
    engine.add_adapter("wide", of("high")).unwrap();
    let form = engine.counters() - before;
    assert!(form.buffers > 0 && (form.plans, form.graphs) == (0, 0), "{form:?}");
    engine.warm_up().unwrap();
    let made = engine.counters() - before;
    assert!(made.plans > 0 && made.graphs > 0, "{made:?}");
    let before = engine.counters();
    outputs.clear();
    engine.submit(Request::new(vec![5; 30], 6).with_adapter(Some("wide".to_owned()))).unwrap();
    while !engine.is_idle() {
        engine.step(0, &mut outputs).unwrap();
    }
    assert_eq!((engine.counters() - before, outputs.len()), (Counters::default(), 7));
}

fn latents_too<D: Backend>(device: &Arc<D>) {
    let tiny = tiny_of(&latents()[0]);
    for invariant in [false, true] {
        let mut engine = engine(device, &tiny, tight().with_seats(6).with_invariant(invariant), false);
        engine.warm_up().unwrap();
        assert!(run(&mut engine, false, 120) > 100);
    }
}
