//! Fuzzing with the stable compiler: every subject of `fuzz/subjects` for some seconds. It knows no branches of the program, as libFuzzer
//! does; it keeps the inputs that got an answer of a new sort, and changes those too.
//!
//! As a test it shows that planted faults are found, and that inputs which were findings once are none today. `cargo test --all-features --test fuzz -- run --seconds 5` fuzzes;
//! `-- run --help` tells the options.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(unix)]
mod command;
mod finding;
mod known;
mod memory;
#[path = "../mutate/mod.rs"]
mod mutate;
mod options;
mod planted;
mod race;
#[path = "../subjects/mod.rs"]
mod subjects;

use std::process::ExitCode;
use std::time::Duration;

use options::Options;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "run") {
        return match Options::parse(&arguments[1..]) {
            Ok(options) => fuzz(&options),
            Err(problem) => {
                eprintln!("{problem}\n{}", options::USAGE);
                ExitCode::from(2)
            }
        };
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    // What the process holds, and its time, are counted for all threads together.
    arguments.test_threads = Some(1);
    let mut trials = planted::trials();
    trials.extend(known::trials());
    #[cfg(unix)]
    trials.extend(command::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn fuzz(options: &Options) -> ExitCode {
    // Inputs are small: to hand their parts to other threads takes longer than they do.
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
    let mut findings = 0;
    for subject in subjects::ALL.iter().filter(|subject| options.target.as_ref().is_none_or(|name| subject.name == name)) {
        if let Some(path) = &options.input {
            let answer = race::check(subject, &std::fs::read(path).unwrap(), &race::LIMITS);
            println!(
                "{}: {}",
                subject.name,
                answer.as_ref().map_or_else(ToString::to_string, |seen| seen.answer.clone().map_or_else(|why| why, |()| "taken".into()))
            );
            findings += usize::from(answer.is_err());
            continue;
        }
        let tally = race::run(subject, options, &race::LIMITS);
        println!("{:<17} {tally}", subject.name);
        for (number, found) in &tally.findings {
            let path = options.found.join(format!("{}-{}-{number}", subject.name, options.seed));
            std::fs::create_dir_all(&options.found).and_then(|()| std::fs::write(&path, &found.input)).unwrap();
            println!("  input {number}: {found}\n    again: cargo test --all-features --test fuzz -- run --target {} --input {}", subject.name, path.display());
        }
        findings += tally.findings.len();
    }
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a subject is fuzzed for where nothing is said.
const SECONDS: Duration = Duration::from_secs(5);
