//! `bench hunt` on a processor: ledgers, peers that are told what to say, and a run that is interrupted.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{err, object, out, run, scratch, text, trifuse};

const HUNT: [&str; 9] = ["bench", "hunt", "--backend", "cpu", "--dtype", "f32", "--seed", "3", "--json"];
/// A peer that takes a second or a nanosecond for everything.
const FAST: &str = r#"read -r hello; echo '{"peer":"fake 1","device":"nothing"}'
while read -r line; do
  name=${line#*'"name":"'}
  echo "{\"name\":\"${name%%\"*}\",\"peers\":[{\"peer\":\"slow\",\"cold\":{\"median\":1.0}},{\"peer\":\"fast\",\"cold\":{\"median\":1e-9}},{\"peer\":\"none\",\"why\":\"no kernel\"}]}"
done"#;

fn lines(ledger: &Path) -> Vec<Value> {
    std::fs::read_to_string(ledger).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn hunt(ledger: &Path, more: &[&str]) -> Output {
    run(&[&HUNT[..], &["--suite", "linear", "--ledger", text(ledger)], more].concat())
}

/// A hunt by a peer that `/bin/sh` is.
fn beside(ledger: &Path, script: &str, more: &[&str]) -> Output {
    let path: PathBuf = ledger.with_extension("sh");
    std::fs::write(&path, script).unwrap();
    hunt(ledger, &[&["--peers", "/bin/sh", "--peer-script", text(&path)], more].concat())
}

#[test]
fn a_ledger_is_continued_and_a_line_that_was_cut_off_is_measured_again() {
    let folder = scratch();
    let ledger = folder.path().join("ledger.jsonl");
    let mut first = Value::Null;
    for known in 1..=2 {
        // A run begins with a shape that is drawn.
        let output = hunt(&ledger, &["--shapes", "1"]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        first = object(&output, "bench");
        assert_eq!((&first["measured"], &first["known"], &first["complete"], &first["against"]), (&1.into(), &known.into(), &true.into(), &"configs".into()));
    }
    assert!(first["peer"].is_null() && first["faults"].as_array().unwrap().is_empty() && first["launch_seconds"].as_f64() > Some(0.0), "{first}");
    let whole = lines(&ledger);
    for line in &whole {
        let number = |field: &str| line[field].as_f64().unwrap_or_else(|| panic!("{field} in {line}"));
        assert!((number("ours") / number("theirs") / number("ratio") - 1.0).abs() < 1e-9 && number("ratio") >= 1.0 && number("predicted") > 0.0);
        assert!(line["variant"].is_string() && line["peer"].is_string() && line["op"] == "linear" && line["drawn"]["seed"] == 3, "{line}");
    }
    // In the middle of the second line.
    let written = std::fs::read_to_string(&ledger).unwrap();
    std::fs::write(&ledger, &written[..written.len() - 40]).unwrap();
    let output = hunt(&ledger, &["--shapes", "1"]);
    assert!(output.status.success() && err(&output).contains("cut off"), "{}", err(&output));
    let again = lines(&ledger);
    assert_eq!((again.len(), &again[0], &again[1]["name"]), (2, &whole[0], &whole[1]["name"]));
    // Of another device nothing is compared, and shapes are drawn from the start.
    std::fs::write(&ledger, std::fs::read_to_string(&ledger).unwrap().replace("\"device\":\"", "\"device\":\"another ")).unwrap();
    let other = object(&hunt(&ledger, &["--shapes", "1"]), "bench");
    assert_eq!((&other["of_others"], &other["known"]), (&2.into(), &1.into()));
    assert_eq!((lines(&ledger).len(), &lines(&ledger)[2]["name"]), (3, &whole[0]["name"]));
}

#[test]
fn a_loss_to_a_peer_is_told_and_followed() {
    let folder = scratch();
    let ledger = folder.path().join("ledger.jsonl");
    let output = beside(&ledger, FAST, &["--shapes", "6"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let told = object(&output, "bench");
    assert_eq!((&told["peer"]["peer"], &told["against"], &told["measured"], &told["lost"]), (&"fake 1".into(), &"peers".into(), &6.into(), &6.into()));
    assert!(err(&output).contains("fake 1 measures on nothing"), "{}", err(&output));
    let lines = lines(&ledger);
    assert!(lines.iter().all(|line| line["peer"] == "fast" && line["theirs"] == 1e-9 && line["ratio"].as_f64() > Some(1.0)));
    assert!(lines.iter().any(|line| line["near"].is_string()), "sizes near a loss are tried");
    let page = beside(&ledger, FAST, &["--shapes", "1"]);
    assert!(page.status.success());
    // A page for people.
    let plain: Vec<&str> = HUNT.into_iter().filter(|word| *word != "--json").collect();
    let script = ledger.with_extension("sh");
    let page = run(&[&plain[..], &["--suite", "linear", "--peers", "/bin/sh", "--peer-script", text(&script), "--shapes", "1"]].concat());
    assert!(out(&page).contains("worst ratios") && out(&page).contains("as long as fake 1"), "{}", out(&page));
}

#[test]
fn a_peer_that_fails_is_an_error_that_names_it_and_the_next_run_goes_on_behind_it() {
    let folder = scratch();
    let hello = "read -r hello; echo '{\"peer\":\"fake\",\"device\":\"none\"}'; read -r line;";
    for (number, (script, said)) in [
        ("exit 3", "ended with exit status: 3"),
        ("read -r hello; echo nonsense", "expected its name and its device"),
        (&*format!("{hello} echo 'no such kernel' >&2; exit 1"), "its last words: no such kernel"),
        (&*format!("{hello} kill -9 $$"), "signal: 9"),
        (&*format!("{hello} echo '[1, 2]'; exec sleep 60"), "expected times of m"),
        (&*format!("{hello} echo '{{\"name\":\"other\",\"peers\":[]}}'; exec sleep 60"), "another shape"),
        (&*format!("{hello} yes | tr -d '\\n'"), "more than"),
        (&*format!("{hello} exec sleep 60"), "within 1s (--peer-limit)"),
        ("exec sleep 60", "an answer about the first line within 1s"),
    ]
    .into_iter()
    .enumerate()
    {
        let ledger = folder.path().join(format!("{number}.jsonl"));
        let began = Instant::now();
        let output = beside(&ledger, script, &["--shapes", "1", "--peer-limit", "1"]);
        let error = err(&output);
        assert!(output.status.code() == Some(2) && error.contains(said), "{script}: {error}");
        assert!(error.contains("the peer `/bin/sh ") && error.contains(&format!("{number}.sh")), "{error}");
        assert!(began.elapsed() < Duration::from_secs(50), "{script}: it was waited for");
        if script.starts_with(hello) {
            let failed = &lines(&ledger)[0];
            assert!(failed["fault"] == true && failed["ratio"].is_null() && failed["why"].as_str().unwrap().contains(said), "{failed}");
            let output = beside(&ledger, FAST, &["--shapes", "1"]);
            assert_eq!(output.status.code(), Some(1), "the fault is told again: {}", err(&output));
            assert_eq!((lines(&ledger).len(), &lines(&ledger)[1]["drawn"]["number"]), (2, &1.into()));
        }
    }
    let output = hunt(&folder.path().join("x"), &["--peers", "/bin/sh", "--peer-script", "no/such.py"]);
    assert!(output.status.code() == Some(4) && err(&output).contains("no/such.py"), "{}", err(&output));
    let output = beside(&folder.path().join("y.jsonl"), "true", &["--peers", "no/such/python"]);
    assert!(output.status.code() == Some(2), "given twice: {}", err(&output));
}

#[test]
fn a_peer_that_has_no_kernel_is_no_fault() {
    let folder = scratch();
    let ledger = folder.path().join("ledger.jsonl");
    let script = FAST.replace(r#"{\"peer\":\"slow\",\"cold\":{\"median\":1.0}},{\"peer\":\"fast\",\"cold\":{\"median\":1e-9}},"#, "");
    let output = beside(&ledger, &script, &["--shapes", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let line = &lines(&ledger)[0];
    assert!(line["why"] == "none: no kernel" && line["ratio"].is_null() && line["fault"] == false, "{line}");
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    let folder = scratch();
    let ledger = folder.path().join("ledger.jsonl");
    let child =
        trifuse(&[&HUNT[..], &["--suite", "linear", "--ledger", text(&ledger)]].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !std::fs::read_to_string(&ledger).is_ok_and(|text| text.lines().count() > 0) {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing was measured");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    let told = object(&output, "bench");
    let kept = lines(&ledger);
    assert!(told["complete"] == false && told["measured"] == kept.len() && told["budget_seconds"] == 600.0, "{told}");
}

#[test]
fn the_budget_ends_a_hunt_and_what_is_no_ledger_is_left_alone() {
    let folder = scratch();
    let ledger = folder.path().join("ledger.jsonl");
    let began = Instant::now();
    let told = object(&hunt(&ledger, &["--budget", "0.001"]), "bench");
    assert!(told["measured"] == 0 && told["complete"] == true && began.elapsed() < Duration::from_secs(120));
    std::fs::write(&ledger, "Dear diary\n").unwrap();
    let output = hunt(&ledger, &[]);
    assert!(output.status.code() == Some(4) && err(&output).contains("line 1: expected a line of a ledger"), "{}", err(&output));
    assert_eq!(std::fs::read_to_string(&ledger).unwrap(), "Dear diary\n");
    for wrong in [&["--suite", "layer"][..], &["--budget", "0"], &["--shapes", "0"], &["--peer-limit", "1"], &["--profile", "no/such.json"]] {
        let code = hunt(&folder.path().join("z"), wrong).status.code();
        assert!(code == Some(2) || code == Some(4), "{wrong:?}: {code:?}");
    }
}
