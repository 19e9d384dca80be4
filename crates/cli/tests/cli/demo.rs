//! `demo`: real adapters, compressed and served; the answers checked.

use crate::support::{err, object, out, population, run};

#[test]
fn the_carried_adapters_are_served_right_and_what_was_lost_is_said() {
    let output = run(&["demo", "--backend", "cpu", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let value = object(&output, "demo");
    assert_eq!((&value["backend"]["backend"], &value["right"]), (&"cpu".into(), &true.into()));
    let stages = value["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 4);
    for stage in stages {
        let served = &stage["served"];
        let number = |name: &str| served[name].as_f64().unwrap();
        assert_eq!(served["right"], true);
        assert!(number("error_over_allowed") <= 1.0 && number("relative_l2") <= number("relative_l2_allowed"));
        assert!(number("relative_l2") > 0.0, "an answer with no rounding at all was not computed");
        assert!(number("error_against_uncompressed") > 10.0 * number("relative_l2"), "compression costs more than rounding does");
        assert!(number("milliseconds") > 0.0);
        assert!((1..64).contains(&served["base_only_tokens"].as_u64().unwrap()), "a mixed batch");
        for adapter in stage["adapters"].as_array().unwrap() {
            assert!(served["by_adapter"][adapter["name"].as_str().unwrap()].is_f64(), "every adapter had tokens");
        }
        // Gaussian inputs see what the certificates say; only their weights in the sum differ.
        if served["inputs"] == "gaussian" {
            let stated = stage["adapters"].as_array().unwrap().iter().map(|adapter| adapter["output_error_gaussian"].as_f64().unwrap());
            let stated = stated.sum::<f64>() / stage["adapters"].as_array().unwrap().len() as f64;
            assert!((number("error_against_uncompressed") / stated - 1.0).abs() < 0.2, "{stage}");
        }
    }
    let least = |stage: usize| stages[stage]["cos_delta_min"].as_f64().unwrap();
    assert!(least(0) >= 0.99 && least(1) < 0.99 && least(2) >= 0.99, "{} {} {}", least(0), least(1), least(2));
    assert!(stages[1]["verdict"].as_str().unwrap().starts_with("NOT kept"));
    // With activations the output is kept better than the weights are, and better than without them.
    let calibrated = &stages[3];
    let held_out = calibrated["adapters"].as_array().unwrap().iter().map(|adapter| adapter["output_error_held_out"].as_f64().unwrap()).sum::<f64>() / 4.0;
    let gaussian = calibrated["adapters"].as_array().unwrap().iter().map(|adapter| adapter["output_error_gaussian"].as_f64().unwrap()).sum::<f64>() / 4.0;
    assert!(held_out < gaussian, "{held_out} {gaussian}");
    assert!(held_out < calibrated["output_error_held_out_uncalibrated"].as_f64().unwrap(), "{calibrated}");
}

#[test]
fn adapters_of_ones_own() {
    let output = run(&["demo", &population("C"), "--backend", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = out(&output);
    for words in ["running on cpu:0", "as asked", "r4_rust", "times smaller", "every served answer is right", "on a processor, not a GPU's time"] {
        assert!(page.contains(words), "{words:?} is not on the page:\n{page}");
    }
}

#[test]
fn what_cannot_be_shown() {
    assert_eq!(run(&["demo", "no/such/folder"]).status.code(), Some(4));
    let absent = run(&["demo", "--backend", "cpu:9", "--json"]);
    assert_eq!(absent.status.code(), Some(3), "{}", err(&absent));
    assert_eq!(object(&absent, "demo")["error"]["exit_status"], 3);
}
