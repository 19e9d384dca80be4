//! Packs: many compiled kernels in one read-only file. A pack serves whatever NVRTC is installed, and where there is none.
//!
//! Layout: the magic line; the SHA-256 of the index; its length, 8 bytes, little-endian; the index, JSON, compressed; blocks, each
//! compressed (`.lzma`). A block holds the machine code and logs of kernels that are much alike. To read one kernel, one block is
//! decompressed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::built::{Built, hex};
use crate::error::{Error, Result};

/// The environment variable that names a pack, or a folder of packs (`*.pack`), to search before the cache.
pub const KERNELS: &str = "TRIFUSE_KERNELS";

/// The first line of a pack: its kind, and the version of its layout.
pub const MAGIC: &[u8] = b"trifuse pack 1\n";

/// The most bytes that a block, or the index, may hold. A damaged length then asks for no more.
pub const MOST_BYTES: u64 = 64 << 20;

/// The contents of a pack, and where they lie.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Index {
    /// The NVRTC that made the pack, where it was known.
    pub compiler: Option<(i32, i32)>,
    /// The blocks, in their order behind the index.
    pub blocks: Vec<Block>,
    /// Every machine code, each once.
    pub contents: Vec<Content>,
    /// Which of the contents is a unit's machine code, by the unit's hash.
    pub units: BTreeMap<String, usize>,
}

/// A compressed block of a pack.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Bytes of the block in the file.
    pub packed: u64,
    /// Bytes of the block after decompression.
    pub bytes: u64,
}

/// One machine code with its log, which comes first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Content {
    /// The number of the block.
    pub block: usize,
    /// The offset of the log in the block.
    pub start: usize,
    /// Bytes of the log.
    pub log: usize,
    /// Bytes of the CUBIN.
    pub cubin: usize,
    /// The SHA-256 of log and CUBIN.
    pub sum: String,
}

/// An open pack.
#[derive(Debug)]
pub struct Pack {
    path: PathBuf,
    file: Mutex<File>,
    index: Index,
    /// The offset of each block in the file.
    starts: Vec<u64>,
    /// The block that was read last: a plan wants several kernels of one block.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl Pack {
    /// Opens a pack and reads its index.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::io(path, "open"))?;
        let mut read = |what: &str, bytes: u64| -> Result<Vec<u8>> {
            let mut found = Vec::new();
            file.by_ref().take(bytes).read_to_end(&mut found).map_err(Error::io(path, "read"))?;
            let short = || damaged(path, format!("{bytes} bytes of {what}"), format!("{}: the file ends", found.len()));
            if found.len() as u64 == bytes { Ok(found) } else { Err(short()) }
        };
        if !read("the first line", MAGIC.len() as u64).is_ok_and(|line| line == MAGIC) {
            return Err(Error::input(path, "expected a pack of kernels that this version of trifuse reads, found another first line"));
        }
        let sum = read("a checksum", 32)?;
        let length = read("a length", 8)?.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let packed = read("the index", length.min(MOST_BYTES))?;
        if Sha256::digest(&packed).as_slice() != sum {
            return Err(damaged(path, "an index with its checksum", "another"));
        }
        let bytes = decompress(&packed).map_err(Error::io(path, "decompress"))?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| damaged(path, "an index", error))?;
        let first = (MAGIC.len() + 32 + 8) as u64 + length;
        let ends = index.blocks.iter().scan(first, |end, block| {
            let start = *end;
            *end = end.saturating_add(block.packed);
            Some(start)
        });
        Ok(Self { path: path.into(), file: Mutex::new(file), starts: ends.collect(), index, last: Mutex::new(None) })
    }

    /// The pack's index.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// How many units the pack has.
    pub fn len(&self) -> usize {
        self.index.units.len()
    }

    /// Whether the pack has no units.
    pub fn is_empty(&self) -> bool {
        self.index.units.is_empty()
    }

    /// The machine code of the unit with this hash, if the pack has it.
    pub fn get(&self, hash: &str) -> Result<Option<Built>> {
        let Some(&number) = self.index.units.get(hash) else { return Ok(None) };
        let content = self.index.contents.get(number).ok_or_else(|| damaged(&self.path, format!("contents up to number {number}"), "fewer"))?;
        let block = self.block(content.block)?;
        let end = content.log.saturating_add(content.cubin).saturating_add(content.start);
        let body = block.get(content.start..end).ok_or_else(|| damaged(&self.path, format!("a block of at least {end} bytes"), block.len()))?;
        if hex(&Sha256::digest(body)) != content.sum {
            return Err(damaged(&self.path, "a kernel with its checksum", "another"));
        }
        let (log, cubin) = body.split_at(content.log);
        Ok(Some(Built { cubin: cubin.to_vec(), log: String::from_utf8_lossy(log).into_owned() }))
    }

    fn block(&self, number: usize) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, block)) = last.as_ref().filter(|(last, _)| *last == number) {
            return Ok(Arc::clone(block));
        }
        let block = Arc::new(self.read_block(number)?);
        *last = Some((number, Arc::clone(&block)));
        Ok(block)
    }

    fn read_block(&self, number: usize) -> Result<Vec<u8>> {
        let place = self.starts.get(number).zip(self.index.blocks.get(number));
        let (start, block) = place.ok_or_else(|| damaged(&self.path, format!("blocks up to number {number}"), self.starts.len()))?;
        let mut packed = Vec::new();
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(*start)).map_err(Error::io(&self.path, "read"))?;
            file.by_ref().take(block.packed.min(MOST_BYTES)).read_to_end(&mut packed).map_err(Error::io(&self.path, "read"))?;
        }
        let bytes = decompress(&packed).map_err(Error::io(&self.path, "decompress"))?;
        if bytes.len() as u64 == block.bytes { Ok(bytes) } else { Err(damaged(&self.path, format!("a block of {} bytes", block.bytes), bytes.len())) }
    }
}

