//! How PEFT matches the keys of `rank_pattern` and `alpha_pattern`, and `target_modules`, to module paths.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};

/// The most bytes of one compiled pattern.
const COMPILED_BYTES: usize = 1 << 18;

/// A key of a pattern table. It matches a module path that equals it, or that ends in it after a dot. PEFT reads the key as a regular
/// expression, so a dot in it is any one character.
#[derive(Clone, Debug)]
pub(super) enum Suffix {
    /// A key of letters, digits, `_`, `-` and dots only, as nearly all keys are. It needs no expression.
    Literal(String),
    /// The expression `^(?:.*\.)?(?:key)$`.
    Regex(Regex),
}

/// The modules for which an adapter was made.
#[derive(Clone, Debug)]
pub(super) enum Targets {
    /// All modules: nothing is said, or `all-linear`.
    Any,
    /// A module path that is one of these, or ends in one after a dot.
    Names(HashSet<String>),
    /// A module path that the expression matches whole.
    Regex(Regex),
}

impl Suffix {
    /// Whether a key needs a regular expression.
    pub(super) fn is_literal(key: &str) -> bool {
        key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c))
    }

    /// The matcher of a key.
    ///
    /// # Errors
    /// Why the key is not a regular expression that this engine takes (it has no look-around).
    pub(super) fn new(key: &str) -> Result<Self, String> {
        if Self::is_literal(key) { Ok(Self::Literal(key.into())) } else { compile(&format!(r"^(?:.*\.)?(?:{key})$")).map(Self::Regex) }
    }

    pub(super) fn matches(&self, module: &str) -> bool {
        let key = match self {
            Self::Regex(regex) => return regex.is_match(module),
            Self::Literal(key) => key,
        };
        let (mut ours, mut theirs) = (module.chars().rev(), key.chars().rev());
        for expected in theirs.by_ref() {
            match ours.next() {
                Some(found) if found == expected || expected == '.' => {}
                _ => return false,
            }
        }
        matches!(ours.next(), None | Some('.'))
    }
}

impl Targets {
    pub(super) fn regex(expression: &str) -> Result<Self, String> {
        compile(&format!("^(?:{expression})$")).map(Self::Regex)
    }

    pub(super) fn matches(&self, module: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Regex(regex) => regex.is_match(module),
            // By its ends and not by the names: there may be as many names as modules.
            Self::Names(names) => std::iter::once(module).chain(module.match_indices('.').map(|(dot, _)| &module[dot + 1..])).any(|end| names.contains(end)),
        }
    }
}

fn compile(expression: &str) -> Result<Regex, String> {
    RegexBuilder::new(expression).size_limit(COMPILED_BYTES).dfa_size_limit(COMPILED_BYTES).build().map_err(|error| error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_match_as_in_peft() {
        let table = [
            ("query", "encoder.layer.0.attention.self.query", true),
            ("query", "encoder.layer.0.attention.self.subquery", false),
            ("query", "query", true),
            ("self.query", "encoder.layer.0.attention.self.query", true),
            ("layer.0.query", "layer.10.query", false),
            ("layer.0.query", "xlayer.0.query", false),
            (r"layer\.(0|1)\.query", "encoder.layer.1.query", true),
            (r"layer\.(0|1)\.query", "encoder.layer.2.query", false),
            (r"layer\.\d+\.query", "encoder.layer.12.query", true),
            ("^query", "a.query", false),
            ("^query", "query", true),
            ("a|b", "x.b", true),
        ];
        for (key, module, expected) in table {
            assert_eq!(Suffix::new(key).unwrap().matches(module), expected, "{key} on {module}");
        }
        assert!(Suffix::new("(").is_err());
        assert!(Suffix::new("(?=x)").is_err());
        assert!(Suffix::new("(a{1000}){1000}").is_err());
    }

    #[test]
    fn targets_match_as_in_peft() {
        let names = Targets::Names(["query".into(), "output.dense".into()].into());
        assert!(names.matches("layer.0.query") && names.matches("attention.output.dense") && names.matches("query"));
        assert!(!names.matches("subquery") && !names.matches("intermediate.dense") && !names.matches(""));
        let regex = Targets::regex(r".*\.(q|v)_proj").unwrap();
        assert!(regex.matches("layers.0.q_proj") && !regex.matches("layers.0.q_proj.x") && !regex.matches("q_proj"));
    }

    proptest! {
        #[test]
        fn the_short_way_and_the_expression_agree(key in "[ab.]{1,5}", module in "[ab.]{0,9}") {
            let regex = compile(&format!(r"^(?:.*\.)?(?:{key})$")).unwrap();
            prop_assert_eq!(Suffix::Literal(key).matches(&module), regex.is_match(&module));
        }
    }
}
