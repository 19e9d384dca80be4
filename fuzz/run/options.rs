//! The runner's options.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub const USAGE: &str = "run [--seconds N] [--count N] [--target NAME] [--seed N] [--input FILE] [--found DIR] [--keep DIR]
  --seconds  what each target is fuzzed for (5)
  --count    the most inputs of a target
  --target   one target
  --seed     other inputs than those of seed 0; the same again for the same seed
  --input    parse this file alone, which a finding has left
  --found    where the inputs of findings go (target/fuzz)
  --keep     write small inputs of each sort of answer there, to be kept in fuzz/kept";

/// What is fuzzed, and for how long.
pub struct Options {
    pub seconds: Duration,
    pub count: u64,
    pub target: Option<String>,
    pub seed: u64,
    pub input: Option<PathBuf>,
    pub found: PathBuf,
    pub keep: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: super::SECONDS,
            count: u64::MAX,
            target: None,
            seed: 0,
            input: None,
            found: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz"),
            keep: None,
        }
    }
}

impl Options {
    /// The options of a command line.
    ///
    /// # Errors
    /// An option that is not known or has no value, or a target that is not there.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("expected a value behind {name}, found none"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name}: expected a number, found {value}"));
            match name.as_str() {
                "--seconds" => options.seconds = Duration::from_secs(number()?),
                "--count" => (options.count, options.seconds) = (number()?, Duration::from_secs(u64::from(u32::MAX))),
                "--target" if super::subjects::ALL.iter().all(|subject| subject.name != value) => {
                    return Err(format!(
                        "--target: expected one of {:?}, found {value}",
                        super::subjects::ALL.iter().map(|subject| subject.name).collect::<Vec<_>>()
                    ));
                }
                "--target" => options.target = Some(value.clone()),
                "--seed" => options.seed = number()?,
                "--input" => options.input = Some(value.into()),
                "--found" => options.found = value.into(),
                "--keep" => options.keep = Some(value.into()),
                _ => return Err(format!("expected an option, found {name}")),
            }
        }
        Ok(options)
    }
}