fn damaged(path: &Path, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
    Error::input(path, format!("a damaged pack: expected {expected}, found {found}; fetch it again, or make it with `trifuse kernels --output`"))
}

fn decompress(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = lzma_rust2::LzmaReader::new_mem_limit(packed, (MOST_BYTES >> 10) as u32 * 2, None)?;
    reader.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Packs that are searched in turn. One that cannot be used is refused, and the reason kept.
#[derive(Debug, Default)]
pub struct Packs {
    packs: Vec<Pack>,
    refused: Mutex<BTreeSet<String>>,
}

impl Packs {
    /// The pack `path`, or the packs in the folder `path`, sorted by name.
    pub fn at(path: &Path) -> Self {
        let mut paths = vec![path.to_owned()];
        if let Ok(entries) = std::fs::read_dir(path) {
            paths = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "pack")).collect();
            paths.sort();
        }
        let mut all = Self::default();
        for path in paths {
            match Pack::open(&path) {
                Ok(pack) => all.packs.push(pack),
                Err(error) => all.refuse(&error),
            }
        }
        all
    }

    /// The packs that the environment names in [`KERNELS`].
    pub fn from_environment() -> Self {
        std::env::var_os(KERNELS).filter(|value| !value.is_empty()).map(|path| Self::at(Path::new(&path))).unwrap_or_default()
    }

    /// The machine code of the unit with this hash, from the first pack that has it.
    pub fn get(&self, hash: &str) -> Option<Built> {
        self.packs.iter().find_map(|pack| {
            pack.get(hash).unwrap_or_else(|error| {
                self.refuse(&error);
                None
            })
        })
    }

    /// Whether the packs have no units at all.
    pub fn is_empty(&self) -> bool {
        self.packs.iter().all(Pack::is_empty)
    }

    /// Why packs, or kernels in them, were refused.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn refuse(&self, error: &Error) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(error.to_string());
    }
}
