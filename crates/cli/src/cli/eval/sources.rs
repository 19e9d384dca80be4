//! What a report was made of: models and texts, by their SHA-256.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use trifuse::llm::{Config, WeightSource};
use trifuse::{Error, Result};

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// A file and its content.
#[derive(Debug, Serialize)]
pub struct Source {
    pub file: PathBuf,
    pub sha256: String,
}

/// A model: the files that its numbers are from, and its ranks.
#[derive(Debug, Serialize)]
pub struct ModelSource {
    pub model: String,
    pub files: Vec<Source>,
    /// How many projections are two factors of which ranks, where any are.
    pub ranks: Option<RankCounts>,
}

/// The stored ranks of a model's factored projections.
#[derive(Debug, PartialEq, Serialize)]
pub struct RankCounts {
    /// Projections of two factors.
    pub factored: usize,
    pub least: u64,
    pub most: u64,
    /// Those whose rank is a multiple of 8, of 16, and of neither.
    pub aligned8: usize,
    pub aligned16: usize,
    pub odd: usize,
}

impl RankCounts {
    /// The ranks of a configuration; `None` where every projection is one matrix.
    pub fn of(config: &Config) -> Option<Self> {
        let ranks: Vec<u64> = config.ranks.iter().map(|(_, rank)| rank).collect();
        let (least, most) = (*ranks.iter().min()?, *ranks.iter().max()?);
        let multiples = |of: u64| ranks.iter().filter(|rank| rank.is_multiple_of(of)).count();
        let aligned8 = multiples(8);
        Some(Self { factored: ranks.len(), least, most, aligned8, aligned16: multiples(16), odd: ranks.len() - aligned8 })
    }
}

/// The files that hold a model's weights, and its configuration where that is a file of its own.
///
/// # Errors
/// An index that cannot be read.
pub fn files(weights: &dyn WeightSource) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = weights.path();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut all = BTreeSet::from([path.to_path_buf()]);
    if path.extension().is_some_and(|end| end == "json") {
        let text = std::fs::read(path).map_err(Error::io(path, "read"))?;
        // A configuration whose weights are drawn names none.
        if let Ok(Index { weight_map }) = serde_json::from_slice::<Index>(&text) {
            all.extend(weight_map.values().map(|name| folder.join(name)));
        }
    }
    all.extend(Some(folder.join("config.json")).filter(|path| path.is_file()));
    Ok(all.into_iter().collect())
}

/// The content of each file, hashed by all threads.
///
/// # Errors
/// A file that cannot be read.
pub fn hashed(files: &[PathBuf]) -> Result<Vec<Source>> {
    files.par_iter().map(|file| Ok(Source { file: file.clone(), sha256: hash(file)? })).collect()
}

/// The SHA-256 of a file in hexadecimal, as `sha256sum` writes it.
fn hash(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    let (mut digest, mut bytes) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut bytes).map_err(Error::io(path, "read"))? {
            0 => return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => digest.update(&bytes[..count]),
        }
    }
}
