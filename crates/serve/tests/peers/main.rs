//! Clients of others against this server: OpenAI's and Triton's libraries for Python, from `.venv`, which `./check python` makes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use support::parrot::Parrot;
use support::tiny;
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse_serve::operations::{Operate, OperationsModel, Operator};
use trifuse_serve::{Config, Keys, Models, Server};

fn main() {
    let arguments = Arguments::from_args();
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let trial = |title: &str, module: &str, run: fn(&Path)| {
        let import = format!("import numpy, {module}");
        let there = Command::new(&python).args(["-c", &import]).output().is_ok_and(|out| out.status.success());
        let python = python.clone();
        match there {
            true => Trial::test(title, move || {
                run(&python);
                Ok(())
            }),
            false => Trial::test(format!("{title} (skipped: no {module} in .venv; run ./check python)"), || Ok(())).with_ignored_flag(true),
        }
    };
    let trials = vec![
        trial("openai-python embeds, writes and streams", "openai", openai),
        trial("tritonclient asks encoders and attention, with shared memory", "tritonclient.http", triton),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// The defaults on any port, with no delay at the end.
fn config() -> Config {
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.limits.drain_delay = std::time::Duration::ZERO;
    config
}

/// Runs a client to its end, and reads what it tells.
fn told(python: &Path, script: &str, at: String) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script);
    let out = Command::new(python).arg(script).arg(at).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn bits(vector: &Value) -> Vec<u32> {
    vector.as_array().unwrap().iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect()
}

fn triton(python: &Path) {
    let folder = tiny::folder();
    let mut config = config();
    config.client_shm = true;
    let open = || -> trifuse::Result<Box<dyn Operate>> { Ok(Box::new(Operator::new(Arc::new(Cpu::open(0)?))?)) };
    let operations = OperationsModel { open: Box::new(open), region_bytes: 1 << 20 };
    let models = Models { embeddings: Some(tiny::model_with(folder.path(), |_| {})), operations: Some(operations), ..Models::default() };
    let handle = Server::serve(config, models).unwrap();
    let told = told(python, "triton_client.py", handle.addr().to_string());
    let mut reference = tiny::Reference::new(folder.path());
    for (name, adapter) in [("tiny", None), ("left", Some("left"))] {
        for (ids, vector) in [&[0, 4, 5, 1][..], &[0, 7, 1]].iter().zip(told[name].as_array().unwrap()) {
            assert_eq!(bits(vector), reference.of_ids(ids, adapter), "{ids:?} of {name}");
        }
    }
    handle.drain();
    assert_eq!(handle.ledger().open(), 0);
    handle.wait();
}

fn openai(python: &Path) {
    let folder = tiny::folder();
    let keys = folder.path().join("keys");
    // The SHA-256 of "secret".
    std::fs::write(&keys, "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").unwrap();
    let mut config = config();
    config.keys = Keys::open(&keys).unwrap();
    let handle = Server::start(config, Some(tiny::model_with(folder.path(), |_| {})), Some(Arc::new(Parrot::default()))).unwrap();
    let told = told(python, "openai_client.py", format!("http://{}/v1", handle.addr()));
    let mut reference = tiny::Reference::new(folder.path());
    for (name, adapter) in [("tiny", None), ("left", Some("left"))] {
        for (text, vector) in ["w1 w2", "w3"].iter().zip(told["vectors"][name].as_array().unwrap()) {
            assert_eq!(bits(vector), reference.of(text, adapter), "{text} of {name}");
        }
    }
    handle.drain();
    assert_eq!(handle.ledger().open(), 0);
    handle.wait();
}
