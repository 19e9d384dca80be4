//! `bench SUITE` on a processor: the smallest shapes, a few runs.

use serde_json::Value;

use crate::support::{err, object, out, run};

pub fn measured(suite: &str, more: &[&str]) -> Value {
    let arguments = [&["bench", suite, "--backend", "cpu", "--quick", "--warmup", "1", "--iterations", "6", "--json"], more].concat();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    object(&output, "bench")
}

pub fn raced(suite: &str, more: &[&str]) -> Value {
    let output = run(&[&["bench", suite, "--backend", "cpu", "--regret", "2", "--dtype", "f32", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    object(&output, "bench")
}

fn results(value: &Value) -> &Vec<Value> {
    value["results"].as_array().unwrap()
}

fn names(value: &Value) -> Vec<&str> {
    results(value).iter().map(|result| result["name"].as_str().unwrap()).collect()
}

#[test]
fn every_suite_checks_times_and_counts() {
    for (suite, op) in [
        ("attention", "attention"),
        ("mlp", "fused_mlp"),
        ("layer", "layer"),
        ("linear", "linear"),
        ("projections", "linear"),
        ("adapters", "codebook_gemm"),
        ("sparse", "attention"),
        ("forward-pass", "codebook_gemm"),
    ] {
        let value = measured(suite, &[]);
        assert_eq!((&value["suite"], &value["backend"]), (&suite.into(), &"cpu".into()));
        assert_eq!((&value["timing"]["warmup"], &value["timing"]["iterations"]), (&1.into(), &6.into()));
        for field in ["version", "revision", "platform"] {
            assert!(!value["environment"][field].as_str().unwrap().is_empty(), "{field}");
        }
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {suite}"));
        assert!(number(&value["ceilings"]["copy_bytes_per_second"]) > 0.0 && number(&value["ceilings"]["product_flops_per_second"]) > 0.0);
        let results = value["results"].as_array().unwrap();
        assert!(!results.is_empty() && value["complete"] == true);
        assert_eq!(value["config"], serde_json::json!({ "warmup_iterations": 1, "benchmark_iterations": 6 }));
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
                assert_eq!((&times["count"], times["samples"].as_array().unwrap().len()), (&6.into(), 6));
            }
            // The reference harness' names for the same times.
            for (field, own) in [("mean_ms", "mean"), ("median_ms", "median"), ("std_ms", "std"), ("p99_ms", "p99"), ("max_ms", "max")] {
                assert!((number(&result[field]) - 1e3 * number(&result["cold"][own])).abs() < 1e-9, "{field}");
            }
            let (cost, rates, median) = (&result["cost"], &result["rates"], number(&result["cold"]["median"]));
            for (amount, rate) in [("executed_flops", "executed_flops"), ("dense_flops", "dense_equivalent_flops"), ("bytes", "bytes")] {
                assert!((number(&cost[amount]) / median / number(&rates[rate]) - 1.0).abs() < 1e-9, "{result}");
            }
            let flagged = |flag: &str| result["flags"].as_array().unwrap().contains(&flag.into());
            assert!(flagged("host_clock"), "the processor's clock is the host's");
            assert_eq!(flagged("above_ceiling"), number(&rates["share_of_ceiling"]) > 1.1, "{result}");
        }
    }
}

#[test]
fn options_choose_shapes_and_variants() {
    let all = measured("linear", &["--shape", "m16 n512"]);
    assert_eq!(names(&all), ["m16 n512 k512"]);
    let variant = all["results"][0]["variant"].as_str().unwrap().to_owned();
    let again = measured("linear", &["--variant", &variant, "--dtype", "f32"]);
    assert_eq!((&again["results"][0]["variant"], &again["results"][0]["dtype"]), (&variant.into(), &"f32".into()));
    for wrong in
        [&["--variant", "abacus"][..], &["--shape", "nothing has this name"], &["--iterations", "0"], &["--limit", "-1"], &["--dtype", "f64"], &["--seq", "8"]]
    {
        let output = run(&[&["bench", "linear", "--quick", "--backend", "cpu"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", err(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
    assert_eq!(run(&["bench", "poetry"]).status.code(), Some(2));
    // Longer than a clock can tell.
    assert_eq!(names(&measured("linear", &["--limit", "1e300"])), ["m16 n512 k512"]);
}

#[test]
fn a_model_chooses_the_sizes_of_other_suites() {
    let value = measured("attention", &["--seq", "33", "--batch", "2", "--causal"]);
    assert_eq!(names(&value), ["prefill b2 h4/2 d64 s33 causal"]);
    assert_eq!(names(&measured("mlp", &["--seq", "5", "--batch", "3"])), ["m15 256-688-256 gelu"]);
    let value = measured("projections", &["--seq", "7"]);
    assert_eq!(names(&value), ["m7 n512 k256", "m7 n256 k256", "m7 n128 k256", "m7 n688 k256", "m7 n256 k688"]);
    for wrong in [&["projections", "--causal"][..], &["mlp", "--style", "llama"], &["attention", "--seq", "0"], &["sparse", "--model", "llama2-7b"]] {
        assert_eq!(run(&[&["bench", "--backend", "cpu", "--quick"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_mixture_adds_its_choices_to_what_is_there() {
    for dtype in ["f16", "f32"] {
        let arguments = ["bench", "adapters", "--shape", "mixture", "--dtype", dtype, "--backend", "cpu", "--warmup", "1", "--iterations", "5", "--json"];
        let value = object(&run(&arguments), "bench");
        assert_eq!(names(&value), ["mixture of 8 experts top2, 4 x 512 r16 tokens16"]);
        let result = &results(&value)[0];
        assert_eq!((&result["status"], &result["launches"]), (&"measured".into(), &8.into()), "{result}");
        assert!(result["checked"]["error_of_allowed"].as_f64() > Some(0.0));
        assert_eq!(result["memory"]["lora_f16_bytes"], 4 * 8 * 2 * 512 * 16 * 2);
    }
}

#[test]
fn the_page_names_what_it_holds() {
    let output = run(&["bench", "attention", "--quick", "--backend", "cpu", "--warmup", "1", "--iterations", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = out(&output);
    for words in ["attention on cpu", "Ceilings: copy", "prefill b1 h4 d64 s256", "± 95 %", "timed by the host's clock"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn micro_counts_bytes_of_copies_and_divides_launches() {
    let value = measured("micro", &[]);
    assert_eq!(names(&value), ["copy 1 MiB", "m256 n256 k256", "128 launches, no graph", "128 launches, graph"]);
    let copy = &results(&value)[0];
    assert_eq!((&copy["variant"], &copy["cost"]["bytes"], &copy["checked"]["elements"]), (&"copy".into(), &2_097_152.0.into(), &262_144.into()));
    for launches in &results(&value)[2..] {
        assert_eq!((&launches["status"], &launches["launches"], &launches["checked"]["elements"]), (&"measured".into(), &128.into(), &64.into()));
        let each = launches["launch_seconds"].as_f64().unwrap();
        assert!((each * 128.0 / launches["cold"]["median"].as_f64().unwrap() - 1.0).abs() < 1e-9 && each > 0.0, "{launches}");
    }
}

#[test]
fn sizes_of_ones_own_take_the_place_of_a_list() {
    let own = |suite, more: &[&str]| {
        let output = run(&[&["bench", "--backend", "cpu", "--iterations", "2", "--warmup", "1", "--json", suite], more].concat());
        object(&output, "bench")
    };
    let value = own("mlp", &["--gated", "--sizes", "3x16x24", "--sizes", "1x8x40"]);
    assert_eq!(names(&value), ["m3 16-24-16 swiglu", "m1 8-40-8 swiglu"]);
    assert!(results(&value).iter().all(|result| result["status"] == "measured" && result["gated"] == true), "{value}");
    assert_eq!(names(&own("linear", &["--sizes", "5x33x70"])), ["m5 n33 k70"]);
    for wrong in [&["attention", "--sizes", "1x2x3"][..], &["linear", "--gated"], &["mlp", "--sizes", "1x2"], &["mlp", "--quick", "--sizes", "1x2x3"]] {
        assert_eq!(run(&[&["bench", "--backend", "cpu"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_sweep_has_each_size_with_its_aligned_neighbour() {
    let value = measured("align", &["--axis", "k", "--from", "255", "--to", "257", "--dtype", "bf16"]);
    assert_eq!(names(&value), ["m256 n256 k255", "m256 n256 k256", "m256 n256 k257", "m256 n256 k264"]);
    let medians: Vec<f64> = results(&value).iter().map(|result| result["cold"]["median"].as_f64().unwrap()).collect();
    for (number, neighbour) in [(0, Some(1)), (1, None), (2, Some(3)), (3, None)] {
        let aligned = &results(&value)[number]["aligned"];
        match neighbour {
            None => assert!(aligned.is_null(), "{aligned}"),
            Some(neighbour) => {
                assert_eq!(aligned["neighbour"], names(&value)[neighbour]);
                assert!((aligned["slowdown"].as_f64().unwrap() - medians[number] / medians[neighbour]).abs() < 1e-9);
            }
        }
    }
    let value = measured("align", &["--axis", "k-padded", "--from", "255", "--to", "257"]);
    assert_eq!(names(&value), ["m256 n256 k255, w padded", "m256 n256 k256", "m256 n256 k257, w padded", "m256 n256 k264"]);
    let [first, second] = [0, 1].map(|number| &results(&value)[number]);
    assert_eq!((&first["padding"], &first["aligned"]["neighbour"], second["padding"].is_null()), (&"weights".into(), &second["name"], true));
    for wrong in [
        &["align", "--from", "9"][..],
        &["align", "--axis", "k", "--from", "9", "--to", "8"],
        &["align", "--axis", "head-dim", "--to", "300"],
        &["align", "--axis", "k", "--from", "1", "--to", "18446744073709551615"],
        &["mlp", "--step", "2"],
    ] {
        assert_eq!(run(&[&["bench", "--backend", "cpu", "--quick"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_layer_is_timed_whole_and_in_parts() {
    let value = measured("layer", &["--style", "llama", "--style", "reference", "--seq", "33", "--batch", "2", "--causal"]);
    assert_eq!(names(&value), ["h256 llama b2 s33 causal", "h256 reference b2 s33 causal"]);
    for (result, rope) in results(&value).iter().zip([true, false]) {
        let parts = &result["parts"];
        let each = parts["each"].as_array().unwrap();
        let launches: Vec<&str> = each.iter().map(|part| part["name"].as_str().unwrap()).collect();
        let expected = ["attention_norm", "qkv", "rope", "attention", "output", "mlp_norm", "mlp"];
        assert_eq!(launches, expected.into_iter().filter(|name| rope || *name != "rope").collect::<Vec<_>>());
        assert_eq!((&result["launches"], &result["captured"]), (&each.len().into(), &true.into()));
        let sum = |of: &dyn Fn(&Value) -> &Value| each.iter().map(|part| of(part).as_f64().unwrap()).sum::<f64>();
        for field in ["cold_seconds", "warm_seconds"] {
            assert!(
                (sum(&|part| &part[field]) / parts[field].as_f64().unwrap() - 1.0).abs() < 1e-9 && each.iter().all(|part| part[field].as_f64() > Some(0.0))
            );
        }
        for field in ["executed_flops", "useful_flops", "dense_flops"] {
            assert_eq!(sum(&|part| &part["cost"][field]), result["cost"][field].as_f64().unwrap(), "{field}");
        }
        // A causal mask leaves out what a dense operation would do.
        assert!(result["cost"]["dense_flops"].as_f64() > result["cost"]["useful_flops"].as_f64());
    }
    for wrong in [&["layer", "--model", "llama2-8b"][..], &["layer", "--seq", "0"], &["layer", "--variant", "sm90"], &["linear", "--batch", "2"]] {
        assert_eq!(run(&[&["bench", "--backend", "cpu", "--quick"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn sparse_counts_blocks_three_ways() {
    let value = measured("sparse", &[]);
    let result = &results(&value)[0];
    assert_eq!(result["name"], "12 blocks of 128 b1 h1 d64 s1024");
    assert_eq!((result["pattern"]["col_idx"].as_array().unwrap().len(), &result["blocks"]["count"]), (12, &12.into()));
    let cost = |field: &str| result["cost"][field].as_f64().unwrap();
    let block = 4.0 * 128.0 * 128.0 * 64.0;
    assert_eq!((cost("executed_flops"), cost("useful_flops"), cost("dense_flops")), (12.0 * block, 12.0 * block, 64.0 * block));
}

#[test]
fn a_forward_pass_counts_what_adapters_take() {
    let arguments = ["bench", "forward-pass", "--backend", "cpu", "--warmup", "1", "--iterations", "5", "--adapters", "300", "--json"];
    let value = object(&run(&arguments), "bench");
    let (sizes, all) = ("8 x 256 r16 tokens16 adapters20", results(&value));
    let mut expected = vec![
        format!("chained {sizes}, graph"),
        format!("chained {sizes}, no graph"),
        format!("one input per 4, {sizes}, graph"),
        format!("one input per 4, {sizes}, no graph"),
        format!("from host, {sizes}, no graph"),
        format!("from host at once, {sizes}, graph"),
    ];
    expected.extend([(7, 16), (4, 16), (3, 16), (4, 256)].map(|(bits, tokens)| format!("registered 300 of {bits} bits, 8 x 256 r16 tokens{tokens}")));
    assert_eq!(names(&value), expected);
    // A basis in f16, and for each adapter so many bits an element of a factor and a codebook of f32.
    let (basis, codebook) = (256 * 16 * 2, 52 * 4);
    let codes = |bits: u64| 256 * 16 * bits / 8;
    for (number, result) in all.iter().enumerate() {
        assert_eq!(result["status"], "measured", "{result}");
        let memory = |field: &str| result["memory"][field].as_u64().unwrap();
        let on_host = number == 4 || number == 5;
        let (adapters, bits) = if number < 6 { (20, 7) } else { (300, [7, 4, 3, 4][number - 6]) };
        assert_eq!(memory("lora_f16_bytes"), 8 * adapters * 2 * 256 * 16 * 2);
        let of_batch = 16 * (codes(7) + codebook);
        let wanted = match number {
            4 => 8 * basis + of_batch,
            5 => 8 * (basis + of_batch),
            _ => 8 * (basis + adapters * (codes(bits) + codebook)),
        };
        assert_eq!(memory("device_bytes"), wanted, "{result}");
        assert_eq!(memory("host_bytes"), if on_host { 8 * of_batch } else { 0 });
        assert_eq!(result["memory"]["lora_f16_ratio"].is_null(), on_host);
        let registered = &result["memory"]["registered"];
        assert_eq!(registered.is_null(), number < 6);
        if number >= 6 {
            let one = 8 * (codes(bits) + codebook);
            assert_eq!((&registered["projections"], &registered["adapter_bytes"]), (&8.into(), &one.into()));
            assert_eq!(registered["fit_80_gb"], (80_000_000_000 - 8 * basis) / one);
        }
    }
    assert_eq!(run(&["bench", "adapters", "--adapters", "5", "--backend", "cpu"]).status.code(), Some(2));
}

#[test]
fn random_shapes_are_raced_and_the_same_seed_gives_the_same() {
    let names = |value: &Value| value["shapes"].as_array().unwrap().iter().map(|shape| shape["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let first = raced("linear", &["--seed", "3"]);
    assert_eq!((&first["summary"]["raced"], &first["summary"]["faults"], &first["complete"]), (&2.into(), &0.into(), &true.into()), "{first}");
    assert!(first["shapes"].as_array().unwrap().iter().all(|shape| shape["regret"].as_f64().unwrap() >= 1.0 && shape["configs"][0]["seconds"].is_f64()));
    assert_eq!(names(&first), names(&raced("linear", &["--seed", "3"])));
    assert_ne!(names(&first), names(&raced("linear", &[])));
    let page = out(&run(&["bench", "mlp", "--backend", "cpu", "--regret", "1", "--dtype", "f32"]));
    assert!(page.contains("1 raced") && page.contains("regret of mlp on cpu"), "{page}");
    for wrong in [&["micro", "--regret", "2"][..], &["linear", "--regret", "2", "--quick"], &["linear", "--seed", "2"], &["linear", "--regret", "0"]] {
        assert_eq!(run(&[&["bench", "--backend", "cpu"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[cfg(feature = "serve")]
#[test]
fn queries_are_put_in_without_sockets_and_every_checksum_is_compared() {
    for blocks in ["3", "0"] {
        let sizes = ["--tokens", "128", "--head-dim", "16", "--heads", "2", "--sets", "5", "--blocks", blocks, "--seconds", "0.3", "--concurrency", "1,40"];
        let output = run(&[&["bench", "queries", "--backend", "cpu", "--json"], &sizes[..]].concat());
        assert_eq!(output.status.code(), Some(if blocks == "3" { 2 } else { 0 }), "{}", err(&output));
        if blocks == "3" {
            // One block of 128 is all that there is.
            assert!(err(&output).contains("--blocks"), "{}", err(&output));
            continue;
        }
        let value = object(&output, "bench");
        assert!(value["kernel_per_second"].as_f64().unwrap() > 0.0 && value["complete"] == true, "{value}");
        let runs = value["runs"].as_array().unwrap();
        assert_eq!(runs.iter().map(|run| run["concurrency"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 40]);
        for run in runs {
            assert!(run["answered"].as_u64().unwrap() > 0 && run["wrong"] == 0, "{run}");
            let times: Vec<f64> = ["p50_us", "p99_us", "most_us"].iter().map(|field| run[field].as_f64().unwrap()).collect();
            assert!(times[0] > 0.0 && times.windows(2).all(|pair| pair[0] <= pair[1] * 1.01), "{run}");
        }
    }
    let output = run(&[
        "bench",
        "queries",
        "--backend",
        "cpu",
        "--tokens",
        "200",
        "--block",
        "64",
        "--blocks",
        "9",
        "--head-dim",
        "16",
        "--sets",
        "3",
        "--seconds",
        "0.3",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("3 sets of 200 tokens, 1 heads of 16, 9 blocks of 64 each"), "{}", out(&output));
}
