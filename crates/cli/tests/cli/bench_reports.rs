//! What is made of reports: comparisons, tables, pictures; and a run that is interrupted.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::bench::measured;
use crate::support::{err, files, object, out, run, scratch, text, trifuse};

fn stored(folder: &Path, name: &str, report: &Value) -> String {
    let path = folder.join(name);
    std::fs::write(&path, serde_json::to_vec(report).unwrap()).unwrap();
    text(&path).to_owned()
}

/// Every time of a report, longer.
fn slowed(report: &Value, factor: f64) -> Value {
    let mut slow = report.clone();
    for result in slow["results"].as_array_mut().unwrap() {
        for caches in ["cold", "warm"] {
            let times = result[caches].as_object_mut().unwrap();
            let longer = |time: &mut Value| *time = (time.as_f64().unwrap() * factor).into();
            ["mean", "min", "max", "median", "p95", "p99"].into_iter().for_each(|name| longer(&mut times[name]));
            for several in ["median_interval95", "samples"] {
                times[several].as_array_mut().unwrap().iter_mut().for_each(longer);
            }
        }
    }
    slow
}

#[test]
fn a_comparison_names_what_became_slower() {
    let folder = scratch();
    // Six runs, as `measured` makes, say too little.
    let report = object(&run(&["bench", "linear", "--backend", "cpu", "--quick", "--warmup", "1", "--iterations", "12", "--json"]), "bench");
    let before = stored(folder.path(), "before.json", &report);
    // However far apart the runs of this processor are, they are no hundredfold.
    let same = run(&["bench", "compare", &before, &before, "--threshold", "1e2", "--json"]);
    assert_eq!(same.status.code(), Some(0), "{}", err(&same));
    let compared = object(&same, "bench");
    assert_eq!((&compared["shapes"][0]["verdict"], &compared["regressions"]), (&"same".into(), &Value::Array(vec![])));
    // No noise is a hundredfold.
    let after = stored(folder.path(), "after.json", &slowed(&report, 100.0));
    let slower = run(&["bench", "compare", &before, &after]);
    assert_eq!(slower.status.code(), Some(1), "{}", err(&slower));
    assert!(out(&slower).contains("REGRESSION") && out(&slower).contains("1 regressed: m16 n512 k512 f16"), "{}", out(&slower));
    assert_eq!(run(&["bench", "compare", &after, &before, "--warm"]).status.code(), Some(0), "faster is no regression");
    assert_eq!(run(&["bench", "compare", &before, &after, "--threshold", "1e4"]).status.code(), Some(0), "so much is allowed");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = scratch();
    let report = measured("linear", &[]);
    let own = stored(folder.path(), "own.json", &report);
    let mut other = report.clone();
    other["device"]["name"] = "another".into();
    let other = stored(folder.path(), "other.json", &other);
    let refused = run(&["bench", "compare", &own, &other]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("device") && err(&refused).contains("another"), "{}", err(&refused));
    let narrow = stored(folder.path(), "bf16.json", &measured("linear", &["--dtype", "bf16"]));
    let refused = run(&["bench", "compare", &own, &narrow]);
    assert!(refused.status.code() == Some(2) && err(&refused).contains("a shape that both hold"), "{}", err(&refused));
    let none = stored(folder.path(), "none.json", &Value::Null);
    assert_eq!(run(&["bench", "compare", &own, &none]).status.code(), Some(4));
    assert_eq!(run(&["bench", "compare", &own]).status.code(), Some(2));
    assert_eq!(run(&["bench", "report", &own, &other, "--pictures", text(folder.path())]).status.code(), Some(2), "one picture shows one device");
    assert_eq!(run(&["bench"]).status.code(), Some(2));
}

