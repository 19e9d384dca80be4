//! `compress`: PEFT folders in, one bundle out, with a certificate for every adapter and projection.

use std::path::PathBuf;

use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `compress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Adapter folders (adapter_config.json and adapter_model.safetensors), or folders that hold such folders
    #[arg(required = true, value_name = "DIR")]
    pub adapters: Vec<PathBuf>,
    /// The bundle to write
    #[arg(long, short, value_name = "FILE.s2lc")]
    pub output: PathBuf,
    #[command(flatten)]
    pub rank: Rank,
    /// Refuse to write a bundle in which any projection keeps less than this cosine between ΔW and what it decodes to
    #[arg(long, value_name = "COSINE", value_parser = fraction)]
    pub min_cosine: Option<f64>,
    /// Refuse to write a bundle in which any projection's output is off by more than this share on held-out activations
    #[arg(long, value_name = "SHARE", value_parser = fraction, requires = "calibration")]
    pub max_output_error: Option<f64>,
    /// Bits an element of the codes, on average, shared out over the columns by their energy
    #[arg(long, value_name = "BITS")]
    pub bits: Option<f64>,
    /// Activations by projection (.safetensors) to encode for
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Other activations to measure on; without them a part of the calibration is held out
    #[arg(long, value_name = "FILE", requires = "calibration")]
    pub held_out: Option<PathBuf>,
    /// Seed of the clustering: the same seed gives the same file
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// How large the shared bases are; without any, the smallest that the other options allow.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct Rank {
    /// Columns of every basis
    #[arg(long, value_name = "R")]
    pub rank: Option<usize>,
    /// The smallest basis that keeps this share of ‖ΔW‖²
    #[arg(long, value_name = "SHARE", value_parser = fraction)]
    pub energy: Option<f64>,
    /// The largest basis with which the bundle is this many times smaller than the adapters
    #[arg(long, value_name = "RATIO")]
    pub max_ratio: Option<f64>,
}

/// A number from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// Encodes and writes.
pub fn run(_args: &Args, _output: &Output) -> Result<Outcome> {
    Err(Error::unsupported("compress", "the encoder is not in this build"))
}
