//! `decompress`: a bundle in, PEFT folders out.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::decompress::{decompress_within, most_bytes};
use trifuse::adapters::peft::TENSOR_FILE;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report, bytes};
use super::progress::Progress;

/// Arguments of `decompress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The bundle
    #[arg(value_name = "FILE.s2lc")]
    bundle: PathBuf,
    /// The folder to write into, one folder an adapter; it must not hold anything yet
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Only this adapter; may be given again
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// What the weights are written as; f16 rounds once more
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Bytes of tensors to write at most; by default 256 times the bundle and 64 MiB
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
}

/// Element types that PEFT loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Precision {
    /// Half precision
    F16,
    /// Single precision
    F32,
}

/// The result.
#[derive(Debug, Serialize)]
struct Decompressed<'a> {
    bundle: &'a Path,
    output: &'a Path,
    dtype: DType,
    adapters: Vec<Written>,
}

/// One folder.
#[derive(Debug, Serialize)]
struct Written {
    name: String,
    folder: PathBuf,
    /// Bytes of its file of tensors.
    bytes: u64,
}

/// Decodes and writes.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    let bundle = Bundle::open(&args.bundle)?;
    let names: Vec<String> = match args.adapter.is_empty() {
        true => bundle.adapters().map(str::to_owned).collect(),
        false => {
            let mut names = args.adapter.clone();
            names.sort();
            names.dedup();
            names
        }
    };
    let dtype = match args.dtype {
        Precision::F16 => DType::F16,
        Precision::F32 => DType::F32,
    };
    let progress = Progress::new(output, "decoding", 0);
    let interrupt = Interrupt::listen()?;
    let go_on = || if interrupt.asked() { Err(Error::io(&args.output, "write")(std::io::ErrorKind::Interrupted.into())) } else { Ok(()) };
    let most = args.max_bytes.unwrap_or_else(|| most_bytes(&bundle));
    let done = decompress_within(&bundle, Some(&names), &args.output, dtype, most, &go_on);
    drop(progress);
    if done.is_err() && interrupt.asked() {
        return Ok(Outcome::interrupted(output, &args.output));
    }
    done?;
    let written = names.into_iter().map(|name| {
        let folder = args.output.join(&name);
        let file = folder.join(TENSOR_FILE);
        let bytes = std::fs::metadata(&file).map_err(Error::io(&file, "read"))?.len();
        Ok(Written { name, folder, bytes })
    });
    let adapters = written.collect::<Result<_>>()?;
    output.report(&Decompressed { bundle: &args.bundle, output: &args.output, dtype, adapters })?;
    Ok(Outcome::Right)
}

impl Report for Decompressed<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let rows = self.adapters.iter().map(|adapter| vec![adapter.name.clone(), adapter.folder.display().to_string(), bytes(adapter.bytes)]);
        let rows: Vec<_> = rows.collect();
        page.table(&["adapter", "folder", "tensors"], &[2], rows)?;
        page.line(format_args!("factors in {}; `trifuse inspect {}` says what they kept", self.dtype, self.bundle.display()))
    }
}
