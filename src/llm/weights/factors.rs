//! The names that compressors give to the two factors of a projection, and one name for all: `<path>.v.weight`, `[rank, d_in]`, and `<path>.u.weight`,
//! `[d_out, rank]`.
//!
//! | whose | first factor | second factor |
//! |---|---|---|
//! | this crate's | `q_proj.v` | `q_proj.u` |
//! | SVD-LLM's | `q_v_proj` | `q_u_proj` |
//! | ASVD's | `q_proj.BLinear` | `q_proj.ALinear`, with the bias; the other way round in some files |
//! | PaLU's | `k_proj.VT` | `k_proj.U.0`, `k_proj.U.1` …, one for each group of heads |

use std::collections::BTreeMap;
use std::path::Path;

use super::source::{Elements, WeightSource};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The most factors of one projection's heads.
const MOST: usize = 1 << 12;

/// Weights whose factors have one kind of name.
pub struct Factors {
    inner: Box<dyn WeightSource>,
    /// The file's own names of each tensor. Several are blocks of one matrix, which has zeros beside them.
    names: BTreeMap<String, Vec<String>>,
}

impl Factors {
    /// Gives the factors of `inner` their one name.
    ///
    /// # Errors
    /// Two tensors for one place; blocks of a factor that lack one.
    pub fn new(inner: Box<dyn WeightSource>) -> Result<Self> {
        let mut found: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        for name in inner.names() {
            let (canonical, block) = canonical(inner.as_ref(), &name);
            if let Some(other) = found.entry(canonical).or_default().insert(block, name.clone()) {
                return Err(Error::input_item(inner.path(), name, format!("expected one tensor for its place, found {other} besides")));
            }
        }
        let mut names = BTreeMap::new();
        for (canonical, blocks) in found {
            if let Some((at, (_, name))) = blocks.iter().enumerate().find(|(at, (block, _))| at != *block) {
                return Err(Error::input_item(inner.path(), name, format!("expected a factor for group {at} of the heads before it, found none")));
            }
            names.insert(canonical, blocks.into_values().collect());
        }
        Ok(Self { inner, names })
    }
}

/// The one name of a tensor, and the number of its block.
fn canonical(source: &dyn WeightSource, name: &str) -> (String, usize) {
    let plain = || (name.to_owned(), 0);
    let Some((module, end)) = name.rsplit_once('.').filter(|(_, end)| ["weight", "bias"].contains(end)) else { return plain() };
    let named = |path: &str, factor: &str, block: usize| (if end == "bias" { format!("{path}.bias") } else { format!("{path}.{factor}.weight") }, block);
    for (own, factor) in [("u", "u"), ("v", "v")] {
        if let Some(path) = module.strip_suffix("_proj").and_then(|rest| rest.strip_suffix(&format!("_{own}"))) {
            return named(&format!("{path}_proj"), factor, 0);
        }
    }
    let Some((path, last)) = module.rsplit_once('.') else { return plain() };
    let of = |factor: &str| source.shape(&format!("{path}.{factor}.weight"));
    // Where the columns of A are not the rows of B, A is the first of the two.
    let turned = matches!((of("ALinear").as_deref(), of("BLinear").as_deref()), (Some(&[a, rank]), Some(&[other, b])) if rank != other && a == b);
    match (last, turned) {
        ("ALinear", false) | ("BLinear", true) => named(path, "u", 0),
        ("BLinear", false) | ("ALinear", true) => named(path, "v", 0),
        ("VT", _) => named(path, "v", 0),
        (number, _) => match (path.strip_suffix(".U"), number.parse::<usize>()) {
            (Some(path), Ok(block)) if block < MOST => named(path, "u", block),
            _ => plain(),
        },
    }
}

