//! The command on the model that the subjects use, which is small enough to be made for each test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use tempfile::TempDir;
use trifuse::adapters::bundle::write;
use trifuse::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Population, SharedProjection};

use super::subjects::{Model, support};

/// What waits for the command to get somewhere gives up after this.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T = ()> = std::result::Result<T, Failed>;

fn must(holds: bool, told: impl std::fmt::Debug) -> Result {
    if holds { Ok(()) } else { Err(format!("{told:?}").into()) }
}

fn trifuse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn told(output: &Output) -> String {
    format!("{:?} {} {}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the command on some lines.
fn embed(model: &Path, more: &[&str], lines: &str) -> Output {
    let mut child = trifuse(["embed", "--backend", "cpu", "--model", text(model)].into_iter().chain(more.iter().copied())).spawn().unwrap();
    // What is refused at once ends before it reads.
    let written = child.stdin.take().unwrap().write_all(lines.as_bytes());
    assert!(written.as_ref().map_or_else(|error| error.kind() == std::io::ErrorKind::BrokenPipe, |()| true), "{written:?}");
    child.wait_with_output().unwrap()
}

/// Every file that a model names is an input, also one that only `modules.json` leads to.
fn no_file_of_a_model_is_written_over() -> Result {
    let model = Model::new();
    let inputs = ["config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"];
    for name in inputs {
        let path = model.folder().join(name);
        let before = std::fs::read(&path).unwrap();
        let output = embed(model.folder(), &["-o", text(&path), "--format", "jsonl"], "{\"text\": \"hello\"}\n");
        must(output.status.code() == Some(2) && std::fs::read(&path).unwrap() == before, (name, told(&output)))?;
    }
    Ok(())
}

/// A bundle of adapters of the model, small ones.
fn bundle(folder: &TempDir, count: usize) -> PathBuf {
    let path = "encoder.layer.0.attention.self.query".to_owned();
    let some = support::population(0);
    let certificate = some.adapters.values().flat_map(|adapter| adapter.projections.values()).next().unwrap().certificate.clone();
    let plain = || EncodedFactor::Plain(Matrix::new(8, 1, vec![half::f16::ONE; 8]).unwrap());
    let projection = EncodedProjection { input: plain(), core: None, output: plain(), scaling: 1.0, certificate };
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1 });
    let adapter = EncodedAdapter { config, projections: [(path.clone(), projection)].into() };
    let shared = SharedProjection { d_in: 8, d_out: 8, input_bases: vec![], output_bases: vec![] };
    let adapters = (0..count).map(|number| (format!("customer-{number:05}"), adapter.clone())).collect();
    let file = folder.path().join("adapters.s2lc");
    write(&file, &Population { projections: [(path, shared)].into(), adapters }).unwrap();
    file
}

/// Neither does a line cost the names of all adapters, nor does a stranger learn them.
fn a_line_with_an_unknown_adapter_tells_few_names() -> Result {
    let (model, folder) = (Model::new(), TempDir::new().unwrap());
    let bundle = bundle(&folder, 300);
    let lines = format!("{}\n{{\"text\": \"hello\", \"adapter\": \"customer-00007\"}}\n", json!({ "text": "a", "adapter": "x".repeat(100_000) }));
    let output = embed(model.folder(), &["--adapters", text(&bundle)], &lines);
    let rows: Vec<Value> = output.stdout.split(|&byte| byte == b'\n').filter(|row| !row.is_empty()).map(|row| serde_json::from_slice(row).unwrap()).collect();
    let why = rows[0]["error"].as_str().unwrap_or_default();
    must(why.matches("customer-").count() == 5 && why.contains("295 more"), why)?;
    must(rows.len() == 2 && rows[1]["embedding"].is_array() && output.stdout.len() + output.stderr.len() < 150_000, told(&output).len())
}

/// Waits for a temporary file or folder beside the output.
fn until_begun(child: &mut Child, folder: &Path) -> Result {
    let began = Instant::now();
    while !names(folder).iter().any(|name| name.starts_with(".trifuse-")) {
        must(child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE, "it ended, or has not begun to write")?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// SIGTERM, as service managers send it, ends the work as Ctrl-C does; what SIGKILL leaves is in nobody's way.
fn a_run_that_is_ended_leaves_nothing() -> Result {
    let model = Model::new();
    for (name, status) in [("TERM", Some(130)), ("INT", Some(130)), ("KILL", None)] {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("out.jsonl");
        std::fs::write(&file, "before").unwrap();
        let arguments = ["embed", "--backend", "cpu", "--model", text(model.folder()), "-o", text(&file), "--window", "4"];
        let mut child = trifuse(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Lines until it ends: there is always one more to come.
        let writer = std::thread::spawn(move || while stdin.write_all(b"{\"text\": \"hello world\"}\n").is_ok() {});
        until_begun(&mut child, folder.path())?;
        signal(&child, name);
        let found = child.wait().unwrap();
        writer.join().unwrap();
        must(found.code() == status && std::fs::read(&file).unwrap() == b"before", (name, found))?;
        must(name == "KILL" || names(folder.path()) == ["out.jsonl"], (name, names(folder.path())))?;
        let again = embed(model.folder(), &["-o", text(&file)], "{\"text\": \"hello\"}\n");
        must(again.status.success() && std::fs::read(&file).unwrap().starts_with(b"{"), told(&again))?;
    }
    Ok(())
}

/// The same of a folder that was empty before, which only its owner could clear otherwise.
fn a_folder_that_a_run_was_killed_in_can_be_filled() -> Result {
    let folder = TempDir::new().unwrap();
    let (bundle, place) = (bundle(&folder, 3000), folder.path().join("adapters"));
    for (name, status) in [("TERM", Some(130)), ("KILL", None)] {
        std::fs::create_dir_all(&place).unwrap();
        let mut child = trifuse(["decompress", text(&bundle), "-o", text(&place)]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until_begun(&mut child, &place)?;
        signal(&child, name);
        let found = child.wait().unwrap();
        must(found.code() == status && (name == "KILL" || names(&place).is_empty()), (name, found, names(&place).len()))?;
    }
    let again = trifuse(["decompress", text(&bundle), "-o", text(&place), "--adapter", "customer-00001"]).output().unwrap();
    let seen: Vec<String> = names(&place).into_iter().filter(|name| !name.starts_with('.')).collect();
    must(again.status.success() && seen == ["customer-00001"], (told(&again), seen))
}

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("no_file_of_a_model_is_written_over", no_file_of_a_model_is_written_over),
        Trial::test("a_line_with_an_unknown_adapter_tells_few_names", a_line_with_an_unknown_adapter_tells_few_names),
        Trial::test("a_run_that_is_ended_leaves_nothing", a_run_that_is_ended_leaves_nothing),
        Trial::test("a_folder_that_a_run_was_killed_in_can_be_filled", a_folder_that_a_run_was_killed_in_can_be_filled),
    ]
}
