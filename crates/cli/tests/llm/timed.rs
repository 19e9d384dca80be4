//! The launches of a step, each timed by itself: they change no answer, and together are about the step.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::Value;
use sha2::{Digest, Sha256};
use trifuse::backend::Backend;
use trifuse::llm::engine::{Output, Request, TimedStep};

use super::engine::{alone_in, assert_same, engine, requests, roomy, serve, tiny, tiny_of};
use super::support::{Test, on_device};
use super::tiny::latents;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 3] = [
        ("engine: a step whose launches are timed gives the tokens that it gives else", changes_nothing),
        ("engine: the launches of a step are timed in their order", in_order),
        ("engine: a factored layer has as few launches as the backend can do", factored),
    ];
    on_device(device, tests)
}

/// The trials of the command.
pub fn commands() -> Vec<Trial> {
    let tests: [(&str, fn()); 1] = [("eval tells of a step's launches, and of what it measured by its content", told)];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
        .with_kind("command")
    };
    tests.map(trial).into_iter().collect()
}

/// Requests with adapters in pages of keys, and without in pages of latents: a step that runs again and again makes the same.
fn changes_nothing<D: Backend>(device: &Arc<D>) {
    for (tiny, adapted) in [(tiny(0), true), (tiny_of(&latents()[0]), false)] {
        let arrivals = requests(5, 30, adapted, 3);
        let wanted = alone_in(&mut engine(device, &tiny, roomy(), adapted), &arrivals);
        let mut timed = engine(device, &tiny, roomy(), adapted);
        let mut answers = Vec::new();
        for (number, (_, request)) in arrivals.iter().enumerate() {
            timed.time_next(2);
            let request = request.clone().with_salt(Some(vec![number as u8]));
            answers.extend(serve(&mut timed, &[(0, request)]));
            assert!(timed.take_timed().is_some() && timed.take_timed().is_none(), "one step was asked for");
        }
        assert_same(&answers, &wanted, "timed");
    }
}

/// The launches of a prompt's step and of one behind it, which has the head's too.
fn in_order<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let layers = tiny.files.config.layers;
    let mut engine = engine(device, &tiny, roomy().with_invariant(false), false);
    let prompt: Vec<u32> = (0..25).collect();
    let number = engine.submit(Request::new(prompt, 8)).unwrap();
    let (mut outputs, mut steps): (_, Vec<TimedStep>) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        engine.time_next(3);
        engine.step(0, &mut outputs).unwrap();
        steps.extend(engine.take_timed());
    }
    assert_eq!(outputs.iter().filter(|output| matches!(output, Output::Token { request, .. } if *request == number)).count(), 8);
    assert_eq!((steps[0].rows, steps[0].graph, steps[1].rows, steps[1].graph), (25, false, 1, true));
    for step in &steps {
        let roles: Vec<&str> = step.launches.iter().map(|launch| launch.role).collect();
        let count = |role: &str| roles.iter().filter(|own| **own == role).count();
        assert_eq!((roles[0], count("embedding")), ("embedding", 1), "{roles:?}");
        assert!(["qkv", "attention", "output"].into_iter().all(|role| count(role) == layers), "{roles:?}");
        assert_eq!(roles.last() == Some(&"head"), step.graph, "{roles:?}");
        for launch in &step.launches {
            assert!(launch.seconds > 0.0 && launch.cost.bytes > 0.0 && launch.sizes.iter().all(|&size| size > 0) && !launch.variant.is_empty(), "{launch:?}");
        }
        // One after another they take what they take together, but for what an event costs on a device and a machine that others share.
        let sum: f64 = step.launches.iter().map(|launch| launch.seconds).sum();
        assert!(sum > 0.2 * step.seconds, "{sum} of {}", step.seconds);
        let product = step.launches.iter().find(|launch| launch.role == "output").unwrap();
        assert_eq!(product.sizes[1..], [tiny.files.config.hidden, tiny.files.config.query()], "{product:?}");
    }
}

