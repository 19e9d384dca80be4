//! Files and names from strangers: told of, and fit to be shown.

use serde_json::json;

use crate::support::{err, files, object, out, population, run, scratch, text, trifuse};

#[test]
fn a_file_that_is_no_case_is_a_row_and_the_others_are_run() {
    let folder = scratch();
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");
    let sound: Vec<String> = files(vectors.as_ref()).into_iter().filter(|name| name.starts_with("linear")).collect();
    for name in &sound {
        std::fs::copy(format!("{vectors}/{name}"), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("a_junk.safetensors"), b"junk").unwrap();
    std::fs::create_dir(folder.path().join("b_folder.safetensors")).unwrap();
    let arguments = ["verify", "--backend", "cpu", "--vectors", text(folder.path())];
    let output = run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    let value = object(&output, "verify");
    assert_eq!((value["totals"]["refused"].as_u64(), value["totals"]["passed"].as_u64()), (Some(2), Some(sound.len() as u64)));
    let refused = value["cases"].as_array().unwrap().iter().filter(|case| case["results"][0]["status"] == "refused");
    let why: Vec<&str> = refused.map(|case| case["results"][0]["why"].as_str().unwrap()).collect();
    assert!(why.iter().any(|why| why.contains("a_junk")) && why.iter().any(|why| why.contains("b_folder")), "{why:?}");
    let page = out(&run(&arguments));
    assert!(page.contains("a_junk.safetensors") && page.contains("2 refused"), "{page}");
}

#[test]
fn what_a_file_says_of_itself_does_nothing_to_the_terminal() {
    let folder = scratch();
    let code = "\u{1b}]0;PWNED\u{7}\u{1b}[2J";
    let mut config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4 });
    config[code] = json!(code);
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let header = json!({ code: { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } }).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
    for color in ["never", "always"] {
        let output = run(&["inspect", "--all", text(folder.path()), "--color", color]);
        let said = out(&output) + &err(&output);
        assert!(said.contains("\\u{1b}]0;PWNED") && !said.contains("\u{1b}]") && !said.contains('\u{7}') && !said.contains("\u{1b}[2J"), "{said:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_name_that_json_cannot_hold_is_refused_before_anything_is_written() {
    use std::os::unix::ffi::OsStrExt;
    let folder = scratch();
    let name = folder.path().join(std::ffi::OsStr::from_bytes(b"out\xff.s2lc"));
    let output = trifuse(&["compress", &population("B"), "--json", "-o"]).arg(&name).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("--json") && files_are_none(folder.path()), "{}", err(&output));
}

#[cfg(unix)]
fn files_are_none(folder: &std::path::Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let folder = scratch();
    let pipe = folder.path().join("config.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let model = run(&["embed", "--model", text(folder.path()), "--backend", "cpu", "-o", text(&folder.path().join("x.jsonl"))]);
    let report = run(&["bench", "compare", text(&pipe), text(&pipe)]);
    for output in [model, report] {
        assert_eq!(output.status.code(), Some(4), "{}", err(&output));
        assert!(err(&output).contains("a device or a pipe"), "{}", err(&output));
    }
}

#[test]
fn adapters_of_two_shapes_are_the_files_fault() {
    let folder = scratch();
    for (name, width) in [("one", 4usize), ("two", 5)] {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("adapter_config.json"), json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4 }).to_string()).unwrap();
        let [a, b] = [8 * width, 24];
        let header = json!({
            "q.lora_A.weight": { "dtype": "F32", "shape": [2, width], "data_offsets": [0, a] },
            "q.lora_B.weight": { "dtype": "F32", "shape": [3, 2], "data_offsets": [a, a + b] },
        });
        let values: Vec<u8> = (0..(a + b) / 4).flat_map(|i| (i as f32 * 0.1 + 0.1).to_le_bytes()).collect();
        let header = header.to_string();
        std::fs::write(place.join("adapter_model.safetensors"), [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat()).unwrap();
    }
    let output = run(&["compress", text(folder.path()), "-o", text(&folder.path().join("x.s2lc"))]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("two") && err(&output).contains("another model"), "{}", err(&output));
}

#[test]
fn pictures_are_there_all_or_none() {
    let folder = scratch();
    let report = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/reports/attention.json");
    // The second has no place.
    std::fs::create_dir(folder.path().join("attention-length.svg")).unwrap();
    let output = run(&["bench", "report", report, "--pictures", text(folder.path())]);
    assert_eq!((output.status.success(), files(folder.path())), (false, vec!["attention-length.svg".to_owned()]), "{}", err(&output));
}
