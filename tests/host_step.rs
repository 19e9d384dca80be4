//! What the host does in a step of the engine: its time and what it asks of the heap, beside a device that is done at once.
//!
//! `cargo test --release --all-features --test host_step -- --nocapture` prints the figures; `TRIFUSE_HOST_STEPS` is how many steps are timed.
#![cfg(feature = "llm")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "host_step/heap.rs"]
mod heap;
#[path = "host_step/nothing.rs"]
mod nothing;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use trifuse::DType;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::{Drawn, Model};

use heap::{Counted, asked};
use nothing::Nothing;

#[global_allocator]
static HEAP: Counted = Counted;

const SEQUENCES: u32 = 256;

/// An engine of a small model on a device that does nothing, warm.
fn engine(device: &Arc<Nothing>, context: usize) -> Engine<Nothing> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": 1000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let (config, weights) = Drawn::open(&path).unwrap();
    let model = Model::new(device.clone(), config, &weights, DType::F16).unwrap();
    let options = EngineOptions::default().with_seats(SEQUENCES).with_budget(2048).with_context(Some(context)).with_page(16);
    let mut engine = Engine::new(model, options, None).unwrap();
    engine.warm_up().unwrap();
    engine
}

/// Submits as many requests as there are seats, and computes their prompts.
fn fill(engine: &mut Engine<Nothing>, prompt: u32, answer: usize, sampling: &SamplingParams) {
    for number in 0..SEQUENCES {
        let prompt = (0..prompt).map(|at| (at * 31 + number * 7 + 1) % 1000).collect();
        engine.submit(Request::new(prompt, answer).with_sampling(sampling.clone())).unwrap();
    }
    let (mut outputs, mut begun) = (Vec::new(), 0);
    while begun < SEQUENCES as usize {
        outputs.clear();
        engine.step(0, &mut outputs).unwrap();
        begun = outputs.iter().filter(|output| matches!(output, Output::Token { .. })).count();
    }
}

#[test]
fn a_step_of_256_sequences_takes_the_host_little() {
    let steps = std::env::var("TRIFUSE_HOST_STEPS").map_or(200, |steps| steps.parse().unwrap());
    let drawn = SamplingParams { temperature: 0.8, top_k: 40, ..SamplingParams::default() };
    for (name, prompt, sampling) in [("greedy", 128, SamplingParams::greedy()), ("drawn", 128, drawn.clone()), ("drawn", 3000, drawn)] {
        let device = Arc::new(Nothing::new());
        let mut engine = engine(&device, prompt as usize + steps + 700);
        fill(&mut engine, prompt, steps + 600, &sampling);
        let made = engine.counters();
        let told = |device: &Nothing| [&device.writes, &device.written, &device.launches, &device.replays].map(|count| count.load(Ordering::Relaxed));
        let before = told(&device);
        let (mut times, mut heap, mut outputs) = (Vec::with_capacity(steps), Vec::with_capacity(steps), Vec::with_capacity(1024));
        for step in 0..steps {
            outputs.clear();
            let (began, asked_before) = (Instant::now(), asked());
            engine.step(step as u64, &mut outputs).unwrap();
            times.push(began.elapsed());
            heap.push(asked() - asked_before);
            assert_eq!(outputs.iter().filter(|output| matches!(output, Output::Token { .. })).count(), SEQUENCES as usize);
        }
        assert_eq!(engine.counters() - made, Default::default(), "plans, graphs, buffers, code");
        let [writes, written, launches, replays] = told(&device).iter().zip(before).map(|(now, then)| (now - then) / steps as u64).collect::<Vec<_>>()[..]
        else {
            unreachable!()
        };
        times.sort();
        heap.sort_unstable();
        let median = heap[steps / 2];
        println!(
            "host_step: {name}, {SEQUENCES} sequences of {prompt} tokens and more: least {:?}, median {:?}, 95 of 100 within {:?}; heap asked {median} times, {} at most; a step has {writes} writes of {written} bytes, {launches} launches, {replays} replay",
            times[0],
            times[steps / 2],
            times[steps * 95 / 100],
            heap[steps - 1]
        );
        // What grows with the square of the sequences, or asks for each of them, shows on any machine.
        assert!(median < 64 && times[0].as_micros() < 2000, "{median} times of the heap, {:?}", times[0]);
        assert_eq!((launches, replays), (1, 1), "the sampler's launch, and the captured pass");
    }
}
