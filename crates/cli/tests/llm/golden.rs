//! Logits of SmolLM2 against those that NumPy computed in float64 from the equations, and faults that must show.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::backend::Backend;
use trifuse::backends::AnyDevice;
use trifuse::llm::{Config, Files, Model};

use super::backends::{SLOW, ignored, slow};
use super::support::{Changed, NO_WEIGHTS, Prompt, golden, weights};

/// How far a logit may be off: the least of the planted faults moves them by more, and honest rounding by a fifth of it.
const MOST: f64 = 5e-4;

/// A test: its name, whether it takes minutes on a software driver, and what it does.
type Test = (String, bool, Box<dyn FnOnce() + Send>);

pub fn trials(device: &Arc<AnyDevice>) -> Vec<Trial> {
    let mut trials: Vec<Test> = Vec::new();
    let slow = slow(device.as_ref());
    for (number, name) in ["chat", "short", "long"].into_iter().enumerate() {
        let device = device.clone();
        trials.push((format!("golden {name} f32"), slow && number != 1, Box::new(move || right(&device, DType::F32, number, MOST))));
    }
    for (dtype, most) in [(DType::F16, 0.15), (DType::BF16, 1.0)] {
        let device = device.clone();
        trials.push((format!("golden short {dtype}"), slow, Box::new(move || right(&device, dtype, 1, most))));
    }
    let other = device.clone();
    trials.push(("golden planted faults".into(), slow, Box::new(move || faults(&other))));
    if device.backend() == "cpu" {
        trials.push(("golden tokens and text".into(), false, Box::new(tokens)));
    }
    let there = weights().is_file();
    let trial = |(name, slow, run): Test| match (there, slow) {
        (false, _) => ignored(format!("{name}: {NO_WEIGHTS}")),
        (true, true) => ignored(format!("{name} ({SLOW})")),
        (true, false) => Trial::test(name, move || {
            run();
            Ok(())
        }),
    };
    trials.into_iter().map(trial).collect()
}

/// All at once, then token by token behind the prompt, then from its middle again. A software driver reads all weights for each of these in ten
/// seconds: it computes one token behind the prompt, and drawn models there are the ones that go back.
fn right(device: &Arc<AnyDevice>, dtype: DType, number: usize, most: f64) {
    let files = Files::open(&weights()).unwrap();
    let mut model = Model::open(device.clone(), &files, dtype).unwrap();
    let prompt = &golden().prompts[number];
    let logits = whole(&mut model, prompt);
    let off = prompt.off(&logits);
    assert!(off <= most, "all at once: off by {off:e}, {most:e} allowed");
    if dtype != DType::F32 {
        unrounded(dtype, prompt, &logits);
    }
    let ids = prompt.teacher();
    let mut context = model.context(ids.len()).unwrap();
    let mut logits = model.run(&mut context, &ids[..prompt.ids.len()], 1).unwrap();
    let rest = &ids[prompt.ids.len()..];
    let slow = slow(device.as_ref());
    let steps = if slow { rest.len().min(1) } else { rest.len() };
    for id in &rest[..steps] {
        logits.extend(model.run(&mut context, &[*id], 1).unwrap());
    }
    let off = prompt.off_first(&logits, 1 + steps);
    assert!(off <= most, "token by token: off by {off:e}, {most:e} allowed");
    if slow {
        return;
    }
    // Back to the middle of the prompt, and on again.
    context.truncate(prompt.ids.len() / 2);
    let logits = model.run(&mut context, &ids[prompt.ids.len() / 2..], prompt.count()).unwrap();
    let off = prompt.off(&logits);
    assert!(off <= most, "continued: off by {off:e}, {most:e} allowed");
}

fn whole<D: Backend>(model: &mut Model<D>, prompt: &Prompt) -> Vec<f32> {
    let ids = prompt.teacher();
    let mut context = model.context(ids.len()).unwrap();
    model.run(&mut context, &ids, prompt.count()).unwrap()
}

