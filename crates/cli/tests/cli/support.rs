//! Running the binary.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A run of the binary in an environment that decides nothing.
pub fn trifuse(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).env_remove("TRIFUSE_BACKEND").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

pub fn run(arguments: &[&str]) -> Output {
    trifuse(arguments).output().unwrap()
}

pub fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one object on standard output, its envelope checked.
pub fn object(output: &Output, command: &str) -> Value {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("not one JSON object: {error}: {} {}", out(output), err(output)));
    assert_eq!(value["schema_version"], 1);
    assert_eq!(value["command"], command);
    value
}

/// An empty folder that goes when it is dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The folder of a population of real adapters.
pub fn population(name: &str) -> String {
    format!("{}/data/adapters/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The names in a folder, hidden ones too, sorted.
pub fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
