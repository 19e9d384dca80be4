//! What the padding of first factors carries: the input bases that a population of adapters shares.
//!
//! The first factor `V [rank, d_in]` of a projection is stored with more rows than its rank. `repair --fill` puts the bases into them, and one product then
//! gives what the second factor reads and what every adapter of the population reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::cache::Digest;
use super::keys::Keys;
use super::ranks::{KEY, Ranks};
use crate::adapters::encoded::SharedProjection;
use crate::error::Result;

/// The bases in the padding of one projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The rank of the factors without the padding.
    pub rank: u64,
    /// The row of the first factor where the bases begin.
    pub at: u64,
    /// How many bases there are.
    pub bases: u64,
    /// Columns of each basis, which are rows of the factor.
    pub columns: u64,
    /// The SHA-256 of the bases, by which their population is known.
    pub sha256: String,
}

impl Fill {
    /// The bases of a population behind a factor of `rank` rows; `None` where the population shares none. They begin at a multiple of eight rows, so
    /// that what they give is aligned in every type.
    pub fn of(rank: u64, shared: &SharedProjection) -> Option<Self> {
        let columns = shared.input_bases.first()?.cols as u64;
        Some(Self { rank, at: rank.next_multiple_of(8), bases: shared.input_bases.len() as u64, columns, sha256: digest(shared) })
    }

    /// Rows that the bases take.
    pub fn rows(&self) -> u64 {
        self.bases * self.columns
    }

    /// What `low_rank` says of them.
    pub fn json(&self) -> Value {
        json!({"at": self.at, "bases": self.bases, "columns": self.columns, "sha256": self.sha256})
    }
}

/// The SHA-256 of the input bases of a projection, in hexadecimal.
pub fn digest(shared: &SharedProjection) -> String {
    let values = shared.input_bases.iter().flat_map(|basis| &basis.data);
    let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
    Digest::of(&bytes).0.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The fills of a model, by module path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fills(BTreeMap<String, Fill>);

impl Fills {
    /// What the key `fill` of `low_rank` says, beside the `stored` ranks.
    ///
    /// # Errors
    /// A value of another form; bases that do not lie between the rank and the stored rank of a projection.
    pub fn of_keys(keys: &Keys<'_>, stored: &Ranks) -> Result<Self> {
        let low_rank = keys.get(KEY).and_then(Value::as_object);
        let of = |key: &str| low_rank.and_then(|map| map.get(key)).filter(|value| !value.is_null());
        let Some(value) = of("fill") else { return Ok(Self::default()) };
        let Some(map) = value.as_object() else { return keys.refuse(KEY, "fill to be an object of bases by path", value) };
        let mut all = BTreeMap::new();
        for (path, value) in map {
            let number = |key: &str| value.get(key).and_then(Value::as_u64).filter(|number| *number < 1 << 24);
            let rank = of("ranks").and_then(|ranks| ranks.get(path)).and_then(Value::as_u64);
            let sha256 = value.get("sha256").and_then(Value::as_str);
            let found = match (rank, number("at"), number("bases"), number("columns"), sha256) {
                (Some(rank), Some(at), Some(bases), Some(columns), Some(sha256)) => Some(Fill { rank, at, bases, columns, sha256: sha256.to_owned() }),
                _ => None,
            };
            let fits =
                |fill: &Fill| fill.rank > 0 && fill.rows() > 0 && fill.rank <= fill.at && stored.get(path).is_some_and(|rows| fill.at + fill.rows() <= rows);
            match found.filter(fits) {
                Some(fill) => drop(all.insert(path.clone(), fill)),
                None => return keys.refuse(KEY, format_args!("the bases in {path} between its rank and its stored rank, and their sha256"), value),
            }
        }
        Ok(Self(all))
    }

    /// What the padding of a projection carries.
    pub fn get(&self, path: &str) -> Option<&Fill> {
        self.0.get(path)
    }

    /// Whether no factor carries bases.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use half::f16;
    use serde_json::Map;

    use super::*;
    use crate::adapters::encoded::Matrix;

    fn read(low_rank: Value) -> Result<Fills> {
        let map = Map::from_iter([(KEY.to_owned(), low_rank)]);
        let keys = Keys { path: Path::new("config.json"), map: &map };
        Fills::of_keys(&keys, &Ranks::of_keys(&keys, |_| true)?)
    }

    #[test]
    fn bases_lie_in_the_padding() {
        let basis = |value: f32| Matrix::new(4, 3, vec![f16::from_f32(value); 12]).unwrap();
        let shared = SharedProjection { d_in: 4, d_out: 2, input_bases: vec![basis(1.0), basis(2.0)], output_bases: Vec::new() };
        let fill = Fill::of(21, &shared).unwrap();
        assert_eq!((fill.at, fill.rows(), fill.sha256.len()), (24, 6, 64));
        assert_ne!(digest(&SharedProjection { input_bases: vec![basis(1.0), basis(3.0)], ..shared.clone() }), fill.sha256);
        assert_eq!(Fill::of(21, &SharedProjection { input_bases: Vec::new(), ..shared }), None);
        let with = |stored: u64, fill: Value| read(json!({"ranks": {"p": 21}, "stored": {"p": stored}, "fill": {"p": fill}}));
        assert_eq!(with(32, fill.json()).unwrap().0["p"], fill);
        // Bases that reach beyond the stored rank, that lie in the factor itself, or of which something is not told.
        assert!(with(29, fill.json()).is_err());
        for (key, value) in [("at", json!(20)), ("bases", json!(0)), ("columns", json!(null)), ("sha256", json!(7))] {
            let mut other = fill.json();
            other[key] = value;
            assert!(with(32, other).is_err(), "{key}");
        }
        assert!(read(json!({"fill": [1]})).is_err() && read(json!({"fill": {"p": fill.json()}})).is_err() && read(json!({})).unwrap().is_empty());
    }
}
