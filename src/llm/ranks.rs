//! The ranks of factored projections: `W = U·V`, where U is `[d_out, rank]` and V `[rank, d_in]`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::keys::Keys;
use crate::error::Result;

/// The key of a configuration that tells of factored projections.
pub const KEY: &str = "low_rank";
/// The largest rank that a configuration may give.
const MOST: u64 = 1 << 20;

/// The rank of each factored projection as it is stored, by module path. A projection without an entry is one matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(BTreeMap<String, u64>);

impl Ranks {
    /// Projections and their ranks.
    pub fn new(ranks: impl IntoIterator<Item = (String, u64)>) -> Self {
        Self(ranks.into_iter().collect())
    }

    /// What the key `low_rank` says: `stored`, or `ranks` where a path has no other number there.
    ///
    /// # Errors
    /// A value of another form; a stored rank below the rank; a path that `known` does not know.
    pub fn of_keys(keys: &Keys<'_>, known: impl Fn(&str) -> bool) -> Result<Self> {
        let Some(value) = keys.get(KEY) else { return Ok(Self::default()) };
        let Some(map) = value.as_object() else { return keys.refuse(KEY, "an object", value) };
        let ranks = numbers(keys, map, "ranks", &known)?;
        let mut all = numbers(keys, map, "stored", &known)?;
        for (path, rank) in ranks {
            let stored = *all.entry(path.clone()).or_insert(rank);
            if stored < rank {
                return keys.refuse(KEY, format_args!("{path} to be stored with its rank {rank} at least"), stored);
            }
        }
        Ok(Self(all))
    }

    /// Whether pages are to hold what lies between the factors of k and v: `low_rank` says so by `latent`, PaLU's configuration by its ranks of
    /// heads.
    ///
    /// # Errors
    /// A value that is no truth.
    pub fn latent(keys: &Keys<'_>) -> Result<bool> {
        match keys.get(KEY).and_then(|map| map.get("latent")) {
            None | Some(Value::Null) => Ok(keys.get("head_wise_ranks").is_some_and(Value::is_object)),
            Some(Value::Bool(latent)) => Ok(*latent),
            Some(other) => keys.refuse(KEY, "latent to be true or false", other),
        }
    }

    /// The stored rank of a projection, where it is factored.
    pub fn get(&self, path: &str) -> Option<u64> {
        self.0.get(path).copied()
    }

    /// Whether no projection is factored.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The factored projections and their stored ranks.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(path, &rank)| (path.as_str(), rank))
    }
}

/// The ranks by path below a key of `low_rank`.
fn numbers(keys: &Keys<'_>, map: &Map<String, Value>, key: &str, known: impl Fn(&str) -> bool) -> Result<BTreeMap<String, u64>> {
    let object = match map.get(key) {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(object)) => object,
        Some(other) => return keys.refuse(KEY, format_args!("{key} to be an object of ranks by path"), other),
    };
    let mut all = BTreeMap::new();
    for (path, value) in object {
        let rank = value.as_u64().filter(|rank| (1..=MOST).contains(rank));
        match rank {
            Some(rank) if known(path) => all.insert(path.clone(), rank),
            Some(_) => return keys.refuse(KEY, "projections of the model, such as model.layers.0.self_attn.q_proj", path),
            None => return keys.refuse(KEY, format_args!("a rank of {path} from 1 to {MOST}"), value),
        };
    }
    Ok(all)
}
