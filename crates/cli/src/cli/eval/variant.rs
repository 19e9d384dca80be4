//! The models of a run, each with its name in the report.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use trifuse::backends::AnyDevice;
use trifuse::llm::{Config, Files, Model, Ranks};
use trifuse::shrink::repair::{Padded, Target};
use trifuse::{DType, Result};

/// What the command line of an earlier study calls the models of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kind {
    /// The baseline itself
    Baseline,
    /// The model as it is stored
    Palu,
    /// The model with its ranks padded to multiples of 8
    PaluRepair,
}

/// A model of a run.
pub struct Variant {
    pub name: String,
    pub files: Files,
    repaired: bool,
}

impl Variant {
    /// The model `name`.
    ///
    /// # Errors
    /// The errors of [`Files::open`].
    pub fn open(name: &Path, repaired: bool) -> Result<Self> {
        let told = if repaired { format!("{}, repaired to 8", name.display()) } else { name.display().to_string() };
        Ok(Self { name: told, files: Files::open(name)?, repaired })
    }

    /// The configuration of what is measured, with the ranks that its weights have, or are padded to.
    ///
    /// # Errors
    /// Factors of ranks that the configuration does not know.
    pub fn config(&self) -> Result<Config> {
        let config = self.files.config.with_ranks_of(self.files.weights.as_ref())?;
        if !self.repaired {
            return Ok(config);
        }
        let padded = config.ranks.iter().map(|(path, rank)| (path.to_owned(), Target::Multiple(8).of(rank)));
        let ranks = Ranks::new(padded);
        Ok(Config { ranks, ..config })
    }

    /// The model on a device.
    ///
    /// # Errors
    /// The errors of [`Model::open`].
    pub fn model(&self, device: Arc<AnyDevice>, dtype: DType) -> Result<Model<AnyDevice>> {
        if !self.repaired {
            return Model::open(device, &self.files, dtype);
        }
        let config = self.config()?;
        let stored: BTreeMap<String, u64> = config.ranks.iter().map(|(path, rank)| (path.to_owned(), rank)).collect();
        Model::new(device, config, &Padded::new(self.files.weights.as_ref(), &stored), dtype)
    }
}
