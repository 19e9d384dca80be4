//! `adapter_config.json`: rank and scale of each module, and what must be refused because it changes the product.

use std::path::Path;

use serde_json::{Map, Value};

use super::pattern::{Suffix, Targets};
use super::value::{brief, flag, is_set, number, rank, table, targets};
use super::{Finding, FindingKind, UNKNOWN_KEY, Verdict};
use crate::error::{Error, Result};

/// The longest configuration, in bytes. Real ones have 1 to 100 kB, the longest with a rank for each module.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Keys on which the product does not depend: how the adapter was made, for what, and on which base.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// Keys that change the product where they are set, and the meaning of each.
const REFUSED: &[(&str, &str)] = &[
    ("use_dora", "DoRA scales the merged weight by trained magnitudes"),
    ("use_qalora", "QALoRA pools the input in groups before A"),
    ("use_bdlora", "block-diagonal LoRA lays its factors out in blocks"),
    ("lora_bias", "the factor B carries a bias"),
    ("alora_invocation_tokens", "aLoRA applies only from its invocation tokens on"),
    ("alora_invocation_string", "aLoRA applies only from its invocation string on"),
    ("arrow_config", "Arrow mixes several adapters by a router"),
    ("kasa_config", "KaSA adds singular values to the product and changes the base"),
    ("velora_config", "VeLoRA changes what the factors see"),
    ("monteclora_config", "MonteCLoRA mixes sampled factors"),
    ("layer_replication", "layers of the base are repeated"),
    ("trainable_token_indices", "rows of the embedding were trained"),
    ("target_parameters", "LoRA on bare parameters, several experts in a tensor"),
    ("modules_to_save", "modules were trained whole, and have no low-rank form"),
];

/// Values of `init_lora_weights`, by their beginnings, that leave the base as it is. The others (PiSSA, OLoRA, LoftQ …) subtract their
/// start from the base weights, so their A and B do not fit the published base.
const HARMLESS_INIT: &[&str] = &["gaussian", "eva", "orthogonal"];

/// The part of a configuration that the product of each module needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The JSON of the file.
    pub value: Value,
    rank: u64,
    alpha: f64,
    rank_stabilised: bool,
    rank_pattern: Vec<(Suffix, u64)>,
    alpha_pattern: Vec<(Suffix, f64)>,
    targets: Targets,
}

/// The findings of a reader of configurations.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) value: Option<Value>,
    pub(super) config: Option<Config>,
    pub(super) findings: Vec<Finding>,
    pub(super) faults: Vec<Error>,
}

impl Config {
    /// Reads a configuration. Errors name `path`.
    ///
    /// # Errors
    /// The first key that cannot be used.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let mut reading = Reading::new(path, text);
        if !reading.faults.is_empty() {
            return Err(reading.faults.swap_remove(0));
        }
        reading.config.ok_or_else(|| Error::input(path, "no configuration was read"))
    }

    /// The rank of the module with this path.
    pub fn rank(&self, module: &str) -> u64 {
        first_match(&self.rank_pattern, module).unwrap_or(self.rank)
    }

    /// The scale of the module's product.
    pub fn scaling(&self, module: &str) -> f64 {
        let (alpha, rank) = (first_match(&self.alpha_pattern, module).unwrap_or(self.alpha), self.rank(module) as f64);
        alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// The rank and the scale of every module, where no pattern and no rank-stabilised scale says otherwise. Readers that know only `r` and
    /// `lora_alpha` take these.
    pub fn plain(&self) -> Option<(u64, f64)> {
        let plain = !self.rank_stabilised && self.rank_pattern.is_empty() && self.alpha_pattern.is_empty();
        plain.then(|| (self.rank, self.alpha / self.rank as f64))
    }

    /// Whether PEFT would put an adapter on the module with this path.
    pub fn targets(&self, module: &str) -> bool {
        self.targets.matches(module)
    }
}

/// The first entry whose key matches, in the order of the file, as in PEFT.
fn first_match<T: Copy>(table: &[(Suffix, T)], module: &str) -> Option<T> {
    table.iter().find(|(key, _)| key.matches(module)).map(|&(_, value)| value)
}

