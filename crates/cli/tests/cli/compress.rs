//! `compress` and `decompress`: what they write, and that they write nothing where they fail.

use std::path::Path;

use crate::support::{err, files, object, population, run, scratch, text, trifuse};
use trifuse::adapters::peft::{Lora, LoraAdapter};

/// ⟨D, E⟩ / (|D| |E|) of two changes of a weight, each in full.
fn cosine(d: &Lora, e: &Lora) -> f64 {
    let delta = |lora: &Lora| -> Vec<f64> {
        let (a, b) = (&lora.a, &lora.b);
        let element = |row: usize, col: usize| (0..a.rows).map(|k| f64::from(b.at(row, k)) * f64::from(a.at(k, col))).sum::<f64>();
        (0..b.rows).flat_map(|row| (0..a.cols).map(move |col| (row, col))).map(|(row, col)| f64::from(lora.scaling) * element(row, col)).collect()
    };
    let (d, e) = (delta(d), delta(e));
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    dot(&d, &e) / (dot(&d, &d) * dot(&e, &e)).sqrt()
}

#[test]
fn the_way_there_and_back_is_what_the_certificates_say() {
    let folder = scratch();
    let (bundle, decoded) = (folder.path().join("b.s2lc"), folder.path().join("decoded"));
    let output = run(&["compress", &population("B"), "-o", text(&bundle), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let compressed = object(&output, "compress");
    assert_eq!(files(folder.path()), ["b.s2lc"]);

    // Bytes are those of the file, header and bases included, against the factors alone.
    let size = std::fs::metadata(&bundle).unwrap().len();
    let before = 3 * 36 * 2 * 8 * (384 + 384) + 3 * 12 * 2 * 8 * (1536 - 384);
    assert_eq!((compressed["file_bytes"].as_u64(), compressed["bytes_before"].as_u64()), (Some(size), Some(before)));
    assert!((compressed["ratio"].as_f64().unwrap() - size as f64 / before as f64).abs() < 1e-12);
    let own: u64 = compressed["adapters"].as_array().unwrap().iter().map(|adapter| adapter["bytes"].as_u64().unwrap()).sum();
    assert_eq!(own + compressed["shared_bytes"].as_u64().unwrap() + compressed["header_bytes"].as_u64().unwrap(), size);

    let inspected = object(&run(&["inspect", text(&bundle), "--json"]), "inspect");
    assert_eq!(inspected["kind"], "bundle");
    assert_eq!(inspected["adapters"], compressed["adapters"], "the file says what compress said");
    assert_eq!(inspected["projections"].as_array().unwrap().len(), 36);

    let output = run(&["decompress", text(&bundle), "-o", text(&decoded), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(object(&output, "decompress")["adapters"].as_array().unwrap().len(), 3);
    for adapter in inspected["adapters"].as_array().unwrap() {
        let name = adapter["name"].as_str().unwrap();
        let (original, back) = (LoraAdapter::open(Path::new(&population("B")).join(name)).unwrap(), LoraAdapter::open(decoded.join(name)).unwrap());
        let claims = adapter["projections"].as_array().unwrap();
        assert_eq!(claims.len(), original.modules.len());
        for claim in claims.iter().step_by(7) {
            let path = claim["path"].as_str().unwrap();
            let claimed = claim["certificate"]["cos_delta"].as_f64().unwrap();
            let found = cosine(&original.modules[path], &back.modules[path]);
            assert!((claimed - found).abs() < 1e-6, "{name} {path}: {claimed} claimed, {found} found");
        }
    }
}

#[test]
fn what_is_asked_is_met_or_nothing_is_written() {
    let folder = scratch();
    let bundle = folder.path().join("c.s2lc");
    let kept = object(&run(&["compress", &population("C"), "-o", text(&bundle), "--min-cosine", "0.99", "--json"]), "compress");
    assert!(kept["cos_delta_min"].as_f64().unwrap() >= 0.99, "{kept}");
    assert_eq!(kept["warnings"].as_array().unwrap().len(), 0);
    std::fs::remove_file(&bundle).unwrap();

    for asked in [&["--rank", "1", "--min-cosine", "0.99"][..], &["--max-ratio", "0.001"], &["--min-cosine", "0.9999", "--max-ratio", "0.2"]] {
        let output = run(&[&["compress", &population("C"), "-o", text(&bundle), "--json"], asked].concat());
        assert_eq!(output.status.code(), Some(1), "{asked:?}: {}", err(&output));
        let message = object(&output, "compress")["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("asked for") && message.contains("reached"), "{message}");
        assert!(files(folder.path()).is_empty(), "{asked:?} left {:?}", files(folder.path()));
    }
}

#[test]
fn a_ratio_bounds_the_whole_file_and_may_be_said_either_way() {
    let folder = scratch();
    let made = ["0.125", "8"].map(|ratio| {
        let bundle = folder.path().join(ratio);
        let kept = object(&run(&["compress", &population("A"), "-o", text(&bundle), "--max-ratio", ratio, "--json"]), "compress");
        let size = std::fs::metadata(&bundle).unwrap().len();
        assert_eq!(kept["file_bytes"].as_u64(), Some(size));
        let share = size as f64 / kept["bytes_before"].as_u64().unwrap() as f64;
        assert!(share <= 0.125 && share > 0.12, "{share}");
        std::fs::read(bundle).unwrap()
    });
    assert!(made[0] == made[1]);

    let output = run(&["compress", &population("A"), "-o", text(&folder.path().join("no")), "--max-ratio", "1000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("certificates cannot shrink") && err(&output).contains("1000.") && files(folder.path()).len() == 2, "{}", err(&output));
}

#[test]
fn what_would_be_left_out_of_account_is_refused() {
    let folder = scratch();
    // A bundle is read again when it is written, which standard output cannot be.
    let output = trifuse(&["compress", &population("C"), "-o", "-"]).current_dir(folder.path()).output().unwrap();
    assert_eq!((output.status.code(), files(folder.path()).len()), (Some(2), 0), "{}", err(&output));
    let bundle = folder.path().join("c.s2lc");
    let output = run(&["compress", &population("C"), "-o", text(&bundle), "--calibrate-rows", "64"]);
    assert!(output.status.code() == Some(2) && err(&output).contains("--calibrate"), "{}", err(&output));
}

#[test]
fn projections_without_activations_are_named() {
    let folder = scratch();
    let bundle = folder.path().join("a.s2lc");
    let activations = format!("{}/data/calibration.safetensors", env!("CARGO_MANIFEST_DIR"));
    let asked = ["compress", &population("A"), "-o", text(&bundle), "--calibration", &activations, "--force"];
    let kept = object(&run(&[&asked[..], &["--json"]].concat()), "compress");
    let missing: Vec<&str> = kept["uncalibrated"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    assert_eq!(missing.len(), 24, "layers 1 to 4 of six: {missing:?}");
    assert!(missing.iter().all(|path| !path.contains("layer.0.") && !path.contains("layer.5.")), "{missing:?}");
    for projection in kept["adapters"][0]["projections"].as_array().unwrap() {
        let (absent, certificate) = (missing.contains(&projection["path"].as_str().unwrap()), &projection["certificate"]);
        assert_eq!(certificate["calibrated"].as_bool(), Some(!absent), "{projection}");
        assert_eq!(certificate["output_error_held_out"].is_null(), absent, "{projection}");
    }
    let page = String::from_utf8(run(&asked).stdout).unwrap();
    assert!(page.contains("24 projections are NOT calibrated") && page.contains("encoder.layer.1.attention.self.query"), "{page}");

    let without = object(&run(&["compress", &population("A"), "-o", text(&bundle), "--force", "--json"]), "compress");
    assert_eq!(without["uncalibrated"].as_array().map(Vec::len), Some(0), "nothing is missing where nothing was asked");
}

/// The binary with files of at most `blocks` of 512 bytes (of 1,024 to some shells): a disk that is full.
#[cfg(unix)]
fn on_a_full_disk(blocks: usize, arguments: &[&str]) -> std::process::Output {
    let limit = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    std::process::Command::new("sh").args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_trifuse")]).args(arguments).output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_a_typed_error_and_leaves_nothing() {
    let folder = scratch();
    let (bundle, decoded) = (folder.path().join("c.s2lc"), folder.path().join("decoded"));
    let output = on_a_full_disk(64, &["compress", &population("C"), "-o", text(&bundle), "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(object(&output, "compress")["error"]["message"].as_str().unwrap().contains("c.s2lc"));
    assert!(files(folder.path()).is_empty(), "{:?}", files(folder.path()));

    assert!(run(&["compress", &population("C"), "-o", text(&bundle), "-q"]).status.success());
    let whole = std::fs::read(&bundle).unwrap();
    let output = on_a_full_disk(64, &["decompress", text(&bundle), "-o", text(&decoded), "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("decoded/r4_rust/adapter_model.safetensors: cannot write"), "{}", err(&output));
    assert_eq!(files(folder.path()), ["c.s2lc"]);
    // A file that is to be replaced stays as it was.
    let output = on_a_full_disk(64, &["compress", &population("A"), "-o", text(&bundle), "--force"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(std::fs::read(&bundle).unwrap() == whole && files(folder.path()) == ["c.s2lc"]);
}

#[test]
fn a_form_that_keeps_little_says_so() {
    let folder = scratch();
    let bundle = folder.path().join("a.s2lc");
    let output = run(&["compress", &population("A"), "-o", text(&bundle), "--rank", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("the weights are NOT kept") && page.contains("--min-cosine 0.99") && page.contains("--calibration"), "{page}");
    assert!(page.contains("times smaller") && page.contains("apache_french"), "{page}");
}

#[test]
fn a_fifth_of_the_bytes_where_nothing_is_asked() {
    let folder = scratch();
    let kept = |name: &str, more: &[&str]| {
        let bundle = folder.path().join(name);
        object(&run(&[&["compress", &population("A"), "-o", text(&bundle), "--json"], more].concat()), "compress")
    };
    let (usual, asked, published) = (kept("usual", &[]), kept("asked", &["--max-ratio", "5"]), kept("published", &["--published"]));
    assert!(usual["ratio"].as_f64().unwrap() <= 0.2 && usual["file_bytes"] == asked["file_bytes"], "{usual}");
    let cosine = |kept: &serde_json::Value| kept["cos_delta_mean"].as_f64().unwrap();
    assert!(cosine(&usual) > cosine(&published), "{} and {}", cosine(&usual), cosine(&published));
    assert!(published["adapters"].as_array().unwrap().iter().all(|adapter| adapter["rungs"].get("shared_input").is_some_and(|count| count == 36)));
    let both = run(&["compress", &population("A"), "-o", text(&folder.path().join("no")), "--published", "--rank", "4"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn what_a_reader_must_know_is_said() {
    let folder = scratch();
    let copy = |name: &str, from: &str, to: &str| {
        let (source, place) = (Path::new(&population("C")).join("r4_rust"), folder.path().join(name));
        std::fs::create_dir(&place).unwrap();
        std::fs::copy(source.join("adapter_model.safetensors"), place.join("adapter_model.safetensors")).unwrap();
        let config = std::fs::read_to_string(source.join("adapter_config.json")).unwrap();
        assert!(config.contains(from));
        std::fs::write(place.join("adapter_config.json"), config.replace(from, to)).unwrap();
        text(&place).to_owned()
    };
    let said = |adapters: &[&str], name: &str| {
        let bundle = folder.path().join(name);
        let output = run(&[&["compress", "-o", text(&bundle), "--json"], adapters].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        object(&output, "compress")["warnings"].to_string()
    };
    let plain = format!("{}/r4_rust", population("C"));
    assert!(said(&[&plain], "lone").contains("a lone adapter"));
    let other = copy("other", "\"base_model_name_or_path\": \"", "\"base_model_name_or_path\": \"elsewhere/");
    let warned = said(&[&plain, &other], "bases");
    assert!(warned.contains("different base models") && warned.contains("(other)") && !warned.contains("a lone adapter"), "{warned}");
    let unknown = copy("unknown", "\"bias\": \"none\"", "\"bias\": \"none\", \"use_quantum\": true");
    assert!(said(&[&unknown], "key").contains("use_quantum (unknown)"));
    // The name of the folder, or the one that is given.
    let named = format!("mine={plain}");
    let output = run(&["compress", &plain, &named, "-o", text(&folder.path().join("named")), "--json"]);
    let names: Vec<String> = object(&output, "compress")["adapters"].as_array().unwrap().iter().map(|adapter| adapter["name"].to_string()).collect();
    assert_eq!(names, ["\"mine\"", "\"r4_rust\""]);
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let folder = scratch();
    let made: Vec<Vec<u8>> = [("one", "7"), ("two", "7")]
        .iter()
        .map(|(name, seed)| {
            let bundle = folder.path().join(name);
            assert!(run(&["compress", &population("C"), "-o", text(&bundle), "--seed", seed, "-q"]).status.success());
            std::fs::read(bundle).unwrap()
        })
        .collect();
    assert!(made[0] == made[1]);
}

#[test]
fn a_file_is_replaced_only_by_force() {
    let folder = scratch();
    let bundle = folder.path().join("c.s2lc");
    std::fs::write(&bundle, "mine").unwrap();
    let refused = run(&["compress", &population("C"), "-o", text(&bundle)]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("--force"), "{}", err(&refused));
    assert_eq!(std::fs::read(&bundle).unwrap(), b"mine");
    // A failure leaves the old file, force or not.
    let missed = run(&["compress", &population("C"), "-o", text(&bundle), "--force", "--rank", "1", "--min-cosine", "0.99"]);
    assert_eq!(missed.status.code(), Some(1));
    assert_eq!(std::fs::read(&bundle).unwrap(), b"mine");
    assert!(run(&["compress", &population("C"), "-o", text(&bundle), "--force"]).status.success());
    assert!(std::fs::metadata(&bundle).unwrap().len() > 1000);
    assert_eq!(files(folder.path()), ["c.s2lc"]);
}

#[test]
fn options_without_meaning_are_status_2() {
    let folder = scratch();
    let bundle = folder.path().join("c.s2lc");
    let wrong: [&[&str]; 12] = [
        &["--min-cosine", "2"],
        &["--min-cosine", "-1"],
        &["--min-cosine", "nan"],
        &["--energy", "0"],
        &["--rank", "0"],
        &["--rank", "4", "--energy", "0.9"],
        &["--bits", "4", "--width", "4"],
        &["--bits", "9"],
        &["--width", "5"],
        &["--max-ratio", "-1"],
        &["--max-ratio", "0"],
        &["--held-out", "x.safetensors"],
    ];
    for options in wrong {
        let output = run(&[&["compress", &population("C"), "-o", text(&bundle)], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", err(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    let negative = err(&run(&["compress", &population("C"), "-o", text(&bundle), "--max-output-error", "-1"]));
    assert!(negative.contains("above 0 and below 1, found -1"), "{negative}");
    assert_eq!(run(&["compress", &population("C"), "-o", text(folder.path())]).status.code(), Some(2), "a folder is no file");
    assert_eq!(run(&["compress", "-o", text(&bundle)]).status.code(), Some(2), "no adapters");
    assert!(files(folder.path()).is_empty());
}

#[test]
fn adapters_that_cannot_be_used_are_status_4() {
    let folder = scratch();
    let bundle = folder.path().join("out.s2lc");
    let make = |name: &str, files: &[(&str, &[u8])]| {
        let adapter = folder.path().join(name);
        std::fs::create_dir(&adapter).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(adapter.join(file), bytes).unwrap());
        text(&adapter).to_owned()
    };
    let source = Path::new(&population("C")).join("r4_rust");
    let [config, tensors] = ["adapter_config.json", "adapter_model.safetensors"].map(|file| std::fs::read(source.join(file)).unwrap());
    let dora = String::from_utf8(config.clone()).unwrap().replace("\"use_dora\": false", "\"use_dora\": true");
    assert!(dora.contains("\"use_dora\": true"));
    let bad = [
        (folder.path().join("absent").to_str().unwrap().to_owned(), "absent"),
        (format!("{}/adapter_config.json", source.display()), "found a file"),
        (make("empty", &[]), "adapter_config.json"),
        (make("pickle", &[("adapter_config.json", &config), ("adapter_model.bin", b"\x80\x02}")]), "safe_serialization"),
        (make("cut", &[("adapter_config.json", &config), ("adapter_model.safetensors", &tensors[..tensors.len() - 9])]), "adapter_model.safetensors"),
        (make("dora", &[("adapter_config.json", dora.as_bytes()), ("adapter_model.safetensors", &tensors)]), "use_dora"),
        (make("config", &[("adapter_config.json", b"{"), ("adapter_model.safetensors", &tensors)]), "adapter_config.json"),
    ];
    let before = files(folder.path());
    for (adapter, named) in &bad {
        let output = run(&["compress", adapter, "-o", text(&bundle), "--json"]);
        assert_eq!(output.status.code(), Some(4), "{adapter}: {}", err(&output));
        let message = object(&output, "compress")["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(named), "{adapter}: {message}");
    }
    // Two of one name, a place that is not there, and calibration that is not.
    let twice = format!("{}/rust", population("A"));
    assert_eq!(run(&["compress", &twice, &population("B"), "-o", text(&bundle)]).status.code(), Some(4));
    let nowhere = run(&["compress", &population("C"), "-o", text(&folder.path().join("no/where.s2lc"))]);
    assert!(nowhere.status.code() == Some(4) && err(&nowhere).contains("no/where.s2lc: cannot write: there is no folder"), "{}", err(&nowhere));
    assert_eq!(run(&["compress", &population("C"), "-o", text(&bundle), "--calibration", "absent.safetensors"]).status.code(), Some(4));
    assert_eq!(files(folder.path()), before);
}

#[test]
fn decompress_writes_whole_folders_or_none() {
    let folder = scratch();
    let bundle = folder.path().join("b.s2lc");
    assert!(run(&["compress", &population("B"), "-o", text(&bundle), "--rank", "4", "-q"]).status.success());
    let at = |name: &str| folder.path().join(name);

    let one = run(&["decompress", text(&bundle), "-o", text(&at("one")), "--adapter", "rust", "--adapter", "rust", "--dtype", "f16"]);
    assert_eq!(one.status.code(), Some(0), "{}", err(&one));
    assert_eq!(files(&at("one")), ["rust"]);
    assert_eq!(files(&at("one/rust")), ["adapter_config.json", "adapter_model.safetensors"]);
    let back = LoraAdapter::open(at("one/rust")).unwrap();
    assert!(back.modules.values().all(|lora| lora.dtype == trifuse::DType::F16));

    let unknown = run(&["decompress", text(&bundle), "-o", text(&at("two")), "--adapter", "rust", "--adapter", "fortran"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("fortran") && err(&unknown).contains("sqlite"), "{}", err(&unknown));
    assert_eq!(run(&["decompress", text(&bundle), "-o", text(&at("one"))]).status.code(), Some(2), "it holds something");
    assert_eq!(run(&["decompress", text(&at("absent")), "-o", text(&at("two"))]).status.code(), Some(4));
    let nowhere = run(&["decompress", text(&bundle), "-o", text(&at("no/where"))]);
    assert!(nowhere.status.code() == Some(4) && err(&nowhere).contains("no/where: cannot write: there is no folder"), "{}", err(&nowhere));
    let taken = err(&run(&["decompress", text(&bundle), "-o", text(&bundle)]));
    assert!(taken.contains("found something else of that name"), "{taken}");

    // A flipped bit anywhere: in the header, and in the last adapter, when others have been decoded already.
    let bytes = std::fs::read(&bundle).unwrap();
    for place in [40, bytes.len() - 5] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        std::fs::write(at("damaged.s2lc"), damaged).unwrap();
        let output = run(&["decompress", text(&at("damaged.s2lc")), "-o", text(&at("two")), "--json"]);
        assert_eq!(output.status.code(), Some(4), "{}", err(&output));
        assert!(object(&output, "decompress")["error"]["message"].as_str().unwrap().contains("damaged"), "{}", err(&output));
        assert_eq!(run(&["inspect", text(&at("damaged.s2lc"))]).status.code(), Some(4));
    }
    assert_eq!(files(folder.path()), ["b.s2lc", "damaged.s2lc", "one"]);
}
