//! The windows of text that a model is calibrated by, weighed by and measured on.

use std::path::PathBuf;

use sha2::{Digest, Sha256};
use trifuse::llm::Files;
use trifuse::llm::perplexity::windows;
use trifuse::read::read_file;
use trifuse::{Error, Result};

use crate::cli::texts::{Documents, end, tokens};

/// The longest text, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// What is read to calibrate, to weigh and to measure by.
#[derive(Debug, clap::Args)]
pub struct Calibration {
    /// Texts to calibrate by, equally much of each; may be given again
    #[arg(long, value_name = "FILE")]
    calibrate: Vec<PathBuf>,
    /// How a text is cut into documents
    #[arg(long, value_enum, default_value_t = Documents::Whole, value_name = "HOW")]
    documents: Documents,
    /// Tokens to calibrate by, of all texts together
    #[arg(long, default_value_t = 262_144, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub window: u32,
    /// Tokens by which the worth of each projection is measured; 0 for errors relative to its outputs, which rank projections badly
    #[arg(long, default_value_t = 256, value_name = "N")]
    probe: u32,
    /// Other tokens of the texts, on which the result is measured; 0 for none
    #[arg(long, default_value_t = 2048, value_name = "N")]
    held_out: u32,
}

/// Windows of the texts, none in two of the three.
pub struct Texts {
    /// What moments are collected on.
    pub windows: Vec<Vec<u32>>,
    /// What the worth of projections is measured on.
    pub probe: Vec<Vec<u32>>,
    /// What the result is measured on.
    pub held_out: Vec<Vec<u32>>,
    pub names: Vec<String>,
    /// Of each text.
    pub sha256: Vec<String>,
}

impl Calibration {
    /// Cuts the texts into windows, in turn from each, and shares them out: the probe and what is held out first, then as much as the calibration
    /// takes. Nothing where there are no texts.
    pub fn texts(&self, files: &Files) -> Result<Option<Texts>> {
        let Some(first) = self.calibrate.first() else { return Ok(None) };
        let length = self.window as usize;
        let (mut cut, mut names, mut sha256) = (Vec::new(), Vec::new(), Vec::new());
        for path in &self.calibrate {
            cut.push(windows(&tokens(files, path, self.documents)?, end(files), length));
            names.push(path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default());
            let digest = Sha256::digest(read_file(path, MAX_TEXT_BYTES)?);
            sha256.push(digest.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        let longest = cut.iter().map(Vec::len).max().unwrap_or(0);
        let mut all = (0..longest).flat_map(|at| cut.iter().filter_map(move |windows| windows.get(at).cloned()));
        let mut take = |tokens: u32| -> Vec<Vec<u32>> {
            let mut some: Vec<Vec<u32>> = all.by_ref().take((tokens as usize).div_ceil(length)).collect();
            // Fewer tokens than a window has are its first ones.
            if let ([only], true) = (&mut some[..], (2..length).contains(&(tokens as usize))) {
                only.truncate(tokens as usize);
            }
            some
        };
        let (probe, held_out) = (take(self.probe), take(self.held_out));
        let windows = take(self.tokens);
        if windows.is_empty() {
            let wanted = self.probe.div_ceil(self.window) + self.held_out.div_ceil(self.window) + 1;
            let found = probe.len() + held_out.len();
            return Err(Error::input(
                first,
                format!("expected texts of at least {wanted} windows of {length} tokens, found {found}; a shorter --window needs less"),
            ));
        }
        Ok(Some(Texts { windows, probe, held_out, names, sha256 }))
    }
}