/// The launches of the first layer, of two factors each, of a prompt's step and of one behind it.
fn factored<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(8);
    let mut engine = engine(device, &tiny, roomy().with_invariant(false), false);
    engine.submit(Request::new((0..25).collect(), 3)).unwrap();
    let (mut outputs, mut steps): (_, Vec<TimedStep>) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        engine.time_next(1);
        engine.step(0, &mut outputs).unwrap();
        steps.extend(engine.take_timed());
    }
    let many = ["norm", "qkv", "qkv", "heads", "attention", "output", "output", "norm", "gate_up", "gate_up", "glu", "down", "down"];
    // A backend of which every product may norm its rows has gates as well.
    let few = many.into_iter().filter(|role| device.hints().normed_outputs != Some(u64::MAX) || !["norm", "glu"].contains(role));
    for (step, wanted) in [(&steps[0], many.to_vec()), (&steps[1], few.collect())] {
        let roles: Vec<&str> = step.launches.iter().map(|launch| launch.role).skip(1).take(wanted.len()).collect();
        assert_eq!(roles, wanted, "{} rows", step.rows);
    }
}

fn told() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model");
    std::fs::create_dir(&model).unwrap();
    // A model of which some projections are two factors.
    latents()[0].write(&model);
    let run = |more: &[&str]| {
        let fixed = ["--backend", "cpu", "eval", "--suite", "speed", "--batch", "1,3", "--prompt", "8", "--answer", "6", "--dtype", "f32", "--model"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
        let run = command.args(fixed).arg(&model).args(more).env_remove("TRIFUSE_BACKEND").output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let steps = report["steps"].as_array().unwrap();
    let named: Vec<_> = steps.iter().map(|step| (step["batch"].as_u64().unwrap(), step["step"].as_str().unwrap(), step["rows"].as_u64().unwrap())).collect();
    assert_eq!(named, [(1, "decode", 1), (3, "prefill", 24), (3, "decode", 3)]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&steps[0]), of(&["model", "batch", "adapters", "step", "rows", "sequences", "us", "graph", "launches_us", "clocks"]));
    let same = |launch: &Value, step: &Value| ["model", "batch", "adapters", "step"].iter().all(|key| launch[key] == step[key]);
    for step in steps {
        let own: Vec<&Value> = report["launches"].as_array().unwrap().iter().filter(|launch| same(launch, step)).collect();
        let names = ["model", "batch", "adapters", "step", "role", "operation", "m", "n", "k", "variant", "count", "us", "share", "bytes", "flops"];
        let rates = ["bytes_per_second", "flops_per_second", "share_of_bandwidth", "share_of_peak"];
        assert!(own.iter().all(|launch| keys(launch) == of(&[&names[..], &rates[..]].concat())), "{own:?}");
        let number = |launch: &Value, key: &str| launch[key].as_f64().unwrap();
        assert!(own.windows(2).all(|pair| number(pair[0], "share") >= number(pair[1], "share")), "{own:?}");
        assert!((own.iter().map(|launch| number(launch, "share")).sum::<f64>() - 1.0).abs() < 1e-6, "{own:?}");
        let sum: f64 = own.iter().map(|launch| number(launch, "count") * number(launch, "us")).sum();
        assert!((sum / number(step, "launches_us") - 1.0).abs() < 1e-6, "{sum} in {step}");
    }
    let hash = |path: &Path| Sha256::digest(std::fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let told = &report["models"][0];
    let found: Vec<(&str, &str)> =
        told["files"].as_array().unwrap().iter().map(|file| (file["file"].as_str().unwrap(), file["sha256"].as_str().unwrap())).collect();
    let mut written: Vec<_> = std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()).collect();
    written.retain(|path| path.file_name().unwrap() == "config.json" || path.to_string_lossy().contains("safetensors"));
    written.sort();
    assert!(written.len() > 1, "{written:?}");
    let hashes: Vec<String> = written.iter().map(|path| hash(path)).collect();
    let wanted: Vec<(&str, &str)> = written.iter().zip(&hashes).map(|(path, hash)| (path.to_str().unwrap(), hash.as_str())).collect();
    assert_eq!(found, wanted);
    let files = trifuse::llm::Files::open(&model).unwrap();
    let config = files.config.with_ranks_of(files.weights.as_ref()).unwrap();
    let ranks: Vec<u64> = config.ranks.iter().map(|(_, rank)| rank).collect();
    assert_eq!(told["ranks"]["factored"], ranks.len());
    assert_eq!(told["ranks"]["odd"], ranks.iter().filter(|rank| *rank % 8 != 0).count());
    assert_eq!((told["ranks"]["least"].as_u64(), told["ranks"]["most"].as_u64()), (ranks.iter().min().copied(), ranks.iter().max().copied()));
    // For people the slowest three of each step.
    let page = run(&[]);
    assert_eq!(page.lines().filter(|line| line.trim_start().starts_with("decode of 3 ")).count(), 3, "{page}");
    assert!(!run(&["--launches", "0"]).contains("decode of"));
}
