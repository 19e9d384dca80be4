//! Clients of others against this server: OpenAI's library for Python, from `.venv`, which `./check python` makes.
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
use trifuse_serve::{Config, Keys, Server};

fn main() {
    let arguments = Arguments::from_args();
    let title = "openai-python embeds, writes and streams";
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let there = Command::new(&python).args(["-c", "import openai, numpy"]).output().is_ok_and(|out| out.status.success());
    let trial = match there {
        true => Trial::test(title, move || {
            openai(&python);
            Ok(())
        }),
        false => Trial::test(format!("{title} (skipped: no openai in .venv; run ./check python)"), || Ok(())).with_ignored_flag(true),
    };
    libtest_mimic::run(&arguments, vec![trial]).exit();
}

fn openai(python: &Path) {
    let folder = tiny::folder();
    let keys = folder.path().join("keys");
    // The SHA-256 of "secret".
    std::fs::write(&keys, "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").unwrap();
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.keys = Keys::open(&keys).unwrap();
    config.limits.drain_delay = std::time::Duration::ZERO;
    let handle = Server::start(config, Some(tiny::model_with(folder.path(), |_| {})), Some(Arc::new(Parrot::default()))).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/openai_client.py");
    let out = Command::new(python).arg(script).arg(format!("http://{}/v1", handle.addr())).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut reference = tiny::Reference::new(folder.path());
    let bits = |vector: &Value| vector.as_array().unwrap().iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect::<Vec<u32>>();
    for (name, adapter) in [("tiny", None), ("left", Some("left"))] {
        for (text, vector) in ["w1 w2", "w3"].iter().zip(told["vectors"][name].as_array().unwrap()) {
            assert_eq!(bits(vector), reference.of(text, adapter), "{text} of {name}");
        }
    }
    handle.drain();
    assert_eq!(handle.ledger().open(), 0);
    handle.wait();
}
