//! `embed`, `serve` and `compress --calibrate`, run as a user runs them, on the processor.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;
use serde_json::{Value, json};
use trifuse::safetensors_file::TensorFile;

use super::support::{Golden, model, root};

pub fn trials() -> Vec<Trial> {
    let tests: &[(&str, fn())] = &[
        ("embed takes each line by itself, in its order", lines),
        ("embed refuses a line without a token, and no other", tokenless),
        ("embed writes arrays", arrays),
        ("embed leaves nothing of a file where it is interrupted", interrupted),
        #[cfg(all(unix, feature = "serve"))]
        ("serve answers as embed writes, and ends at a signal", super::serve::answers_as_embed_writes),
        ("compress --calibrate runs the model over text", calibrated),
        ("get_minilm.sh sees a file that is not the one it means", fetched),
    ];
    tests
        .iter()
        .map(|&(name, test)| {
            Trial::test(name, move || {
                test();
                Ok(())
            })
            .with_kind("command")
        })
        .collect()
}

pub fn trifuse(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).args(["--backend", "cpu"]).env_remove("TRIFUSE_BACKEND");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // A run that refuses its arguments reads no input.
    let _ = writer.join().unwrap();
    output
}

pub fn text(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn lines() {
    let golden = Golden::open();
    let population = text(&root().join("crates/cli/data/adapters/A"));
    let mut input = Vec::new();
    let asked = [None, Some("rust"), Some("apache_french")];
    for (number, sentence) in golden.sentences.iter().enumerate() {
        let adapter = asked[number % 3];
        writeln!(input, "{}", json!({"text": sentence, "adapter": adapter, "id": number})).unwrap();
    }
    let long = "word ".repeat(500);
    for bad in ["".to_owned(), "{\"text\": \"\"}".into(), "{\"text\": \"a\", \"adapter\": \"nobody\"}".into(), json!({"text": long}).to_string()] {
        writeln!(input, "{bad}").unwrap();
    }
    input.extend_from_slice(b"{\"text\": \"\xff\"}\n");
    let output = trifuse(&["embed", "--model", &text(&model()), "--adapters", &population, "--window", "5"], &input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("13 lines, 5 refused"), "{errors}");
    let found: Vec<Value> = String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), 13);
    for (number, line) in found[..8].iter().enumerate() {
        let expected = golden.embeddings(match asked[number % 3] {
            None => "base",
            Some("rust") => "A/rust",
            Some(_) => "A/apache_french",
        });
        assert_eq!((line["line"].as_u64(), line["tokens"].as_u64()), (Some(number as u64 + 1), Some(golden.ids[number].len() as u64)));
        let values: Vec<f64> = line["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
        let off = values.iter().zip(&expected[number * 384..]).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
        assert!(values.len() == 384 && off <= 1e-5, "line {number}: {off:e}");
    }
    for (line, word) in found[8..].iter().zip(["empty line", "at least one word", "nobody", "at most 128 tokens", "UTF-8"]) {
        assert!(line["error"].as_str().unwrap().contains(word) && line.get("embedding").is_none(), "{line}");
    }
}

