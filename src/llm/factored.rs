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

    /// Whether adapters can add to a projection out of what it reads.
    ///
    /// # Errors
    /// k and v of a model whose pages hold latents: what an adapter adds to them is not in the latents.
    pub fn takes_adapters(&self, path: &str) -> Result<()> {
        let is_latent = self.latent && (path.ends_with(".k_proj") || path.ends_with(".v_proj"));
        let expected = "adapters that leave k and v as they are, or whose bases the padding carries (repair --fill), since pages hold latents of these";
        if is_latent { Err(Error::invalid("adapter", expected, path)) } else { Ok(()) }
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
        // Where factors were multiplied there is nothing between them.
        let latent = self.latent && !found.is_empty();
        let whole = (0..self.layers).flat_map(|layer| self.projections(layer).into_iter().skip(1).take(2)).find(|(path, _)| found.get(path).is_none());
        match whole.filter(|_| latent) {
            Some((path, _)) => Err(Error::input_item(source.path(), path, "expected factors of k and v in every layer, as pages hold what lies between them")),
            None => Ok(Self { ranks: found, latent, ..self.clone() }),
        }
    }
}
