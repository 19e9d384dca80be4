//! `verify`: a line for each operation, more on demand, and what a sample leaves out.

use std::time::Instant;

use crate::support::{err, object, out, run};

#[test]
fn a_page_has_a_line_for_each_operation_and_cases_only_on_demand() {
    let page = out(&run(&["verify", "--backend", "cpu", "--case", "pointwise/add"]));
    let lines: Vec<&str> = page.lines().filter(|line| line.trim_start().starts_with("pointwise")).collect();
    assert!(matches!(lines[..], [line] if line.contains(" ok, worst ") && line.contains("(add")), "{page}");
    assert!(!page.contains("pointwise/add"), "{page}");
    let page = out(&run(&["verify", "--backend", "cpu", "--case", "pointwise/add", "--verbose"]));
    let cases = page.lines().filter(|line| line.trim_start().starts_with("pointwise/add") && line.contains(" ok ")).count();
    assert!(cases > 1 && page.contains(&format!("{cases} passed, 0 failed, 0 skipped")), "{page}");
}

#[test]
fn a_quick_run_counts_what_it_leaves_out() {
    let began = Instant::now();
    let output = run(&["verify", "--backend", "cpu", "--quick", "--json"]);
    let value = object(&output, "verify");
    assert!(output.status.success(), "{}", err(&output));
    let left_out = value["left_out"].as_array().unwrap();
    assert!(left_out.iter().all(|left| !left["what"].as_str().unwrap().is_empty() && !left["reason"].as_str().unwrap().is_empty()), "{left_out:?}");
    let counted: u64 = left_out.iter().map(|left| left["count"].as_u64().unwrap()).sum();
    assert_eq!(value["totals"]["left_out"].as_u64(), Some(counted));
    // Every operation has cases in it, every case a result, and each of the six tests is run or named.
    let cases = value["cases"].as_array().unwrap();
    for operation in ["codebook_gemm", "attention", "prefix_attention", "fused_mlp", "linear", "grouped_linear", "pointwise", "sample", "checksum"] {
        assert!(cases.iter().any(|case| case["operation"] == operation), "{operation}");
    }
    assert!(cases.iter().all(|case| case["results"].as_array().unwrap().len() == 1));
    let tests = value["backends"][0]["tests"].as_array().unwrap();
    let named = left_out.iter().filter(|left| left["what"].as_str().unwrap().starts_with("test ")).count();
    assert_eq!(tests.len() + named, 6);
    // The limit is on when a case begins: this one knows only that there is one.
    assert!(began.elapsed().as_secs() < 120, "{:?}", began.elapsed());
}

#[test]
fn a_sample_of_chosen_cases_is_refused() {
    for option in [&["--case", "linear"][..], &["--only", "2"], &["--vectors", "tests/vectors"]] {
        let output = run(&[&["verify", "--quick"], option].concat());
        assert_eq!(output.status.code(), Some(2), "{option:?}");
    }
}
