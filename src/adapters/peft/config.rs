//! `adapter_config.json`: rank and scale of each module, and what must be refused because it changes the product.

use std::path::Path;

use serde_json::{Map, Value};

use super::pattern::{Suffix, Targets};
use super::{Finding, FindingKind, MAX_RANK, Verdict};
use crate::error::{Error, Result};

/// Longest configuration, in bytes. Real ones have 1 to 100 kB, the longest with a rank for each module.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Keys of the pattern tables that are real regular expressions, each of which takes memory.
const MAX_EXPRESSIONS: usize = 512;

/// Keys that the product does not depend on: how the adapter was made, for what, and on which base.
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

/// Keys that change the product where they are set, and what each stands for.
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

/// Starts of `init_lora_weights` that leave the base as it is. The others (PiSSA, OLoRA, LoftQ …) subtract their start
/// from the base weights, so their A and B do not fit the published base.
const HARMLESS_INIT: &[&str] = &["gaussian", "eva", "orthogonal"];

/// What the product of each module needs of a configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file as it is.
    pub value: Value,
    rank: u64,
    alpha: f64,
    rank_stabilised: bool,
    rank_pattern: Vec<(Suffix, u64)>,
    alpha_pattern: Vec<(Suffix, f64)>,
    targets: Targets,
}

/// What reading a configuration found.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) value: Option<Value>,
    pub(super) config: Option<Config>,
    pub(super) findings: Vec<Finding>,
    pub(super) faults: Vec<Error>,
}

impl Config {
    /// Reads a configuration; `path` is what errors name.
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

    /// The rank of the module of that path.
    pub fn rank(&self, module: &str) -> u64 {
        first_match(&self.rank_pattern, module).unwrap_or(self.rank)
    }

    /// What stands in front of the module's product.
    pub fn scaling(&self, module: &str) -> f64 {
        let (alpha, rank) = (first_match(&self.alpha_pattern, module).unwrap_or(self.alpha), self.rank(module) as f64);
        alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// Whether PEFT would put an adapter on the module of that path.
    pub fn targets(&self, module: &str) -> bool {
        self.targets.matches(module)
    }
}

/// PEFT takes the first key that matches, in the order of the file.
fn first_match<T: Copy>(table: &[(Suffix, T)], module: &str) -> Option<T> {
    table.iter().find(|(key, _)| key.matches(module)).map(|&(_, value)| value)
}

/// Whether a value says anything: null, false, 0 and what is empty do not.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value in one short line.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
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
                None if is_set(value) => ignored("unknown key: its meaning, if it has one, is left out"),
                None => ignored("unknown key, not set"),
            },
        }
    }
}

fn rank(value: &Value) -> Result<u64, String> {
    let fits = value.as_u64().filter(|rank| (1..=MAX_RANK).contains(rank));
    fits.ok_or_else(|| format!("expected a whole number from 1 to {MAX_RANK}, found {}", brief(value)))
}

fn number(value: &Value) -> Result<f64, String> {
    let fits = value.as_f64().filter(|number| number.is_finite() && number.abs() <= 1e9);
    fits.ok_or_else(|| format!("expected a number of at most 1e9, found {}", brief(value)))
}

fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(set) => Ok(*set),
        other => Err(format!("expected true or false, found {}", brief(other))),
    }
}

fn table<T>(value: &Value, read: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<(Suffix, T)>, String> {
    let map = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(map) => map,
        other => return Err(format!("expected an object of modules, found {}", brief(other))),
    };
    let expressions = map.keys().filter(|key| !Suffix::is_literal(key)).count();
    if expressions > MAX_EXPRESSIONS {
        return Err(format!("expected at most {MAX_EXPRESSIONS} regular expressions, found {expressions}"));
    }
    map.iter()
        .map(|(key, value)| {
            let named = |problem: String| format!("{key:?}: {problem}");
            Ok((Suffix::new(key).map_err(named)?, read(value).map_err(named)?))
        })
        .collect()
}

fn targets(value: &Value) -> Result<Targets, String> {
    match value {
        Value::Null => Ok(Targets::Any),
        Value::String(text) if text == "all-linear" => Ok(Targets::Any),
        Value::String(text) => Targets::regex(text),
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| format!("expected names, found {}", brief(item))));
            names.collect::<Result<_, _>>().map(Targets::Names)
        }
        other => Err(format!("expected a list of names or an expression, found {}", brief(other))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "config_tests.rs"]
mod tests;
