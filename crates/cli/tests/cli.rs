//! The command line from outside: exit status, the JSON object, what goes to which stream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(all(unix, feature = "serve"))]
#[path = "cli/attention_load.rs"]
mod attention_load;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/bench_reports.rs"]
mod bench_reports;
#[path = "cli/bundle.rs"]
mod bundle;
#[path = "cli/compress.rs"]
mod compress;
#[path = "cli/demo.rs"]
mod demo;
#[path = "cli/documented.rs"]
mod documented;
#[cfg(unix)]
#[path = "cli/engine.rs"]
mod engine;
#[path = "cli/hostile.rs"]
mod hostile;
#[cfg(unix)]
#[path = "cli/hunt.rs"]
mod hunt;
#[path = "cli/inspect.rs"]
mod inspect;
#[path = "cli/kernels.rs"]
mod kernels;
#[path = "cli/load.rs"]
mod load;
#[cfg(all(unix, feature = "serve"))]
#[path = "cli/operations.rs"]
mod operations;
#[cfg(all(unix, feature = "serve"))]
mod served;
#[path = "cli/shrunk.rs"]
mod shrunk;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/verify.rs"]
mod verify;

use std::io::Read;
use std::process::{Output, Stdio};

use support::{err, object, out, population, run, scratch, text, trifuse};

#[test]
fn help_names_every_command_and_the_exit_statuses() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    for word in [
        "devices",
        "demo",
        "compress",
        "decompress",
        "bundle",
        "inspect",
        "verify",
        "bench",
        "kernels",
        "completions",
        "--backend",
        "--json",
        "--color",
        "--quiet",
        "4 bad input",
    ] {
        assert!(out(&output).contains(word), "{word} is not in the help:\n{}", out(&output));
    }
    assert!(out(&run(&["--version"])).starts_with("trifuse "));
}