/// Logits of a model in 16 bits are sums of f32. Rounded to what the model computes in they would be further off, and many alike.
fn unrounded(dtype: DType, prompt: &Prompt, logits: &[f32]) {
    let rounded: Vec<f32> =
        dtype.decode(&dtype.encode(&logits.iter().map(|&logit| logit.into()).collect::<Vec<_>>())).iter().map(|&logit| logit as f32).collect();
    let alike = |logits: &[f32]| {
        let mut bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        bits.sort_unstable();
        bits.dedup();
        logits.len() - bits.len()
    };
    let (vocabulary, count) = (logits.len() / prompt.count(), prompt.count());
    let of = |logits: &[f32]| logits.chunks_exact(vocabulary).map(alike).sum::<usize>() / count;
    let (own, others) = (of(logits), of(&rounded));
    println!("{dtype}: off by {:.4}, rounded {:.4}; of {vocabulary} logits {own} like another, rounded {others}", prompt.off(logits), prompt.off(&rounded));
    assert!(own < others / 4, "{dtype}: of {vocabulary} logits {own} are like another, of rounded ones {others}");
}

/// The faults of a loader or a pass that are easily made. Each has to be seen.
fn faults(device: &Arc<AnyDevice>) {
    let files = Files::open(&weights()).unwrap();
    let prompts = golden().prompts;
    let plain = |_: &mut Config| {};
    let same = |_: &str, _: &mut Vec<f32>| {};
    // Rows of a head as the other kind of rotary positions has them.
    let permute = |name: &str, values: &mut Vec<f32>| {
        if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") {
            let columns = 576;
            let rows = |head: usize| (0..32).flat_map(move |j| [j, j + 32]).map(move |row| head * 64 + row);
            let heads = values.len() / columns / 64;
            *values = (0..heads).flat_map(rows).flat_map(|row| values[row * columns..(row + 1) * columns].to_vec()).collect();
        }
    };
    let rotate = |name: &str, values: &mut Vec<f32>| {
        if name == "model.layers.29.self_attn.v_proj.weight" {
            values.rotate_right(64 * 576);
        }
    };
    let lose = |name: &str, values: &mut Vec<f32>| {
        if name == "model.layers.15.mlp.up_proj.weight" {
            values[700 * 576..701 * 576].fill(0.0);
        }
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Config), &'a dyn Fn(&str, &mut Vec<f32>));
    let all: [Change<'_>; 5] = [
        ("interleaved rotary positions", &plain, &permute),
        ("a base of 10,000", &|config| config.rope_base = 1e4, &same),
        ("heads of v rotated in the last layer", &plain, &rotate),
        ("a lost row of up_proj", &plain, &lose),
        ("an eps of 1e-6", &|config| config.norm_eps = 1e-6, &same),
    ];
    for (name, change, weights) in all {
        let mut config = files.config.clone();
        change(&mut config);
        let source = Changed { inner: files.weights.as_ref(), change: weights };
        let mut model = Model::new(device.clone(), config, &source, DType::F32).unwrap();
        let off = prompts[2].off(&whole(&mut model, &prompts[2]));
        assert!(off > MOST, "{name} moves the logits by {off:e} only");
    }
}

fn tokens() {
    let files = Files::open(&weights()).unwrap();
    for prompt in golden().prompts {
        assert_eq!(files.tokenizer.encode(&prompt.text, false).unwrap(), prompt.ids, "{}", prompt.name);
        let text = files.tokenizer.decode(&prompt.generated_ids).unwrap();
        assert_eq!(text, prompt.generated_text.replace("<|im_end|>", ""), "{}", prompt.name);
    }
    let chat = [trifuse::llm::Message::new("user", "What is the capital of France?")];
    assert_eq!(files.template.unwrap().render(&chat, true).unwrap(), golden().prompts[0].text);
    assert_eq!(files.ends, [2]);
}
