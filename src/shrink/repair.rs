//! Ranks that are stored as multiples of a number: zeros are added, and the model stays what it was.
//!
//! The first factor gets rows of zeros and the second columns of them. The products between have zeros there, and nothing is added by them.
//! Engines that are slow at odd sizes are fast at the padded ones; this crate's own pads rows in memory anyway.
//!
//! The rows that the first factor gets may carry the input bases that a population of adapters shares, in place of zeros. The second factor has zeros there
//! all the same, so that the model stays what it was, and what adapters read comes with the projection's own product.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use half::f16;

use crate::adapters::encoded::Matrix;
use crate::adapters::engine::AdapterSource;
use crate::error::{Error, Result};
use crate::llm::{Config, Fill, WeightSource};

/// What stored ranks are rounded up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Multiples of a number.
    Multiple(u64),
    /// Multiples of 64 where that adds at most a hundredth, else of 16 where that does, else of 8.
    Recommended,
}

impl Target {
    /// The rank that a rank is stored with.
    pub fn of(self, rank: u64) -> u64 {
        match self {
            Self::Multiple(number) => rank.next_multiple_of(number.max(1)),
            Self::Recommended => {
                let little = |number: u64| Some(rank.next_multiple_of(number)).filter(|stored| (stored - rank) * 100 <= rank);
                little(64).or_else(|| little(16)).unwrap_or_else(|| rank.next_multiple_of(8))
            }
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "8" => Ok(Self::Multiple(8)),
            "16" => Ok(Self::Multiple(16)),
            "64" => Ok(Self::Multiple(64)),
            "recommended" => Ok(Self::Recommended),
            _ => Err(Error::invalid("repair", "8, 16, 64 or recommended", text)),
        }
    }
}

/// The bases that the padding of a projection's first factor is to carry.
pub struct Filling {
    /// Where they lie.
    pub fill: Fill,
    bases: Vec<Matrix<f16>>,
}

/// The bases that the factored projections of a model are to carry, by module path: those of the population `source`.
///
/// # Errors
/// Adapters of another model; adapters that share no input basis in any factored projection; a source that cannot be read.
pub fn fillings(config: &Config, source: &dyn AdapterSource) -> Result<BTreeMap<String, Filling>> {
    let mut all = BTreeMap::new();
    for (path, shared) in source.projections()? {
        config.fits(&path, [shared.d_out as u64, shared.d_in as u64])?;
        let Some(fill) = config.ranks.get(&path).and_then(|rank| Fill::of(rank, &shared)) else { continue };
        all.insert(path, Filling { fill, bases: shared.input_bases });
    }
    if all.is_empty() {
        return Err(Error::invalid("--fill", "adapters that share an input basis in a factored projection", "none: compress them with shared bases"));
    }
    Ok(all)
}

/// Weights whose factors have zeros added, or bases.
pub struct Padded<'a> {
    inner: &'a dyn WeightSource,
    stored: &'a BTreeMap<String, u64>,
    fillings: Option<&'a BTreeMap<String, Filling>>,
}

/// A factor of a projection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Factor {
    First,
    Second,
}

impl<'a> Padded<'a> {
    /// The weights of `inner` with the factors of each path of `stored` padded to its rank there.
    pub fn new(inner: &'a dyn WeightSource, stored: &'a BTreeMap<String, u64>) -> Self {
        Self { inner, stored, fillings: None }
    }

    /// Puts `fillings` into the padding of first factors.
    #[must_use]
    pub fn with_fillings(self, fillings: &'a BTreeMap<String, Filling>) -> Self {
        Self { fillings: Some(fillings), ..self }
    }

    fn factor<'n>(&self, name: &'n str) -> Option<(Factor, u64, &'n str)> {
        let (path, factor) = match (name.strip_suffix(".v.weight"), name.strip_suffix(".u.weight")) {
            (Some(path), _) => (path, Factor::First),
            (None, Some(path)) => (path, Factor::Second),
            (None, None) => return None,
        };
        Some((factor, *self.stored.get(path)?, path))
    }
}

