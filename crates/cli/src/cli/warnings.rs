//! What must be said of a bundle that is not what a reader may take it for.

use std::collections::BTreeMap;

use trifuse::adapters::encode::EncodeOptions;
use trifuse::adapters::encoded::Rung;
use trifuse::adapters::peft::LoraAdapter;

use super::kept::{Adapter, Kept, mean, share};

/// Below this cosine of ΔW a projection is not called kept.
const LITTLE: f64 = 0.9;
/// Adapters that a warning names.
const NAMED: usize = 8;

/// What a reader must know before using the bundle, in sentences.
pub fn warnings(options: &EncodeOptions, adapters: &[LoraAdapter], kept: &Kept, uncalibrated: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(without_calibration(uncalibrated));
    if options.min_cosine.is_none() {
        warnings.extend(weights(kept));
    }
    if options.min_cosine.is_none() && options.max_output_error.is_none() && adapters.len() == 1 {
        warnings.push(
            "a lone adapter has none to share a basis with; adapters of one base model keep more in the same bytes where they are compressed together".into(),
        );
    }
    if kept.ratio > 1.0 {
        warnings.push("the file is LARGER than the adapters: what was asked leaves nothing to save".into());
    }
    warnings.extend(bases(adapters.iter().map(|adapter| (adapter.name.as_str(), &adapter.config))));
    warnings.extend(unknown_keys(adapters));
    warnings
}

fn without_calibration(uncalibrated: &[String]) -> Option<String> {
    let are = if uncalibrated.len() == 1 { "projection is" } else { "projections are" };
    (!uncalibrated.is_empty()).then(|| {
        format!(
            "{} {are} NOT calibrated, as the calibration file has no inputs of that name; encoded without, and measured on Gaussian inputs alone: {}",
            uncalibrated.len(),
            uncalibrated.join(", ")
        )
    })
}

/// The adapters that lost much of their weights, why, and what would keep them.
pub fn weights(kept: &Kept) -> Vec<String> {
    let weak: Vec<&Adapter> = kept.adapters.iter().filter(|adapter| adapter.cos_delta_min < LITTLE).collect();
    if weak.is_empty() {
        return Vec::new();
    }
    let lost = if weak.len() == kept.adapters.len() {
        format!("the weights are NOT kept: cos(ΔW) is {:.3} on average and {:.3} at the least", kept.cos_delta_mean, kept.cos_delta_min)
    } else {
        let told = weak.iter().map(|adapter| format!("{} ({:.3} on average, {:.3} at the least)", adapter.name, adapter.cos_delta_mean, adapter.cos_delta_min));
        format!("the weights of {} of {} adapters are NOT kept: cos(ΔW) of {}", weak.len(), kept.adapters.len(), some(told.collect()))
    };
    let advice = match kept.held_out() {
        Some(error) => format!(
            "the OUTPUT on held-out activations is off by {}: another measure, and the one that this file was encoded for; on other inputs it \
             is off by more (see \"output error\"). To keep the weights: --min-cosine 0.99",
            share(error)
        ),
        None => "to keep the weights: --min-cosine 0.99, which climbs to larger forms until every projection has it; to keep the OUTPUT on real \
                 inputs in fewer bytes: --calibration FILE"
            .into(),
    };
    vec![format!("{lost}; {}", cause(&weak)), advice]
}

/// Why weights were lost: by the form that most of the weak projections have.
fn cause(weak: &[&Adapter]) -> String {
    let lost: Vec<_> =
        weak.iter().flat_map(|adapter| &adapter.projections).map(|projection| &projection.certificate).filter(|c| c.cos_delta < LITTLE).collect();
    let own = lost.iter().filter(|certificate| matches!(certificate.rung, Rung::PrivateCoded | Rung::Plain)).count();
    if 2 * own <= lost.len() {
        return "a basis this small cannot hold what these adapters do not share (those trained from different starts share little)".into();
    }
    format!("the bytes that were asked for leave {:.1} bits an element", mean(lost.iter().map(|certificate| certificate.bits_per_element)).unwrap_or(0.0))
}

