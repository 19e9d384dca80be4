//! Programs of others against this server: OpenAI's and Triton's libraries for Python and a tester of descriptions, from `.venv`, which `./check python`
//! makes; and a browser, which `./check browser` installs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use support::client::Client;
use support::parrot::Parrot;
use support::tiny;
use tempfile::TempDir;
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse_serve::operations::{Operate, OperationsModel, Operator};
use trifuse_serve::{Config, Handle, Keys, Models, Opened, Server};

fn main() {
    let arguments = Arguments::from_args();
    let python = || Command::new(at("../../.venv/bin/python"));
    let runs = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
    let has = |modules: &str| runs(python().args(["-c", &format!("import {modules}")]));
    let browser = runs(Command::new("chromedriver").arg("--version")) && runs(Command::new("python3").arg("--version"));
    let trials = vec![
        trial("openai-python embeds, writes and streams", has("openai, numpy"), "no openai in .venv; run ./check python", openai),
        trial("tritonclient asks encoders and attention, with shared memory", has("tritonclient.http"), "no tritonclient in .venv; run ./check python", triton),
        #[cfg(feature = "grpc")]
        trial("tritonclient asks over gRPC", has("tritonclient.grpc"), "no tritonclient with gRPC in .venv; run ./check python", triton_grpc),
        trial("schemathesis finds the description true", has("schemathesis"), "no schemathesis in .venv; run ./check python", description),
        trial("a browser shows the page and tries sentences and chats", browser, "no chromedriver; run ./check browser", page),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(title: &str, there: bool, missing: &str, run: fn()) -> Trial {
    match there {
        true => Trial::test(title, move || {
            run();
            Ok(())
        }),
        false => Trial::test(format!("{title} (skipped: {missing})"), || Ok(())).with_ignored_flag(true),
    }
}

/// A path from this package's root.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What a program prints, which must end well.
fn output(command: &mut Command) -> Vec<u8> {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// A server of an encoder and of a stand-in for a language model.
fn server(parrot: Parrot, set: impl FnOnce(&mut Config), change: impl FnOnce(&mut Opened) + Send + 'static) -> (TempDir, Handle) {
    let folder = tiny::folder();
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.limits.drain_delay = std::time::Duration::ZERO;
    set(&mut config);
    let handle = Server::start(config, Some(tiny::model_with(folder.path(), change)), Some(Arc::new(parrot))).unwrap();
    (folder, handle)
}

fn end(handle: Handle) {
    handle.drain();
    assert_eq!(handle.ledger().open(), 0);
    handle.wait();
}

fn openai() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    // The SHA-256 of "secret".
    std::fs::write(keys.path(), "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").unwrap();
    let (folder, handle) = server(Parrot::default(), |config| config.keys = Keys::open(keys.path()).unwrap(), |_| {});
    let script = at("tests/peers/openai_client.py");
    let told = output(Command::new(at("../../.venv/bin/python")).arg(script).arg(format!("http://{}/v1", handle.addr())));
    let told: Value = serde_json::from_slice(&told).unwrap();
    let mut reference = tiny::Reference::new(folder.path());
    for (name, adapter) in [("tiny", None), ("left", Some("left"))] {
        for (text, vector) in ["w1 w2", "w3"].iter().zip(told["vectors"][name].as_array().unwrap()) {
            assert_eq!(bits(vector), reference.of(text, adapter), "{text} of {name}");
        }
    }
    end(handle);
}

/// The seconds that the description is tried for.
const TRIED: &str = "25";

fn description() {
    let (folder, handle) = server(Parrot { bounded: true, ..Parrot::default() }, |_| {}, |_| {});
    let url = format!("http://{}", handle.addr());
    let mut description = Client::to(handle.addr()).unwrap().get("/openapi.json").json();
    // Drawn names would be of no model, and nothing behind them would be tried.
    for (schema, names) in [
        ("Embed", ["tiny", "left", "right", "nobody"]),
        ("Complete", ["parrot", "loud", "parrot:loud", "tiny"]),
        ("Chat", ["parrot", "loud", "parrot:loud", "tiny"]),
    ] {
        description["components"]["schemas"][schema]["properties"]["model"] = json!({"enum": names});
    }
    // A deadline of a millisecond passes in the queue, and its 504 is right.
    for path in description["paths"].as_object_mut().unwrap().values_mut() {
        for method in path.as_object_mut().unwrap().values_mut() {
            if let Some(parameters) = method.get_mut("parameters").and_then(Value::as_array_mut) {
                parameters.retain(|parameter| parameter["name"] != "x-request-timeout-ms");
            }
        }
    }
    let file = folder.path().join("described.json");
    std::fs::write(&file, description.to_string()).unwrap();
    let seed = std::env::var("TRIFUSE_TURN").unwrap_or_else(|_| "0".into());
    let mut command = Command::new(at("../../.venv/bin/schemathesis"));
    command.current_dir(folder.path()).arg("run").arg(file).args([
        "--url",
        &url,
        "--seed",
        &seed,
        "--max-time",
        TRIED,
        "--phases",
        "examples,coverage,fuzzing",
    ]);
    // Values that fit one by one may not fit each other, and are refused then.
    command.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--request-timeout", "10", "--generation-database", "none", "--no-color"]);
    println!("{}", String::from_utf8_lossy(&output(&mut command)));
    end(handle);
}

fn page() {
    // A name as somebody may give it who wants the page to run it.
    let odd = |opened: &mut Opened| opened.adapters[1].alias = "<img src=x onerror=alert(1)>".into();
    let (_folder, handle) = server(Parrot::default(), |_| {}, odd);
    let mut command = Command::new("python3");
    command.arg(at("tests/peers/browser.py")).arg(format!("http://{}/", handle.addr()));
    // Pictures of it, for who wants to look.
    if let Some(folder) = std::env::var_os("TRIFUSE_PICTURES") {
        command.arg(folder);
    }
    println!("{}", String::from_utf8(output(&mut command)).unwrap());
    end(handle);
}

/// The bits of a vector of numbers.
fn bits(vector: &Value) -> Vec<u32> {
    vector.as_array().unwrap().iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect()
}

/// A server of an encoder and of operations.
fn operations(set: impl FnOnce(&mut Config)) -> (TempDir, Handle) {
    let folder = tiny::folder();
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.limits.drain_delay = std::time::Duration::ZERO;
    set(&mut config);
    let open = || -> trifuse::Result<Box<dyn Operate>> { Ok(Box::new(Operator::new(Arc::new(Cpu::open(0)?))?)) };
    let operations = OperationsModel { device: "cpu:0".into(), open: Box::new(open), region_bytes: 1 << 20 };
    let models = Models { embeddings: Some(tiny::model_with(folder.path(), |_| {})), operations: Some(operations), ..Models::default() };
    let handle = Server::serve(config, models).unwrap();
    (folder, handle)
}

/// Runs a script of Triton's client, whose vectors must be the library's.
fn asks(script: &str, addr: std::net::SocketAddr, folder: &Path) {
    let told = output(Command::new(at("../../.venv/bin/python")).arg(at(script)).arg(addr.to_string()));
    let told: Value = serde_json::from_slice(&told).unwrap();
    let mut reference = tiny::Reference::new(folder);
    for (name, adapter) in [("tiny", None), ("left", Some("left"))] {
        for (ids, vector) in [&[0, 4, 5, 1][..], &[0, 7, 1]].iter().zip(told[name].as_array().unwrap()) {
            assert_eq!(bits(vector), reference.of_ids(ids, adapter), "{ids:?} of {name}");
        }
    }
}

fn triton() {
    let (folder, handle) = operations(|config| config.client_shm = true);
    asks("tests/peers/triton_client.py", handle.addr(), folder.path());
    end(handle);
}

#[cfg(feature = "grpc")]
fn triton_grpc() {
    let (folder, handle) = operations(|config| config.grpc_listen = Some(([127, 0, 0, 1], 0).into()));
    asks("tests/peers/triton_grpc_client.py", handle.grpc_addr().unwrap(), folder.path());
    end(handle);
}