impl WeightSource for Padded<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        let mut shape = self.inner.shape(name)?;
        if let Some((factor, stored, _)) = self.factor(name) {
            *shape.get_mut(usize::from(factor == Factor::Second))? = stored;
        }
        Some(shape)
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let (shape, mut values) = self.inner.read(name)?;
        let (Some((factor, stored, path)), &[rows, columns]) = (self.factor(name), &shape[..]) else { return Ok((shape, values)) };
        let rank = if factor == Factor::First { rows } else { columns };
        if rank > stored {
            return Err(Error::input_item(self.path(), name, format!("expected a rank of at most {stored}, found {rank}")));
        }
        if factor == Factor::First {
            values.resize((stored * columns) as usize, 0.0);
            if let Some(filling) = self.fillings.and_then(|fillings| fillings.get(path)) {
                let rows = filling.bases.iter().flat_map(|basis| (0..basis.cols).map(move |column| (basis, column)));
                for (to, (basis, column)) in values.chunks_exact_mut(columns as usize).skip(filling.fill.at as usize).zip(rows) {
                    to.iter_mut().enumerate().for_each(|(row, to)| *to = basis.at(row, column).to_f32());
                }
            }
            return Ok((vec![stored, columns], values));
        }
        let mut padded = vec![0.0; (rows * stored) as usize];
        for (to, from) in padded.chunks_exact_mut(stored as usize).zip(values.chunks_exact(columns as usize)) {
            to[..from.len()].copy_from_slice(from);
        }
        Ok((vec![rows, stored], padded))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct One(Vec<u64>, Vec<f32>);

    impl WeightSource for One {
        fn path(&self) -> &Path {
            Path::new("one")
        }

        fn shape(&self, _: &str) -> Option<Vec<u64>> {
            Some(self.0.clone())
        }

        fn names(&self) -> Vec<String> {
            vec!["p.u.weight".into(), "p.v.weight".into(), "q.v.weight".into()]
        }

        fn read(&self, _: &str) -> Result<(Vec<u64>, Vec<f32>)> {
            Ok((self.0.clone(), self.1.clone()))
        }
    }

    #[test]
    fn zeros_lie_behind_the_rank() {
        let (one, stored) = (One(vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]), BTreeMap::from([("p".to_owned(), 4)]));
        let padded = Padded::new(&one, &stored);
        assert_eq!(padded.read("p.v.weight").unwrap(), (vec![4, 2], vec![1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]));
        assert_eq!(padded.read("p.u.weight").unwrap(), (vec![2, 4], vec![1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]));
        assert_eq!(padded.read("q.v.weight").unwrap().0, [2, 2]);
        assert_eq!((padded.shape("p.u.weight"), padded.shape("p.v.weight")), (Some(vec![2, 4]), Some(vec![4, 2])));
        assert!(Padded::new(&one, &BTreeMap::from([("p".to_owned(), 1)])).read("p.v.weight").is_err());
        // A basis [2, 1] in the last row, and nothing of it in the second factor.
        let bases = vec![Matrix::new(2, 1, vec![f16::from_f32(5.0), f16::from_f32(6.0)]).unwrap()];
        let fill = Fill { rank: 2, at: 3, bases: 1, columns: 1, sha256: String::new() };
        let fillings = BTreeMap::from([("p".to_owned(), Filling { fill, bases })]);
        let filled = Padded::new(&one, &stored).with_fillings(&fillings);
        assert_eq!(filled.read("p.v.weight").unwrap().1, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5.0, 6.0]);
        assert_eq!(filled.read("p.u.weight").unwrap(), padded.read("p.u.weight").unwrap());
    }

    #[test]
    fn targets_round_up() {
        let of = |target: &str, rank| target.parse::<Target>().unwrap().of(rank);
        assert_eq!([of("8", 107), of("16", 107), of("64", 107), of("8", 64)], [112, 112, 128, 64]);
        // 1,433 of Llama-2-7B: 1,472 would add 2.7 %, 1,440 half of one; 2,552 is 8 below a multiple of 64; 107 is far from both.
        assert_eq!([of("recommended", 1433), of("recommended", 2552), of("recommended", 107)], [1440, 2560, 112]);
        assert!("12".parse::<Target>().is_err());
    }
}