/// A tokenizer that sets no marks at the ends leaves nothing of a text that its normalizer drops whole.
fn tokenless() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(model().join(file), folder.path().join(file)).unwrap();
    }
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(model().join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["post_processor"] = Value::Null;
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let output = trifuse(&["embed", "--model", &text(folder.path())], "{\"text\": \"\u{200b}\"}\n{\"text\": \"word\"}\n".as_bytes());
    let found: Vec<Value> = String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((output.status.code(), found.len()), (Some(4), 2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(found[0]["error"].as_str().unwrap().contains("at least one token") && found[1]["tokens"] == 1, "{found:?}");
}

fn arrays() {
    let golden = Golden::open();
    let folder = tempfile::tempdir().unwrap();
    let input: String = golden.sentences.iter().map(|sentence| format!("{}\n", json!({"text": sentence}))).collect();
    let npy = folder.path().join("out.npy");
    let status = |arguments: &[&str]| {
        let output = trifuse(arguments, input.as_bytes());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    status(&["embed", "--model", &text(&model()), "-o", &text(&npy)]);
    let tensors = folder.path().join("out.safetensors");
    let report = status(&["embed", "--model", &text(&model()), "-o", &text(&tensors), "--dtype", "f16", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!((report["lines"].as_u64(), report["refused"].as_u64(), report["dtype"].as_str()), (Some(8), Some(0), Some("f16")));
    let expected = golden.embeddings("base");
    let bytes = std::fs::read(npy).unwrap();
    let values: Vec<f32> = bytes[bytes.len() - expected.len() * 4..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let halves = TensorFile::open(tensors).unwrap().floats("embeddings").unwrap();
    assert_eq!(halves.1, [8, 384]);
    for (found, most) in [(values, 1e-5), (halves.2, 2e-3)] {
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= most));
    }
}

fn calibrated() {
    let folder = tempfile::tempdir().unwrap();
    // Text of the repository itself, in the order of its files: the last quarter is of other files than the rest.
    let documents = ["README.md", "docs/kernels.md", "docs/kernels/linear.md"];
    let lines: String = documents.iter().map(|name| std::fs::read_to_string(root().join(name)).unwrap()).collect();
    let lines: String = lines.lines().filter(|line| line.split_whitespace().count() > 4 && !line.starts_with('{')).map(|line| format!("{line}\n")).collect();
    let file = folder.path().join("text");
    std::fs::write(&file, lines).unwrap();
    let population = text(&root().join("crates/cli/data/adapters/A"));
    let bundle = text(&folder.path().join("a.s2lc"));
    let output = trifuse(&["compress", &population, "-o", &bundle, "--rank", "4", "--calibrate", &text(&file), "--model", &text(&model()), "--json"], b"");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let adapters = report["adapters"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert!(adapters.len() == 4 && adapters.iter().all(|adapter| adapter["output_error_held_out"].as_f64().is_some_and(|error| error > 0.0 && error < 1.0)));
    let lonely = trifuse(&["compress", &population, "-o", &bundle, "--calibrate", &text(&file)], b"");
    assert_eq!(lonely.status.code(), Some(2));
    let few = ["compress", &population, "-o", &bundle, "--force", "--calibrate", &text(&file), "--model", &text(&model()), "--calibrate-rows", "7"];
    let few = trifuse(&few, b"");
    assert_eq!(few.status.code(), Some(2), "{}", String::from_utf8_lossy(&few.stderr));
}

fn fetched() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        std::os::unix::fs::symlink(model().join(file), folder.path().join(file)).unwrap();
    }
    let run = || {
        let script = Command::new("sh").arg(root().join("scripts/get_minilm.sh")).arg(folder.path()).env("PYTHON", "false").output().unwrap();
        (script.status.success(), String::from_utf8(script.stderr).unwrap())
    };
    let config = folder.path().join("config.json");
    std::fs::copy(model().join("config.json"), &config).unwrap();
    let (right, told) = run();
    assert!(right, "{told}");
    std::fs::write(&config, "{}").unwrap();
    let (right, told) = run();
    assert!(!right && told.contains("config.json: expected SHA-256"), "{told}");
}

fn interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.jsonl");
    std::fs::write(&file, "before").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(["embed", "--model", &text(&model()), "-o", &text(&file), "--window", "4", "--backend", "cpu", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Lines until it ends: there is always one more to come.
    let writer = std::thread::spawn(move || while writeln!(stdin, "{}", json!({"text": "word ".repeat(100)})).is_ok() {});
    while std::fs::read_dir(folder.path()).unwrap().count() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["error"]["exit_status"].as_u64()), (Some(130), Some(130)), "{report}");
    assert_eq!((std::fs::read(&file).unwrap(), std::fs::read_dir(folder.path()).unwrap().count()), (b"before".to_vec(), 1));
}