#[test]
fn tables_and_pictures_are_written() {
    let folder = scratch();
    let place = |name: &str| text(&folder.path().join(name)).to_owned();
    let (page, pictures) = (place("page.md"), place("pictures"));
    let reports: Vec<String> = ["linear", "sparse", "align", "forward-pass", "micro", "layer"]
        .map(|suite| stored(folder.path(), &format!("{suite}.json"), &measured(suite, &[])))
        .into();
    let arguments: Vec<&str> =
        ["bench", "report", "--markdown", &page, "--pictures", &pictures].into_iter().chain(reports.iter().map(String::as_str)).collect();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let markdown = std::fs::read_to_string(&page).unwrap();
    for words in [
        "### linear",
        "| m16 n512 k512 |",
        "parts, cold",
        "causal | mlp_norm |",
        "### sparse",
        "dense-equivalent",
        "times smaller",
        "over aligned",
        "a launch, host",
    ] {
        assert!(markdown.contains(words), "{words}: {markdown}");
    }
    // Every table has as many cells in each of its lines.
    for table in markdown.split("\n\n").filter(|part| part.starts_with('|')) {
        let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert!(cells.len() > 2 && cells.iter().all(|count| *count == cells[0]), "{table}");
    }
    assert_eq!(files(Path::new(&pictures)), ["align-f16.svg", "forward-pass-latency.svg", "roofline.svg", "sparse-latency.svg"]);
    for name in files(Path::new(&pictures)) {
        let picture = std::fs::read_to_string(Path::new(&pictures).join(&name)).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{name}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{name}");
    }
    let roofline = std::fs::read_to_string(Path::new(&pictures).join("roofline.svg")).unwrap();
    assert!(["linear", "sparse", "align", "forward-pass"].iter().all(|suite| roofline.contains(suite)));
}

#[test]
fn a_suite_writes_its_own_table() {
    let folder = scratch();
    let page = text(&folder.path().join("page.md")).to_owned();
    let report = measured("mlp", &["--markdown", &page]);
    let markdown = std::fs::read_to_string(&page).unwrap();
    assert!(markdown.starts_with("### mlp\n") && markdown.contains(report["results"][0]["name"].as_str().unwrap()), "{markdown}");
}

#[test]
fn a_rate_above_the_ceilings_of_its_run_is_told() {
    let folder = scratch();
    let page = text(&folder.path().join("page.md")).to_owned();
    let mut report = measured("linear", &[]);
    let mut told = |flags: &[&str]| {
        report["results"][0]["flags"] = flags.into();
        let path = stored(folder.path(), "linear.json", &report);
        assert_eq!(run(&["bench", "report", &path, "--markdown", &page]).status.code(), Some(0));
        std::fs::read_to_string(&page).unwrap().contains("faster than the ceilings of this run")
    };
    assert!(told(&["host_clock", "above_ceiling"]) && !told(&["host_clock"]));
}

/// A place that cannot be written is told before anything is measured.
#[test]
fn an_unwritable_place_costs_no_measurement() {
    let folder = scratch();
    let file = text(&folder.path().join("file")).to_owned();
    std::fs::write(&file, "").unwrap();
    for (option, place) in [("--markdown", format!("{file}/page.md")), ("--pictures", format!("{file}/pictures"))] {
        let output = run(&["bench", "linear", "--backend", "cpu", "--quick", option, &place]);
        assert_eq!(output.status.code(), Some(4), "{}", err(&output));
        assert!(output.stdout.is_empty() && err(&output).contains(&place), "{}", err(&output));
    }
}

