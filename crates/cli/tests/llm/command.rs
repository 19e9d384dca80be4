//! `generate` and `chat`, run as a user runs them, on the processor.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;
use serde_json::Value;

use super::backends::ignored;
use super::support::{NO_WEIGHTS, root, weights};

pub fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 5] = [
        ("generate goes on with a text and tells its times", generated),
        ("generate gives a seed's text, and ends before a stop text", drawn),
        ("chat keeps what was said", talked),
        ("generate answers by an adapter", by_adapter),
        ("generate ends cleanly where it is interrupted", interrupted),
    ];
    let there = weights().is_file();
    let trial = |(name, test): (&str, fn())| {
        if !there {
            return ignored(format!("{name}: {NO_WEIGHTS}"));
        }
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    tests.map(trial).into_iter().map(|trial| trial.with_kind("command")).collect()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).args(["--backend", "cpu", "--model"]).arg(weights()).env_remove("TRIFUSE_BACKEND");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn trifuse(arguments: &[&str], input: &str) -> Output {
    let mut child = command(arguments).spawn().unwrap();
    // A run that refuses its arguments reads no input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

fn generated() {
    let output = trifuse(&["generate", "The largest planet in the Solar System is", "--max-tokens", "8"], "");
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(0), " Jupiter, but it's not the only\n"), "{err}");
    assert!(err.contains(" s from the start to the first token: device 0."), "{err}");
    assert!(err.contains("8 tokens read, the first chosen after") && err.contains("8 in all, f32 on cpu; cut at its length"), "{err}");
    let output = trifuse(&["generate", "-", "--max-tokens", "3", "--json"], "The largest planet in the Solar System is");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((found["text"].as_str(), found["finish"].as_str(), found["tokens"].as_u64()), (Some(" Jupiter, but"), Some("length"), Some(3)));
    let empty = trifuse(&["generate", ""], "");
    assert!(empty.status.code() == Some(2) && texts(&empty).1.contains("at least one token"));
}

fn drawn() {
    let run =
        |seed: &str| texts(&trifuse(&["generate", "Once upon a time", "--max-tokens", "12", "--temperature", "1", "--top-p", "0.9", "--seed", seed], "")).0;
    let (one, again, other) = (run("1"), run("1"), run("2"));
    assert!(one == again && one != other && one.len() > 10, "{one:?} {other:?}");
    let output = trifuse(&["generate", "The largest planet in the Solar System is", "--max-tokens", "20", "--stop", "it's"], "");
    assert_eq!(texts(&output).0, " Jupiter, but \n");
}

fn talked() {
    let output = trifuse(&["chat", "--max-tokens", "16"], "What is the capital of France?\n\n/new\nWhat is the capital of France?\nAnd of Italy?\n");
    let (out, err) = texts(&output);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(lines.len() >= 3 && lines[0] == "The capital of France is Paris." && lines[1] == lines[0], "{out}");
    let read: Vec<&str> = err.lines().filter_map(|line| line.split_once(" tokens read").map(|(count, _)| count)).collect();
    // Of what was said nothing is read again but the last page; the third turn adds a question alone.
    assert!(read.len() == 3 && read[0] == "37" && read[1] == "5" && read[2].parse::<u32>().unwrap() < 41, "{err}");
}

fn by_adapter() {
    let data = root().join("tests/data/smollm2");
    let at = |name: &str| data.join(name).to_str().unwrap().to_owned();
    let say = |more: &[&str]| trifuse(&[&["generate", "And it came to pass in those days, that", "--max-tokens", "5"], more].concat(), "");
    let text = |more: &[&str]| texts(&say(more)).0;
    let (folder, bundle) = (at("kjv-r8-common"), at("adapters-0.99.s2lc"));
    // One needs no name; of many one is asked for.
    let (alone, with) = (text(&[]), text(&["--adapters", &folder]));
    assert!(with != alone && with == text(&["--adapters", &bundle, "--adapter", "kjv-r8-common"]), "{with}");
    let refused = say(&["--adapters", &bundle]);
    assert!(refused.status.code() == Some(2) && texts(&refused).1.contains("one of c4-r4-common"), "{}", texts(&refused).1);
}

fn interrupted() {
    let mut child = command(&["generate", "Once upon a time", "--max-tokens", "4000"]).spawn().unwrap();
    let mut first = [0; 16];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.code() == Some(130) && out.ends_with('\n') && err.contains("; interrupted"), "{err}");
}
