//! The steps that `scripts/gpu.sh` runs on a machine with a GPU: what the table says of each, and who gets how much of the time.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The table, whether the status is 0, and the seconds, of a stage that plans so.
fn stage(name: &str, plan: &str, budget: Option<u32>) -> (String, bool, u64) {
    chosen(name, &[], plan, budget)
}

/// The same of the steps that `words` name.
fn chosen(name: &str, words: &[&str], plan: &str, budget: Option<u32>) -> (String, bool, u64) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("stage.sh");
    std::fs::write(&script, format!("set -uo pipefail\nsource scripts/gpu/steps.sh\n{plan}\ncarry_out\n")).unwrap();
    let mut command = Command::new("bash");
    command.arg(&script).args(words).current_dir(root).env("OUT", folder.join("out")).env("ARCHIVES", folder.join("archives")).env_remove("BUDGET");
    if let Some(budget) = budget {
        command.env("BUDGET", budget.to_string());
    }
    let clock = Instant::now();
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(folder.join("out/stage/table.txt")).unwrap(), said);
    let listed = Command::new("tar").arg("-tzf").arg(folder.join("archives/stage.tar.gz")).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("stage/table.txt"), "the archive holds the table");
    (said, output.status.success(), clock.elapsed().as_secs())
}

/// Whether the table has a row of this name with this word.
fn told(table: &str, name: &str, word: &str) -> bool {
    table.lines().any(|line| line.strip_prefix(&format!("{name:22} ")).is_some_and(|rest| rest.starts_with(&format!("{word:12} "))))
}

#[test]
fn each_step_has_a_word() {
    let plan = "plan good 20 echo 'test result: ok. 3 passed'
        beside empty 20 echo 'test result: ok. 0 passed; 0 failed; 1 ignored'
        beside bad 20 sh -c 'echo error: no such thing; exit 1'
        beside part 20 sh -c 'echo summary: 2 of 3 parts; exit 75'
        skipped absent 'no weights'
        plan hangs 1 sleep 60
        plan after 20 true";
    let (table, success, seconds) = stage("words", plan, None);
    for (name, word) in
        [("good", "passed"), ("empty", "failed"), ("bad", "failed"), ("part", "cut short"), ("absent", "skipped"), ("hangs", "cut short"), ("after", "passed")]
    {
        assert!(told(&table, name, word), "{name}: {table}");
    }
    assert!(!success && seconds < 30, "{seconds} s");
    let reasons = ["test result: ok. 3 passed", "error: no such thing", "summary: 2 of 3 parts", "no weights"];
    assert!(reasons.iter().all(|reason| table.contains(reason)), "{table}");
    assert!(table.contains("2 passed, 2 failed, 2 cut short, 0 not reached, 1 skipped"), "{table}");
}

#[test]
fn the_first_steps_have_the_time() {
    let plan = "plan quick 10 true
        plan long 100 sleep 100
        plan beyond 1 true";
    let (table, success, seconds) = stage("budget", plan, Some(4));
    assert!(told(&table, "quick", "passed") && told(&table, "long", "cut short"), "{table}");
    assert!(told(&table, "beyond", "not reached") && !success, "{table}");
    assert!(seconds < 20, "{seconds} s");
}

#[test]
fn words_name_one_step_or_those_that_begin_so() {
    let plan = "plan attention 20 echo passed
        plan attention-sm80 20 echo passed
        plan golden-f16 20 echo passed
        beside golden-f32 20 echo passed
        skipped embed 'no weights'
        skipped embed-peers 'no weights'";
    let (table, success, _) = chosen("chosen", &["attention", "golden"], plan, None);
    for (name, runs) in [("attention", true), ("attention-sm80", false), ("golden-f16", true), ("golden-f32", true), ("embed", false)] {
        assert_eq!(table.contains(&format!("{name:22} ")), runs, "{name}: {table}");
    }
    assert!(success && table.contains("3 passed, 0 failed, 0 cut short, 0 not reached, 0 skipped"), "{table}");
    let (table, ..) = chosen("chosen-skipped", &["embed", "attention-"], plan, None);
    assert!(table.contains("1 passed, 0 failed, 0 cut short, 0 not reached, 1 skipped"), "{table}");
}

#[test]
fn a_step_that_passes_is_success() {
    let (table, success, _) = stage("success", "plan one 20 sh -c 'echo $SECONDS_ALL seconds'\nbeside other 5 sh -c 'echo $SECONDS_ALL seconds'", Some(100));
    assert!(success && table.contains("20 seconds") && table.contains("5 seconds"), "{table}");
}
