//! What is asked of an operation's table: its names, and the choice of a variant.

use super::{Target, Variant};
use crate::error::{Error, Result};
use crate::ops::Op;

/// How many variants a table has: lines of one name are one.
pub const fn count<O: Op>(table: &[Variant<O>]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < table.len() {
        count += is_first(table, at) as usize;
        at += 1;
    }
    count
}

/// The names of the variants in a table, of which there are `N`, in the order of their first lines.
pub const fn names<O: Op, const N: usize>(table: &[Variant<O>]) -> [&'static str; N] {
    let (mut names, mut met, mut at) = ([""; N], 0, 0);
    while at < table.len() {
        if is_first(table, at) {
            names[met] = table[at].name;
            met += 1;
        }
        at += 1;
    }
    names
}

/// Whether no line before line `at` has its name.
const fn is_first<O: Op>(table: &[Variant<O>], at: usize) -> bool {
    let mut before = 0;
    while before < at {
        if is_same(table[before].name.as_bytes(), table[at].name.as_bytes()) {
            return false;
        }
        before += 1;
    }
    true
}

/// Whether two names are one, which `==` does not say of constants.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The first line that supports `op` and suits it, with the target of its fastest configuration. Where none suits, the last that supports
/// `op`: tables end with what serves everything, and a variant's lines with its most general kernels. `only` names a variant, whose lines
/// alone are asked, or a configuration as `name:config`. The error has every line's reason.
pub(crate) fn choose<O: Op>(table: &'static [Variant<O>], op: &O, target: &Target, only: Option<&str>) -> Result<(&'static Variant<O>, Target)> {
    let (only, config) = only.map_or((None, None), |only| only.split_once(':').map_or((Some(only), None), |(name, config)| (Some(name), Some(config))));
    let lines = table.iter().filter(|variant| only.is_none_or(|name| name == variant.name));
    if let Some(config) = config {
        return named(lines, op, target, config);
    }
    let (mut reasons, mut slower) = (Vec::new(), None);
    for variant in lines {
        match variant.accepts(op, target) {
            Ok(()) if (variant.suits)(op, target).is_ok() => return Ok((variant, variant.cheapest(op, target))),
            Ok(()) => slower = Some(variant),
            Err(reason) => reasons.push(format!("{}: {reason}", variant.name)),
        }
    }
    slower.map(|variant| (variant, variant.cheapest(op, target))).ok_or_else(|| Error::unsupported(O::NAME, reasons.join("; ")))
}

/// The line among a variant's `lines` that has the configuration named `config`, with that configuration's target.
fn named<O: Op>(lines: impl Iterator<Item = &'static Variant<O>>, op: &O, target: &Target, config: &str) -> Result<(&'static Variant<O>, Target)> {
    let (mut known, mut label) = (Vec::new(), O::NAME);
    for variant in lines {
        let names = variant.config_names(target.arch);
        if let Some(number) = names.iter().position(|name| name == config) {
            let target = Target { config: Some(number as u16), ..*target };
            let able = variant.accepts(op, &target).map(|()| (variant, target));
            return able.map_err(|reason| Error::unsupported(O::NAME, format!("{}:{config}: {reason}", variant.name)));
        }
        known.extend(names);
        label = variant.label;
    }
    Err(Error::invalid(format!("configuration of {label}"), format!("one of {known:?}"), config))
}