#[test]
fn wrong_use_is_status_2_and_prints_nothing_to_standard_output() {
    for arguments in [&["nonsense"][..], &[], &["devices", "--backend", "abacus"], &["devices", "--backend", "cpu:x"], &["completions", "klingon"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    let said = err(&run(&["devices", "--backend", "abacus"]));
    assert!(said.contains("abacus") && said.contains("wgpu"), "neither what was found nor what was expected: {said}");
}

#[test]
fn a_folder_is_refused_as_the_output_of_embed_before_the_model_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["embed", "--model", "no/such/model", "-o", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("expected the name of a file, found a folder"), "{}", err(&output));
}

#[test]
fn an_input_is_refused_as_the_output_before_anything_is_done() {
    let folder = scratch();
    let [lines, report] = ["lines.jsonl", "report.json"].map(|name| folder.path().join(name));
    for path in [&lines, &report] {
        std::fs::write(path, "as it was").unwrap();
    }
    let (lines_text, report_text) = (text(&lines), text(&report));
    let [adapter, model] = ["adapter/adapter_model.safetensors", "model/model.safetensors"].map(|name| folder.path().join(name));
    for path in [&adapter, &model] {
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(path, "as it was").unwrap();
    }
    let (adapter_text, model_text) = (text(&adapter), text(&model));
    let [adapter_folder, model_folder] = [&adapter, &model].map(|path| text(path.parent().unwrap()));
    let redirected = || trifuse(&["embed", "--model", "no/such/model", "-o", lines_text]).stdin(std::fs::File::open(&lines).unwrap()).output().unwrap();
    let mut refused = vec![
        run(&["embed", lines_text, "--model", "no/such/model", "-o", lines_text]),
        run(&["embed", "--adapters", lines_text, "--model", "no/such/model", "-o", lines_text]),
        run(&["compress", &population("C"), "--calibration", lines_text, "-o", lines_text, "--force"]),
        run(&["bench", "report", report_text, "--markdown", report_text]),
        run(&["embed", "--adapters", adapter_folder, "--model", "no/such/model", "-o", adapter_text]),
        run(&["embed", "--model", model_folder, "-o", model_text]),
        run(&["compress", adapter_folder, "-o", adapter_text, "--force"]),
        run(&["compress", &population("C"), "--calibrate", lines_text, "--model", model_folder, "-o", model_text, "--force"]),
    ];
    if cfg!(target_os = "linux") {
        refused.push(redirected());
    }
    for output in refused {
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains("would be lost"), "{}", err(&output));
    }
    for path in [lines, report, adapter, model] {
        assert_eq!(std::fs::read(path).unwrap(), b"as it was");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_could_not_be_printed_is_no_success() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [["--help"], ["--version"]] {
        assert_eq!(trifuse(&arguments).stdout(full()).status().unwrap().code(), Some(4), "{arguments:?}");
    }
}

#[test]
fn devices_lists_every_backend_with_devices_or_a_reason() {
    let output = run(&["devices", "--json"]);
    let value = object(&output, "devices");
    let backends = value["backends"].as_array().unwrap();
    let names: Vec<&str> = backends.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cuda", "wgpu", "cpu"]);
    for entry in backends {
        let count = entry["devices"].as_array().unwrap().len();
        assert_eq!(entry["available"].as_bool().unwrap(), count > 0, "{entry}");
        assert_eq!(entry["reason"].is_string(), count == 0, "{entry}");
    }
    // A chosen device is one of the list; with none the status says so.
    match value["chosen"].as_object() {
        Some(chosen) => {
            assert_eq!(output.status.code(), Some(0));
            let entry = backends.iter().find(|entry| entry["name"] == chosen["backend"]).unwrap();
            assert!((chosen["device"].as_u64().unwrap() as usize) < entry["devices"].as_array().unwrap().len());
            assert!(!chosen["why"].as_str().unwrap().is_empty());
        }
        None => {
            assert_eq!(output.status.code(), Some(3));
            assert!(value["missing"].is_string());
        }
    }
}

#[test]
fn devices_says_the_same_to_people() {
    let value = object(&run(&["devices", "--json"]), "devices");
    let page = out(&run(&["devices"]));
    for entry in value["backends"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        match entry["reason"].as_str() {
            Some(reason) => assert!(page.contains(&format!("no {name}: {reason}")), "{page}"),
            None => assert!(page.contains(&format!("{name}:0")), "{page}"),
        }
    }
    assert!(page.contains("chosen:") || page.contains("nothing to run on:"), "{page}");
}

#[test]
fn a_backend_that_is_not_there_is_status_3() {
    let value = object(&run(&["devices", "--json"]), "devices");
    for entry in value["backends"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let there = entry["available"].as_bool().unwrap();
        assert_eq!(run(&["devices", "--backend", name]).status.code(), Some(if there { 0 } else { 3 }), "{name}");
        let output = run(&["devices", "--backend", &format!("{name}:99"), "--json"]);
        assert_eq!(output.status.code(), Some(3), "{name}:99");
        assert!(object(&output, "devices")["chosen"].is_null());
    }
    let by_environment = trifuse(&["devices"]).env("TRIFUSE_BACKEND", "cpu:99").output().unwrap();
    assert_eq!(by_environment.status.code(), Some(3));
}

#[test]
fn colour_only_where_it_is_wanted() {
    let escape = |output: &Output| out(output).contains('\x1b');
    assert!(!escape(&run(&["devices"])), "a pipe is no terminal");
    assert!(!escape(&run(&["devices", "--color", "never"])));
    assert!(escape(&run(&["devices", "--color", "always"])));
    let painted = run(&["inspect", &population("A"), "--color", "always"]);
    assert!(escape(&painted), "other commands colour too");
    assert!(err(&run(&["inspect", "no/such/place", "--color", "always"])).starts_with("\x1b[1;31merror:"));
    assert!(err(&run(&["inspect", "no/such/place"])).starts_with("error: "));
    let plain = trifuse(&["devices", "--color", "auto"]).env("NO_COLOR", "1").output().unwrap();
    assert!(!escape(&plain));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{shell}: {}", err(&output));
        assert!(out(&output).contains("devices"), "{shell}");
    }
    let refused = run(&["completions", "bash", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(object(&refused, "completions")["error"]["exit_status"], 2);
    assert!(err(&refused).starts_with("error: "));
}

#[test]
fn help_shows_every_command_in_use_and_completions_know_values() {
    let help = out(&run(&["help"]));
    for command in ["devices", "demo", "compress", "decompress", "bundle", "inspect", "embed", "verify", "bench", "kernels", "completions"] {
        let page = out(&run(&["help", command]));
        assert!(help.contains(command) && page.contains(&format!("Examples:\n  trifuse {command}")), "{page}");
    }
    let script = out(&run(&["completions", "bash"]));
    for value in ["auto cuda wgpu cpu", "f16 bf16 f32", "llama2-7b llama2-13b llama2-70b"] {
        assert!(script.contains(value), "{value} is no value that bash completes");
    }
    assert_eq!(run(&["devices", "--backend", "cpu:0"]).status.code(), Some(0), "a device that no list shows");
}

#[test]
fn a_closed_pipe_is_no_fault() {
    let adapters = population("A");
    let commands = [&["completions", "bash"][..], &["devices"], &["devices", "--json"], &["inspect", &adapters], &["inspect", &adapters, "--json"]];
    for arguments in commands {
        let mut child = trifuse(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The reader goes before anything is written, as `| head -0` would.
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert!(matches!(status.code(), Some(0 | 3)), "{arguments:?}: {status}: {said}");
    }
}