impl Reading {
    pub(super) fn new(path: &Path, text: &[u8]) -> Self {
        let mut reading = Self::default();
        if text.len() as u64 > MAX_CONFIG_BYTES {
            reading.faults.push(Error::input(path, format!("expected a configuration of at most {MAX_CONFIG_BYTES} bytes, found {}", text.len())));
            return reading;
        }
        match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => reading.read(path, map),
            Ok(other) => reading.faults.push(Error::input(path, format!("expected a JSON object, found {}", brief(&other)))),
            Err(error) => reading.faults.push(Error::input(path, format!("expected JSON, found: {error}"))),
        }
        reading
    }

    fn read(&mut self, path: &Path, map: Map<String, Value>) {
        let mut needs = Needs::default();
        for (key, value) in &map {
            let (verdict, reason) = match needs.take(key, value) {
                Ok(pair) => pair,
                Err(problem) => {
                    self.faults.push(Error::input_item(path, key, &problem));
                    (Verdict::Refused, problem)
                }
            };
            self.findings.push(Finding { kind: FindingKind::Key, name: key.clone(), content: brief(value), verdict, reason });
        }
        for (key, there) in [("r", needs.rank.is_some()), ("lora_alpha", needs.alpha.is_some())] {
            if !there && !map.contains_key(key) {
                self.faults.push(Error::input_item(path, key, "expected this key, found none: not a LoRA configuration"));
            }
        }
        let value = Value::Object(map);
        if let (true, Some(rank), Some(alpha)) = (self.faults.is_empty(), needs.rank, needs.alpha) {
            let Needs { rank_stabilised, rank_pattern, alpha_pattern, targets, .. } = needs;
            let targets = targets.unwrap_or(Targets::Any);
            self.config = Some(Config { value: value.clone(), rank, alpha, rank_stabilised, rank_pattern, alpha_pattern, targets });
        }
        self.value = Some(value);
    }
}

#[derive(Default)]
struct Needs {
    rank: Option<u64>,
    alpha: Option<f64>,
    rank_stabilised: bool,
    rank_pattern: Vec<(Suffix, u64)>,
    alpha_pattern: Vec<(Suffix, f64)>,
    targets: Option<Targets>,
}

impl Needs {
    /// Reads one key.
    fn take(&mut self, key: &str, value: &Value) -> Result<(Verdict, String), String> {
        let used = |reason: &str| Ok((Verdict::Used, reason.to_owned()));
        let ignored = |reason: &str| Ok((Verdict::Ignored, reason.to_owned()));
        match key {
            "peft_type" if value == "LORA" => used("plain LoRA"),
            "peft_type" => Err(format!("expected \"LORA\", found {}: only LoRA has the form that is read here", brief(value))),
            "bias" if !is_set(value) || value == "none" => ignored("no bias was trained"),
            "bias" => Err(format!("expected \"none\", found {}: trained biases are not part of the product", brief(value))),
            "r" => {
                self.rank = Some(rank(value)?);
                used("the rank")
            }
            "lora_alpha" => {
                self.alpha = Some(number(value)?);
                used("the scale, over the rank")
            }
            "use_rslora" => {
                self.rank_stabilised = flag(value)?;
                used(if self.rank_stabilised { "the scale is lora_alpha / √r" } else { "the scale is lora_alpha / r" })
            }
            "fan_in_fan_out" => flag(value).map(|_| (Verdict::Ignored, "says how the base is stored; A and B are as ever".to_owned())),
            "rank_pattern" => {
                self.rank_pattern = table(value, rank)?;
                used("ranks by module")
            }
            "alpha_pattern" => {
                self.alpha_pattern = table(value, number)?;
                used("scales by module")
            }
            "target_modules" => {
                self.targets = Some(targets(value)?);
                used("the modules that it is for")
            }
            "init_lora_weights" => match value {
                Value::String(start) if !HARMLESS_INIT.contains(&start.to_lowercase().as_str()) => {
                    Err(format!("expected a start that leaves the base as it is, found {start:?}; convert the adapter to plain LoRA when saving it"))
                }
                _ => ignored("how training began"),
            },
            _ => match REFUSED.iter().find(|(name, _)| *name == key) {
                Some((_, what)) if is_set(value) => Err(format!("expected it unset, found {}: {what}", brief(value))),
                Some(_) => ignored("not set"),
                None if HARMLESS.contains(&key) => ignored("the product does not depend on it"),
                None if is_set(value) => ignored(UNKNOWN_KEY),
                None => ignored("unknown key, not set"),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::MAX_RANK;
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
}
