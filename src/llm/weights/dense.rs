//! Weights whose factors are multiplied: for what knows matrices alone.

use std::path::Path;

use super::source::WeightSource;
use crate::error::{Error, Result};

/// The weights of `inner` with one matrix for each pair of factors, multiplied in f64 and rounded once.
pub struct Dense<'a>(pub &'a dyn WeightSource);

/// The names of the two factors of a matrix, `[d_out, rank]` first.
fn factors(name: &str) -> Option<[String; 2]> {
    let path = name.strip_suffix(".weight")?;
    Some(["u", "v"].map(|factor| format!("{path}.{factor}.weight")))
}

impl WeightSource for Dense<'_> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.0.shape(name).or_else(|| {
            let [u, v] = factors(name)?;
            Some(vec![*self.0.shape(&u)?.first()?, *self.0.shape(&v)?.get(1)?])
        })
    }

    fn names(&self) -> Vec<String> {
        let whole = |name: String| match name.strip_suffix(".v.weight") {
            Some(path) => Some(format!("{path}.weight")),
            None => (!name.ends_with(".u.weight")).then_some(name),
        };
        self.0.names().into_iter().filter_map(whole).collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let Some([u, v]) = factors(name).filter(|[u, v]| self.0.shape(name).is_none() && self.0.shape(u).is_some() && self.0.shape(v).is_some()) else {
            return self.0.read(name);
        };
        let ((u_shape, left), (v_shape, right)) = (self.0.read(&u)?, self.0.read(&v)?);
        match (&u_shape[..], &v_shape[..]) {
            (&[rows, rank], &[other, columns]) if rank == other => Ok((vec![rows, columns], product(&left, &right, rank as usize, columns as usize))),
            _ => Err(Error::input_item(self.path(), u, format!("expected factors with the same rank, found {u_shape:?} and {v_shape:?}"))),
        }
    }
}

/// `left · right`, where right has `rank` rows of `columns`.
fn product(left: &[f32], right: &[f32], rank: usize, columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; columns];
    let rows = left.chunks_exact(rank).flat_map(|row| {
        sums.fill(0.0);
        for (&factor, line) in row.iter().zip(right.chunks_exact(columns)) {
            sums.iter_mut().zip(line).for_each(|(sum, &value)| *sum += f64::from(factor) * f64::from(value));
        }
        sums.iter().map(|&sum| sum as f32).collect::<Vec<_>>()
    });
    rows.collect()
}
