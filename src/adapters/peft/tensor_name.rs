//! The meaning of a tensor's name in `adapter_model.safetensors`.

/// The two factors of LoRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// The meaning of a tensor's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TensorName<'a> {
    /// One factor of the module with this path.
    Factor(&'a str, Side),
    /// Something that plain LoRA does not have: what it is, and what to do.
    Foreign(&'static str),
}

const PREFIX: &str = "base_model.model.";

impl<'a> TensorName<'a> {
    /// Reads `[base_model.model.]<module>.lora_A[.<adapter>].weight`. PEFT writes the prefix, and leaves out its own name of the adapter
    /// (`default`). Other programs do otherwise.
    pub(super) fn parse(name: &'a str) -> Self {
        let bare = name.strip_prefix(PREFIX).unwrap_or(name);
        let segments: Vec<&str> = bare.split('.').collect();
        if segments.iter().any(|segment| segment.starts_with("lora_magnitude_vector")) {
            return Self::Foreign("DoRA's magnitudes (use_dora), which change the product; merge the adapter or train it without DoRA");
        }
        if segments.iter().any(|segment| segment.starts_with("lora_embedding_")) {
            return Self::Foreign(
                "LoRA on an embedding (lora_embedding_A, lora_embedding_B), which is looked up and not multiplied; leave embeddings out of target_modules",
            );
        }
        if segments.iter().any(|segment| matches!(*segment, "modules_to_save" | "original_module")) {
            return Self::Foreign("a module trained whole (modules_to_save), which has no low-rank form; save it beside the adapter instead");
        }
        let found = segments.iter().enumerate().rev().find_map(|(at, segment)| match *segment {
            "lora_A" => Some((at, Side::A)),
            "lora_B" => Some((at, Side::B)),
            _ => None,
        });
        let Some((at, side)) = found else {
            return match segments.last() {
                Some(&"bias") => Self::Foreign("a trained bias (bias other than none), which LoRA's product does not hold; train with bias: none"),
                _ if segments.iter().any(|segment| matches!(*segment, "lora_down" | "lora_up" | "alpha")) => {
                    Self::Foreign("a name as kohya's and diffusers' trainers write it (lora_down, lora_up, alpha); convert the adapter to PEFT's form")
                }
                _ => Self::Foreign("a tensor that is none: of a module trained whole (modules_to_save), or of another method; only lora_A and lora_B are read"),
            };
        };
        match &segments[at + 1..] {
            ["bias"] | [_, "bias"] => Self::Foreign("a bias of a factor (lora_bias), which the product does not hold; train with lora_bias: false"),
            ["weight"] | [_, "weight"] if at > 0 => {
                let path: usize = segments[..at].iter().map(|segment| segment.len() + 1).sum();
                match &bare[..path - 1] {
                    "" => Self::Foreign("a factor of no module; its name lacks the module's path"),
                    module => Self::Factor(module, side),
                }
            }
            _ => Self::Foreign("not a name that PEFT writes; expected [base_model.model.]MODULE.lora_A.weight or .lora_B.weight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_other_methods_are_told_apart() {
        let table = [
            ("base_model.model.q.lora_magnitude_vector", "use_dora"),
            ("base_model.model.q.lora_magnitude_vector.default.weight", "use_dora"),
            ("base_model.model.emb.lora_embedding_A", "lora_embedding_A"),
            ("base_model.model.q.lora_B.bias", "lora_bias"),
            ("base_model.model.q.bias", "bias other than none"),
            ("base_model.model.pre_classifier.weight", "modules_to_save"),
            ("base_model.model.score.modules_to_save.weight", "modules_to_save"),
            ("lora_A.weight", "not a name"),
            (".lora_A.weight", "no module"),
            ("q.lora_A", "not a name"),
            ("q.lora_A.a.b.weight", "not a name"),
            ("", "a tensor that is none"),
            ("lora_te_text_model_q.lora_down.weight", "kohya"),
            ("lora_te_text_model_q.alpha", "kohya"),
        ];
        for (name, word) in table {
            match TensorName::parse(name) {
                TensorName::Foreign(reason) => assert!(reason.contains(word), "{name}: {reason}"),
                other @ TensorName::Factor(..) => assert_eq!(other, TensorName::Foreign(""), "{name}"),
            }
        }
    }

    proptest! {
        #[test]
        fn every_way_to_write_a_factor_is_read(
            module in "[a-z][a-z_]{0,6}(\\.[a-z0-9_]{1,6}){0,4}",
            prefixed in any::<bool>(),
            infix in proptest::option::of("[a-z]{1,8}"),
            second in any::<bool>(),
        ) {
            let prefix = if prefixed { PREFIX } else { "" };
            let infix = infix.map_or_else(String::new, |name| format!(".{name}"));
            let (letter, side) = if second { ("B", Side::B) } else { ("A", Side::A) };
            let name = format!("{prefix}{module}.lora_{letter}{infix}.weight");
            prop_assert_eq!(TensorName::parse(&name), TensorName::Factor(&module, side));
        }

        #[test]
        fn any_text_is_read_without_panic(name in "(\\.|lora_A|lora_B|weight|bias|[a-zé]|base_model.model.){0,8}") {
            TensorName::parse(&name);
        }
    }
}
