//! The making of a pack: similar kernels lie side by side, each machine code once, in blocks compressed on all cores.

use std::collections::{BTreeMap, HashMap};
use std::io::{Error, Result, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lzma_rust2::{LzmaOptions, LzmaWriter};
use sha2::{Digest, Sha256};

use super::built::{Built, hex};
use super::pack::{Block, Content, Index, MAGIC, MOST_BYTES};
use super::unit::{Arch, Unit};
use crate::dtype::DType;

/// Bytes of a block before compression, unless one kernel alone has more. This much is decompressed to read one kernel. Blocks of 4 MiB
/// make a pack an eighth larger.
const BLOCK_BYTES: usize = 8 << 20;

/// Units and machine codes that are to become a pack.
#[derive(Debug, Default)]
pub struct PackWriter {
    compiler: Option<(i32, i32)>,
    /// The hash of each unit, and the SHA-256 of its machine code.
    units: BTreeMap<String, String>,
    /// Machine codes by their SHA-256.
    bodies: HashMap<String, Body>,
}

/// One machine code with its log.
#[derive(Debug)]
struct Body {
    /// The sort key. Bodies with neighbouring keys are alike.
    order: String,
    /// The log and the CUBIN.
    bytes: Vec<u8>,
    /// Bytes of the log.
    log: usize,
}

impl PackWriter {
    /// An empty pack, made by that NVRTC.
    pub fn new(compiler: Option<(i32, i32)>) -> Self {
        Self { compiler, ..Self::default() }
    }

    /// Adds a unit.
    pub fn add(&mut self, unit: &Unit, arch: Arch, built: &Built) {
        let sum = hex(&Sha256::digest(&built.cubin));
        self.units.insert(unit.hash(arch), sum.clone());
        self.bodies.entry(sum).or_insert_with(|| {
            // Units that differ in dtype alone differ in few instructions.
            let is_type = |word: &&str| word.trim_end_matches(',').parse::<DType>().is_ok();
            let (types, shape): (Vec<&str>, Vec<&str>) = unit.name.split(' ').partition(is_type);
            let order = format!("{arch} {} {} {}", unit.source.path, shape.join(" "), types.join(" "));
            Body { order, bytes: [built.log.as_bytes(), &built.cubin].concat(), log: built.log.len() }
        });
    }

    /// Writes the pack.
    pub fn write(&self, to: &mut dyn Write) -> Result<()> {
        let mut bodies: Vec<(&String, &Body)> = self.bodies.iter().collect();
        bodies.sort_by_key(|(sum, body)| (&body.order, *sum));
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        let mut contents = Vec::new();
        let mut places = HashMap::new();
        for (number, (sum, body)) in bodies.into_iter().enumerate() {
            match blocks.last_mut().filter(|block| block.len() + body.bytes.len() <= BLOCK_BYTES) {
                Some(block) => block.extend_from_slice(&body.bytes),
                None => blocks.push(body.bytes.clone()),
            }
            let (block, end) = (blocks.len() - 1, blocks.last().map_or(0, Vec::len));
            let checksum = hex(&Sha256::digest(&body.bytes));
            contents.push(Content { block, start: end - body.bytes.len(), log: body.log, cubin: body.bytes.len() - body.log, sum: checksum });
            places.insert(sum, number);
        }
        let packed = compress_all(&blocks)?;
        let index = Index {
            compiler: self.compiler,
            blocks: packed.iter().zip(&blocks).map(|(packed, block)| Block { packed: packed.len() as u64, bytes: block.len() as u64 }).collect(),
            contents,
            units: self.units.iter().filter_map(|(hash, sum)| Some((hash.clone(), *places.get(sum)?))).collect(),
        };
        let index = compress(&serde_json::to_vec(&index)?)?;
        to.write_all(MAGIC)?;
        to.write_all(&Sha256::digest(&index))?;
        to.write_all(&(index.len() as u64).to_le_bytes())?;
        to.write_all(&index)?;
        packed.iter().try_for_each(|block| to.write_all(block))
    }
}

fn compress_all(blocks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let results: Vec<Mutex<Option<Result<Vec<u8>>>>> = blocks.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((block, result)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| blocks.get(at).zip(results.get(at))) {
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(compress(block));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(blocks.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let lost = || Error::other("a thread ended without its block");
    results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or_else(lost)?).collect()
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::other(format!("a block of a pack is at most {MOST_BYTES} bytes, and this one has {}", bytes.len())));
    }
    let mut options = LzmaOptions::with_preset(9);
    options.dict_size = u32::try_from(bytes.len()).unwrap_or(u32::MAX).next_power_of_two().max(1 << 16);
    options.nice_len = LzmaOptions::NICE_LEN_MAX;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(bytes.len() as u64))?;
    writer.write_all(bytes)?;
    writer.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::pack::{Pack, Packs};
    use super::super::sources::Source;
    use super::*;

    fn unit(name: &str) -> Unit {
        Unit { defines: vec![("NAME", name.into())], ..Unit::new(name, Source { path: "probe.cu", text: "" }) }
    }

    /// Machine code of `bytes` bytes, different for each number.
    fn built(number: u8, bytes: usize) -> Built {
        Built { cubin: (0..bytes).map(|at| (at / 7) as u8 ^ number).collect(), log: format!("ptxas info: {number}") }
    }

    fn pack(units: &[(&str, Built)]) -> Vec<u8> {
        let mut writer = PackWriter::new(Some((13, 0)));
        for (name, built) in units {
            writer.add(&unit(name), Arch(90), built);
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes).unwrap();
        bytes
    }

    fn hash(name: &str) -> String {
        unit(name).hash(Arch(90))
    }

    #[test]
    fn every_unit_comes_back_and_the_same_code_is_kept_once() {
        let large = 5 << 20;
        let units = [("one f16", built(1, large)), ("one bf16", built(2, large)), ("two", built(1, large)), ("three", built(3, 100)), ("four", built(4, 0))];
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), pack(&units)).unwrap();
        let opened = Pack::open(file.path()).unwrap();
        assert_eq!((opened.len(), opened.index().contents.len(), opened.index().blocks.len()), (5, 4, 2));
        assert_eq!(opened.index().compiler, Some((13, 0)));
        for (name, built) in &units {
            assert!(opened.get(&hash(name)).unwrap().as_ref() == Some(built), "{name}");
        }
        assert_eq!(opened.get(&hash("five")).unwrap(), None);
        assert!(std::fs::metadata(file.path()).unwrap().len() < 1 << 16, "it is compressed");
    }

    #[test]
    fn a_damaged_pack_is_an_error_or_passed_over_with_its_name() {
        let whole = pack(&[("one", built(1, 300)), ("two", built(2, 400))]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pack");
        let look = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let packs = Packs::at(folder.path());
            (packs.get(&hash("one")), packs.refused())
        };
        assert_eq!(look(&whole), (Some(built(1, 300)), Vec::new()));
        for length in 0..whole.len() {
            let (found, refused) = look(&whole[..length]);
            assert!(found.is_none() && refused.len() == 1 && refused[0].contains("a.pack"), "{length}: {refused:?}");
        }
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 16;
            let (found, refused) = look(&flipped);
            assert!(found.as_ref().is_none_or(|found| *found == built(1, 300)), "byte {byte}");
            assert!(found.is_some() || refused[0].contains("a.pack"), "byte {byte}: {refused:?}");
        }
        assert!(Packs::at(&folder.path().join("none.pack")).refused()[0].contains("none.pack"));
    }

    #[test]
    fn packs_of_a_folder_are_looked_into_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.pack"), pack(&[("one", built(1, 10))])).unwrap();
        std::fs::write(folder.path().join("b.pack"), pack(&[("one", built(2, 10)), ("two", built(2, 10))])).unwrap();
        std::fs::write(folder.path().join("c.pack"), b"something else").unwrap();
        std::fs::write(folder.path().join("readme"), b"no pack").unwrap();
        let packs = Packs::at(folder.path());
        assert_eq!((packs.get(&hash("one")), packs.get(&hash("two"))), (Some(built(1, 10)), Some(built(2, 10))));
        assert!(matches!(&packs.refused()[..], [reason] if reason.contains("c.pack")), "{:?}", packs.refused());
        assert!(!packs.is_empty() && Packs::default().is_empty());
    }
}
