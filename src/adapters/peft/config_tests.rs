use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(changes: Value) -> Reading {
    let mut config = json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["query"], "bias": "none" });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    Reading::new(Path::new("adapter_config.json"), config.to_string().as_bytes())
}

#[test]
fn what_changes_the_product_is_refused_by_name() {
    let table = [
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("use_bdlora", json!({"blocks": 2})),
        ("lora_bias", json!(true)),
        ("alora_invocation_tokens", json!([1, 2])),
        ("arrow_config", json!({"top_k": 2})),
        ("kasa_config", json!({"beta": 0.1})),
        ("layer_replication", json!([[0, 4], [2, 6]])),
        ("trainable_token_indices", json!([5])),
        ("target_parameters", json!(["experts.down_proj"])),
        ("modules_to_save", json!(["classifier", "score"])),
        ("bias", json!("all")),
        ("bias", json!("lora_only")),
        ("peft_type", json!("LOHA")),
        ("peft_type", json!(null)),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("r", json!(0)),
        ("r", json!(-8)),
        ("r", json!(4097)),
        ("r", json!(8.5)),
        ("r", json!("8")),
        ("r", json!(1e300)),
        ("lora_alpha", json!(null)),
        ("lora_alpha", json!("16")),
        ("lora_alpha", json!(1e10)),
        ("use_rslora", json!("yes")),
        ("fan_in_fan_out", json!(1)),
        ("rank_pattern", json!([8])),
        ("rank_pattern", json!({"query": 0})),
        ("rank_pattern", json!({"que(ry": 4})),
        ("alpha_pattern", json!({"query": null})),
        ("target_modules", json!([1])),
        ("target_modules", json!("(")),
    ];
    for (key, value) in table {
        let reading = read(json!({ key: value }));
        assert!(reading.config.is_none(), "{key}: {value}");
        let text = reading.faults[0].to_string();
        assert!(text.contains("adapter_config.json") && text.contains(key), "{text}");
        let refused = reading.findings.iter().filter(|finding| finding.verdict == Verdict::Refused);
        assert_eq!(refused.map(|finding| finding.name.as_str()).collect::<Vec<_>>(), [key]);
    }
}

#[test]
fn what_is_unset_or_unknown_is_not_in_the_way() {
    let reading = read(json!({
        "use_dora": false, "lora_bias": null, "modules_to_save": [], "kasa_config": {}, "alora_invocation_tokens": null, "fan_in_fan_out": null,
        "rank_pattern": null, "alpha_pattern": {}, "init_lora_weights": true, "a_key_of_tomorrow": {"x": 1}, "another": null, "bias": null
    }));
    assert!(reading.faults.is_empty(), "{:?}", reading.faults);
    let reason = |name: &str| reading.findings.iter().find(|finding| finding.name == name).unwrap().reason.clone();
    assert!(reason("a_key_of_tomorrow").contains("left out"));
    assert!(reason("another").contains("not set"));
    assert_eq!(reading.config.unwrap().scaling("x.query"), 2.0);
}

#[test]
fn every_fault_is_listed_at_once() {
    let reading = read(json!({ "use_dora": true, "lora_bias": true, "r": 0 }));
    assert_eq!(reading.faults.len(), 3);
    for text in ["", "[]", "{", "null", "{\"r\": NaN}", "{}"] {
        assert!(Config::parse(Path::new("c"), text.as_bytes()).is_err(), "{text}");
    }
    assert!(Config::parse(Path::new("c"), &vec![b' '; MAX_CONFIG_BYTES as usize + 1]).is_err());
}

#[test]
fn patterns_override_rank_and_scale_in_the_order_of_the_file() {
    let config = read(json!({
        "rank_pattern": {"value": 4, "layer.0.value": 2, r"layer\.(1|2)\.key": 16}, "alpha_pattern": {"key": 32.0}, "use_rslora": true
    }));
    let config = config.config.unwrap();
    assert_eq!(["layer.0.value", "layer.1.key", "layer.3.key", "layer.0.query"].map(|module| config.rank(module)), [4, 16, 8, 8]);
    assert_eq!(config.scaling("layer.1.key"), 8.0);
    assert_eq!(config.scaling("layer.0.value"), 8.0);
    assert_eq!(config.scaling("layer.0.query"), 16.0 / 8f64.sqrt());
}

#[test]
fn targets_may_be_a_list_an_expression_or_all() {
    let targets = |value: Value| read(json!({ "target_modules": value })).config.unwrap();
    assert!(targets(json!("all-linear")).targets("anything"));
    assert!(targets(json!(null)).targets("anything"));
    assert!(targets(json!(".*query")).targets("x.query") && !targets(json!(".*query")).targets("x.value"));
    assert!(targets(json!(["query"])).targets("x.query") && !targets(json!(["query"])).targets("x.value"));
}

proptest! {
    #[test]
    fn scales_are_alpha_over_rank(rank in 1u64..=MAX_RANK, alpha in -1000.0f64..1000.0, stabilised: bool) {
        let config = read(json!({ "r": rank, "lora_alpha": alpha, "use_rslora": stabilised })).config.unwrap();
        let below = if stabilised { (rank as f64).sqrt() } else { rank as f64 };
        prop_assert_eq!(config.scaling("a.query"), alpha / below);
        prop_assert_eq!(config.rank("a.query"), rank);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        Reading::new(Path::new("c"), &bytes);
    }
}