#[test]
fn a_long_sweep_is_a_few_lines_and_a_picture_with_peers() {
    let folder = scratch();
    let mut report = measured("align", &["--axis", "k", "--axis", "n", "--from", "255", "--to", "257"]);
    // As many sizes as a GPU sweeps, of the few that were measured.
    let one = report["results"].as_array().unwrap().iter().find(|result| !result["aligned"].is_null()).unwrap().clone();
    let results = (3968..4096).map(|size| {
        let mut result = one.clone();
        result["name"] = format!("k{size}").into();
        result["d_in"] = size.into();
        if size % 8 == 0 {
            result["aligned"] = Value::Null;
        }
        result
    });
    report["results"] = results.collect::<Vec<_>>().into();
    let own = stored(folder.path(), "align.json", &report);
    let median = one["cold"]["median"].as_f64().unwrap();
    let peer = |size: u64, over: f64| serde_json::json!({ "name": format!("k{size}"), "peers": [{ "peer": "cuBLAS", "cold": { "median": median * over } }] });
    let results = [peer(3968, 1.0), peer(3969, 4.0), peer(3971, 3.0)];
    let beside = stored(folder.path(), "peers.json", &serde_json::json!({ "suite": "align", "dtype": "f16", "device": "GPU", "results": results }));
    let output = run(&["bench", "report", &own, "--peers", &beside, "--markdown", text(&folder.path().join("page.md")), "--pictures", text(folder.path())]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = std::fs::read_to_string(folder.path().join("page.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| product")).collect();
    assert_eq!(rows.len(), 3, "{page}");
    assert!(rows[0].contains("| multiple of 8 | 16 |") && rows[0].contains("| 1.00 at 3968 |"), "{}", rows[0]);
    assert!(rows[2].contains("| odd | 64 |") && rows[2].contains("| cuBLAS |") && rows[2].contains("| 4.00 | 3.00 at 3971 |"), "{}", rows[2]);
    let picture = std::fs::read_to_string(folder.path().join("align-f16.svg")).unwrap();
    assert!(picture.contains("best peer, odd") && !picture.contains("best peer, even"));
    // Peers of another type are not these sizes' peers.
    let other = stored(folder.path(), "other.json", &serde_json::json!({ "suite": "align", "dtype": "bf16", "device": "GPU", "results": [peer(3969, 4.0)] }));
    let output = run(&["bench", "report", &own, "--peers", &other]);
    assert!(!out(&output).contains("cuBLAS"), "{}", out(&output));
}

#[test]
fn shares_of_the_blocks_are_drawn_beside_all_of_them() {
    let folder = scratch();
    let place = text(&folder.path().join("pictures")).to_owned();
    let arguments = ["bench", "sparse", "--backend", "cpu", "--warmup", "1", "--iterations", "5", "--shape", "h2 d64 s1024", "--pictures", &place];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("random blocks of 128 are as fast"), "{}", out(&output));
    let picture = std::fs::read_to_string(Path::new(&place).join("sparse-density.svg")).unwrap();
    for words in ["prefill b1 h2 d64 s1024, by share", "all blocks, dense kernel", "power-law blocks of 128", "random blocks of 128"] {
        assert!(picture.contains(words), "{words}");
    }
    let spread = std::fs::read_to_string(Path::new(&place).join("sparse-latency.svg")).unwrap();
    assert!(spread.contains("12 blocks of 128") && !spread.contains("power-law"), "shares have a picture of their own");
    // Five runs in thirty bars: a step of half a run would be told as the same number twice.
    let labels: Vec<&str> = spread.split("text-anchor=\"end\"").skip(1).filter_map(|text| text.split(['>', '<']).nth(1)).map(str::trim).collect();
    assert!(labels.len() > 1 && labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
}

/// Ctrl-C while a suite runs ends it with what it has, also where the signal comes twice at once, as from `timeout`.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_run_tells_what_it_has() {
    let arguments = ["bench", "align", "--backend", "cpu", "--json"];
    let mut child = trifuse(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Until the program listens, the signal would end it as any other: the kernel tells which signals it catches.
    let id = child.id();
    let listens = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 0b10 != 0
    };
    while !listens() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it listened");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sent = std::process::Command::new("kill").args(["-INT", &id.to_string(), &id.to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    let value = object(&output, "bench");
    assert_eq!(value["complete"], false);
    let results = value["results"].as_array().unwrap();
    assert!(results.len() < 99 && results.iter().all(|result| result["status"] == "measured"), "{}", results.len());
}

#[test]
fn peers_are_drawn_beside_the_lengths_of_attention() {
    let folder = scratch();
    let mut report = measured("attention", &[]);
    // One measured length becomes three: a line needs as many.
    let one = report["results"][0].clone();
    let lengths = [256, 512, 1024].map(|length| {
        let mut result = one.clone();
        for (field, value) in [("name", Value::from(format!("s{length}"))), ("q_len", length.into()), ("kv_len", length.into())] {
            result[field] = value;
        }
        result
    });
    let peers = lengths.each_ref().map(|result| serde_json::json!({ "name": result["name"], "peers": [{ "peer": "cuDNN", "cold": { "median": 1e-3 } }, { "peer": "none", "why": "no kernel" }] }));
    report["results"] = lengths.to_vec().into();
    let own = stored(folder.path(), "attention.json", &report);
    let beside = stored(folder.path(), "peers.json", &serde_json::json!({ "suite": "attention", "device": "GPU", "results": peers }));
    let place = folder.path().join("pictures");
    let output = run(&["bench", "report", &own, "--peers", &beside, "--pictures", text(&place), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(object(&output, "bench")["written"].as_array().unwrap().len(), 2);
    let picture = std::fs::read_to_string(place.join("attention-length.svg")).unwrap();
    for words in ["trifuse, b1 h4/4 d64", "cuDNN, b1 h4/4 d64", "1024"] {
        assert!(picture.contains(words), "{words}");
    }
    assert!(!picture.contains("none,"), "a peer without a time has no line");
    assert_eq!(run(&["bench", "report", &own, "--peers", &own]).status.code(), Some(4), "that is no report of peers");
}
