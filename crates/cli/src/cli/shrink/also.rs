//! The models that one run of `shrink` makes.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use trifuse::shrink::plan::Rule;
use trifuse::{Error, Result};

/// A model beside the first, of the same factors.
#[derive(Clone, Debug)]
pub struct Also {
    keep: f64,
    ranks: Rule,
    output: PathBuf,
}

impl FromStr for Also {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("--also", "a share, a rule of ranks and a folder, as 0.8:align:16=DIR", text);
        let (how, output) = text.split_once('=').filter(|(_, output)| !output.is_empty()).ok_or_else(wrong)?;
        let (keep, ranks) = how.split_once(':').ok_or_else(wrong)?;
        Ok(Self { keep: keep.parse().map_err(|_| wrong())?, ranks: ranks.parse()?, output: output.into() })
    }
}

/// What is asked of one model.
pub struct Share<'a> {
    pub keep: f64,
    pub ranks: Rule,
    pub output: &'a Path,
}

impl<'a> Share<'a> {
    /// The first model, and those beside it.
    pub fn all(keep: f64, ranks: Rule, output: &'a Path, also: &'a [Also]) -> Vec<Self> {
        let others = also.iter().map(|also| Self { keep: also.keep, ranks: also.ranks, output: &also.output });
        [Self { keep, ranks, output }].into_iter().chain(others).collect()
    }
}