impl WeightSource for Factors {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        let mut shapes = self.names.get(name)?.iter().map(|own| self.inner.shape(own));
        let first = shapes.next()??;
        shapes.try_fold(first, |sum, shape| match (&sum[..], &shape?[..]) {
            (&[rows, columns], &[more, further]) => Some(vec![rows.checked_add(more)?, columns.checked_add(further)?]),
            _ => None,
        })
    }

    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let missing = || Error::input_item(self.path(), name, "expected this tensor, found none of that name");
        let own = self.names.get(name).ok_or_else(missing)?;
        if let [only] = &own[..] {
            return self.inner.read(only);
        }
        let Some(&[rows, columns]) = self.shape(name).as_deref() else {
            return Err(Error::input_item(self.path(), name, "expected matrices for the groups of heads, found another shape"));
        };
        let mut all = vec![0.0; (rows * columns) as usize];
        let (mut row, mut column) = (0, 0);
        for name in own {
            let (shape, values) = self.inner.read(name)?;
            let width = shape.last().map_or(1, |&width| width as usize);
            for line in values.chunks_exact(width) {
                all[row * columns as usize + column..][..width].copy_from_slice(line);
                row += 1;
            }
            column += width;
        }
        Ok((vec![rows, columns], all))
    }

    fn elements(&self, name: &str, shape: &[u64], dtype: DType) -> Option<Elements<'_>> {
        match self.names.get(name).map(Vec::as_slice) {
            Some([only]) => self.inner.elements(only, shape, dtype),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Tensors by name.
    struct Held(BTreeMap<&'static str, (Vec<u64>, Vec<f32>)>);

    impl WeightSource for Held {
        fn path(&self) -> &Path {
            Path::new("held")
        }

        fn shape(&self, name: &str) -> Option<Vec<u64>> {
            Some(self.0.get(name)?.0.clone())
        }

        fn names(&self) -> Vec<String> {
            self.0.keys().map(|&name| name.to_owned()).collect()
        }

        fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
            Ok(self.0[name].clone())
        }
    }

    fn factors(tensors: &[(&'static str, [u64; 2])]) -> Result<Factors> {
        let mut next = 0.0;
        let tensors = tensors.iter().map(|&(name, [rows, columns])| {
            let values = (0..rows * columns).map(|_| {
                next += 1.0;
                next
            });
            (name, (vec![rows, columns], values.collect()))
        });
        Factors::new(Box::new(Held(tensors.collect())))
    }

    #[test]
    fn every_compressor_has_its_names() {
        for (first, second) in [
            ("l.self_attn.q_proj.v.weight", "l.self_attn.q_proj.u.weight"),
            ("l.self_attn.q_v_proj.weight", "l.self_attn.q_u_proj.weight"),
            ("l.self_attn.q_proj.BLinear.weight", "l.self_attn.q_proj.ALinear.weight"),
            ("l.self_attn.q_proj.ALinear.weight", "l.self_attn.q_proj.BLinear.weight"),
            ("l.self_attn.q_proj.VT.weight", "l.self_attn.q_proj.U.0.weight"),
        ] {
            let read = factors(&[(first, [3, 5]), (second, [7, 3]), ("l.mlp.up_proj.weight", [2, 2])]).unwrap();
            assert_eq!(read.names(), ["l.mlp.up_proj.weight", "l.self_attn.q_proj.u.weight", "l.self_attn.q_proj.v.weight"], "{first}");
            assert_eq!((read.shape("l.self_attn.q_proj.v.weight"), read.shape("l.self_attn.q_proj.u.weight")), (Some(vec![3, 5]), Some(vec![7, 3])), "{first}");
        }
        let read = factors(&[("q_proj.BLinear.weight", [3, 5]), ("q_proj.ALinear.weight", [7, 3]), ("q_proj.ALinear.bias", [7, 1])]).unwrap();
        assert_eq!(read.names(), ["q_proj.bias", "q_proj.u.weight", "q_proj.v.weight"]);
    }

    #[test]
    fn groups_of_heads_are_blocks_of_one_factor() {
        let read = factors(&[("k_proj.VT.weight", [3, 4]), ("k_proj.U.0.weight", [2, 1]), ("k_proj.U.1.weight", [2, 2])]).unwrap();
        let (shape, values) = read.read("k_proj.u.weight").unwrap();
        assert_eq!((shape, values), (vec![4, 3], vec![13.0, 0.0, 0.0, 14.0, 0.0, 0.0, 0.0, 15.0, 16.0, 0.0, 17.0, 18.0]));
        let error = factors(&[("k_proj.U.0.weight", [2, 1]), ("k_proj.U.2.weight", [2, 2])]).err().unwrap();
        assert!(error.to_string().contains("group 1"), "{error}");
        let twice = factors(&[("k_proj.VT.weight", [3, 4]), ("k_proj.v.weight", [3, 4])]).err().unwrap();
        assert!(twice.to_string().contains("k_proj.VT.weight besides") || twice.to_string().contains("k_proj.v.weight besides"), "{twice}");
    }
}
