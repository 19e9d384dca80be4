//! `bench` on a processor: the smallest shapes, a few runs.

use serde_json::Value;

use crate::support::{err, object, out, run};

fn measured(suite: &str, more: &[&str]) -> Value {
    let arguments = [&["bench", suite, "--backend", "cpu", "--quick", "--warmup", "1", "--iterations", "6", "--json"], more].concat();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    object(&output, "bench")
}

#[test]
fn every_suite_checks_times_and_counts() {
    for (suite, op) in [("attention", "attention"), ("mlp", "fused_mlp"), ("linear", "linear"), ("adapters", "codebook_gemm")] {
        let value = measured(suite, &[]);
        assert_eq!((&value["suite"], &value["backend"]), (&suite.into(), &"cpu".into()));
        for field in ["version", "revision", "platform"] {
            assert!(!value["environment"][field].as_str().unwrap().is_empty(), "{field}");
        }
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {suite}"));
        assert!(number(&value["ceilings"]["copy_bytes_per_second"]) > 0.0 && number(&value["ceilings"]["product_flops_per_second"]) > 0.0);
        let results = value["results"].as_array().unwrap();
        assert!(!results.is_empty());
        for result in results {
            assert_eq!((&result["status"], &result["op"], &result["dtype"]), (&"measured".into(), &op.into(), &"f16".into()), "{result}");
            let checked = &result["checked"];
            assert!(number(&checked["elements"]) > 0.0 && number(&checked["elements"]) <= number(&checked["of"]));
            // Arithmetic in half precision is off by something: nothing would mean that nothing was compared.
            assert!(number(&checked["error_of_allowed"]) > 0.0 && number(&checked["error_of_allowed"]) <= 1.0, "{checked}");
            for caches in ["cold", "warm"] {
                let times = &result[caches];
                let in_order: Vec<f64> = ["min", "median", "p95", "p99", "max"].iter().map(|field| number(&times[field])).collect();
                assert!(in_order.windows(2).all(|pair| pair[0] <= pair[1]) && in_order[0] > 0.0, "{times}");
                assert_eq!(times["count"], 6);
            }
            let (cost, rates, median) = (&result["cost"], &result["rates"], number(&result["cold"]["median"]));
            for (amount, rate) in [("executed_flops", "executed_flops"), ("dense_flops", "dense_equivalent_flops"), ("bytes", "bytes")] {
                assert!((number(&cost[amount]) / median / number(&rates[rate]) - 1.0).abs() < 1e-9, "{result}");
            }
            assert!(result["flags"].as_array().unwrap().contains(&"host_clock".into()), "the processor's clock is the host's");
        }
    }
}

#[test]
fn options_choose_shapes_and_variants() {
    let all = measured("linear", &["--shape", "m16 n512"]);
    let names: Vec<&str> = all["results"].as_array().unwrap().iter().map(|result| result["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["m16 n512 k512"]);
    let variant = all["results"][0]["variant"].as_str().unwrap().to_owned();
    let again = measured("linear", &["--variant", &variant, "--dtype", "f32"]);
    assert_eq!((&again["results"][0]["variant"], &again["results"][0]["dtype"]), (&variant.into(), &"f32".into()));
    for wrong in [&["--variant", "abacus"][..], &["--shape", "nothing has this name"], &["--iterations", "0"], &["--limit", "-1"], &["--dtype", "f64"]] {
        let output = run(&[&["bench", "linear", "--quick", "--backend", "cpu"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", err(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
    assert_eq!(run(&["bench", "poetry"]).status.code(), Some(2));
}

#[test]
fn the_page_names_what_it_holds() {
    let output = run(&["bench", "attention", "--quick", "--backend", "cpu", "--warmup", "1", "--iterations", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = out(&output);
    for words in ["attention on cpu", "ceilings: copy", "prefill b1 h4 d64 s256", "± 95 %", "timed by the host's clock"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}
