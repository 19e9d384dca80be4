//! Which projections a model's files have as two factors.

use super::config::Config;
use super::fill::Fill;
use super::ranks::Ranks;
use super::weights::WeightSource;
use crate::error::{Error, Result};

impl Config {
    /// What the padding of a projection carries, where the projection is factored and carries something.
    pub fn fill(&self, path: &str) -> Option<&Fill> {
        self.ranks.get(path).and(self.fills.get(path))
    }

    /// The columns between the two factors of a projection that its second factor reads.
    pub fn inner_rank(&self, path: &str) -> Option<u64> {
        self.fill(path).map(|fill| fill.rank).or_else(|| self.ranks.get(path))
    }

    /// This configuration with the ranks that the weights have. A file's own shapes decide; what the configuration says has to agree.
    ///
    /// # Errors
    /// A rank of the configuration that the weights do not have.
    pub fn with_ranks_of(&self, source: &dyn WeightSource) -> Result<Self> {
        let rank = |path: String| {
            let matrix = source.shape(&format!("{path}.weight"));
            let first = source.shape(&format!("{path}.v.weight"));
            match (matrix, first.as_deref()) {
                (None, Some(&[rank, _])) => Some((path, rank)),
                _ => None,
            }
        };
        let paths = (0..self.layers).flat_map(|layer| self.projections(layer).map(|(path, _)| path));
        let found = Ranks::new(paths.filter_map(rank));
        let other = self.ranks.iter().find(|&(path, rank)| found.get(path) != Some(rank));
        if let Some((path, rank)) = other {
            let found = found.get(path).map_or_else(|| "one matrix".to_owned(), |rank| format!("rank {rank}"));
            return Err(Error::input_item(source.path(), path, format!("expected factors of rank {rank}, as the configuration says, found {found}")));
        }
        Ok(Self { ranks: found, ..self.clone() })
    }
}