/// A note where adapters name different base models: shapes may agree where weights do not.
pub fn bases<'a>(adapters: impl Iterator<Item = (&'a str, &'a serde_json::Value)>) -> Option<String> {
    let mut by_base = BTreeMap::<&str, Vec<String>>::new();
    for (name, config) in adapters {
        if let Some(base) = config["base_model_name_or_path"].as_str().filter(|base| !base.is_empty()) {
            by_base.entry(base).or_default().push(name.into());
        }
    }
    let several = by_base.len() > 1;
    let told = by_base.into_iter().map(|(base, names)| format!("{base} ({})", some(names)));
    several.then(|| format!("the adapters name different base models, and an adapter is right on its own alone: {}", told.collect::<Vec<_>>().join("; ")))
}

/// Keys that are set and that this version does not know.
fn unknown_keys(adapters: &[LoraAdapter]) -> Option<String> {
    let mut by_key = BTreeMap::<&str, Vec<String>>::new();
    for adapter in adapters {
        for finding in adapter.findings.iter().filter(|finding| finding.is_unknown_key()) {
            by_key.entry(&finding.name).or_default().push(adapter.name.clone());
        }
    }
    let told: Vec<String> = by_key.into_iter().map(|(key, names)| format!("{key} ({})", some(names))).collect();
    (!told.is_empty()).then(|| format!("keys of adapter_config.json whose meaning, if they have one, is left out: {}", told.join("; ")))
}

/// The first few of a list, and how many more there are.
fn some(mut items: Vec<String>) -> String {
    let more = items.len().saturating_sub(NAMED);
    items.truncate(NAMED);
    if more > 0 {
        items.push(format!("and {more} more"));
    }
    items.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::kept::Projection;
    use super::*;

    fn adapter(name: &str, cosines: &[f64], rung: &str) -> Adapter {
        let projection = |cosine: &f64| {
            let certificate = json!({
                "rung": rung, "rank": 8, "basis_energy": 1.0, "cos_factor": 1.0, "cos_delta": cosine, "output_error_gaussian": 0.1,
                "output_error_held_out": null, "calibrated": false, "bits_per_element": 2.5, "bytes": 10, "bytes_before": 100
            });
            Projection { path: "q".into(), certificate: serde_json::from_value(certificate).unwrap() }
        };
        Adapter::new(name, 10, 0, cosines.iter().map(projection).collect())
    }

    fn kept(adapters: Vec<Adapter>) -> Kept {
        let cosines = || adapters.iter().map(|adapter| adapter.cos_delta_mean);
        let (cos_delta_mean, cos_delta_min) = (mean(cosines()).unwrap(), adapters.iter().map(|adapter| adapter.cos_delta_min).fold(1.0, f64::min));
        Kept { bytes_before: 1000, file_bytes: 100, shared_bytes: 0, header_bytes: 10, ratio: 0.1, cos_delta_mean, cos_delta_min, adapters }
    }

    #[test]
    fn one_weak_adapter_is_named_among_many_that_are_kept() {
        let said = weights(&kept(vec![adapter("good", &[0.99, 0.98], "shared_input"), adapter("weak", &[0.99, 0.849], "shared_input")]));
        assert!(said[0].contains("1 of 2 adapters") && said[0].contains("weak (0.919 on average") && said[0].contains("0.849 at the least"), "{said:?}");
        assert!(!said[0].contains("good"), "{said:?}");
        assert!(weights(&kept(vec![adapter("good", &[0.95], "shared_input")])).is_empty());
    }

    #[test]
    fn the_cause_is_the_form_that_lost() {
        let said = |rung: &str| weights(&kept(vec![adapter("a", &[0.5], rung)])).swap_remove(0);
        assert!(said("shared_input").contains("a basis this small") && said("clustered_input").contains("a basis this small"));
        assert!(said("private_coded").contains("leave 2.5 bits an element") && !said("private_coded").contains("basis"));
    }

    #[test]
    fn different_bases_are_named_with_their_adapters() {
        let config = |base: &str| json!({ "base_model_name_or_path": base });
        let (one, other, none) = (config("org/one"), config("org/other"), json!({}));
        let said = bases([("a", &one), ("b", &other), ("c", &one), ("d", &none)].into_iter()).unwrap();
        assert!(said.contains("org/one (a, c)") && said.contains("org/other (b)"), "{said}");
        assert_eq!(bases([("a", &one), ("c", &one), ("d", &none)].into_iter()), None);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some((0..10).map(|i| i.to_string()).collect()), "0, 1, 2, 3, 4, 5, 6, 7, and 2 more");
    }
}
