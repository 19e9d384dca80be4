use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use sha2::{Digest, Sha256};

use trifuse::dtype::DType;

/// A seeded source of operands. The same seed gives the same values on every machine.
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// A source seeded by `name`.
    pub fn seeded(name: &str) -> Self {
        Self(ChaCha8Rng::from_seed(Sha256::digest(name.as_bytes()).into()))
    }

    /// One number of the standard normal distribution.
    pub fn gaussian(&mut self) -> f64 {
        self.0.sample(StandardNormal)
    }

    /// `count` numbers of a normal distribution with that deviation, rounded to `dtype`.
    pub fn normal(&mut self, dtype: DType, count: u64, deviation: f64) -> Vec<f64> {
        (0..count).map(|_| dtype.round(self.gaussian() * deviation)).collect()
    }

    /// `Some` of [`normal`](Self::normal) where `wanted`.
    pub fn optional(&mut self, wanted: bool, dtype: DType, count: u64, deviation: f64) -> Option<Vec<f64>> {
        wanted.then(|| self.normal(dtype, count, deviation))
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0.random_range(0..limit)
    }

    /// A random word.
    pub fn word(&mut self) -> u32 {
        self.0.random()
    }

    /// `count` code indices below `limit`.
    pub fn codes(&mut self, count: u64, limit: u32) -> Vec<u8> {
        (0..count).map(|_| self.below(limit.max(1)) as u8).collect()
    }

    /// `rows` rows of `columns` normal numbers, `stride` from start to start, NaN between.
    pub fn pitched(&mut self, dtype: DType, [rows, columns]: [u64; 2], stride: u64, deviation: f64) -> Vec<f64> {
        let mut values = Vec::new();
        for row in 0..rows {
            values.resize((row * stride) as usize, f64::NAN);
            values.extend(self.normal(dtype, columns, deviation));
        }
        values
    }
}
