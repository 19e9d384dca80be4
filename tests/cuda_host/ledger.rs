//! The ledger of verified kernels: what each compiled to when it was last judged, by the hash of its unit.
//!
//! `./check` judges what the ledger holds by its line, and compiles what it does not hold. A few lines that are drawn for each revision,
//! and all of them in `./check full`, are compiled again, and a kernel that is not what its line says fails.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

use trifuse::backends::cuda::jit::{Arch, Unit};
use trifuse::backends::cuda::{Entry, catalogue, nvrtc_version};

use super::compile::{compile, disassemble};
use super::waits;

/// The committed lines; `scripts/ledger.sh` writes them.
const LINES: &str = include_str!("ledger.txt");
/// The first line of the file: what its columns are.
const HEADER: &str = "# unit arch nvrtc entry registers spills local shared HMMA HGMMA early";

/// What one kernel compiled to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The start of the unit's hash: 20 digits.
    unit: String,
    arch: String,
    /// The compiler, as `13.0`.
    nvrtc: String,
    entry: String,
    registers: u32,
    /// Bytes stored and loaded to spill registers.
    spills: u32,
    /// Bytes of local memory of a thread.
    local: u32,
    /// Bytes of shared memory of a block, static and dynamic.
    shared: u32,
    /// Tensor-core instructions of either kind.
    hmma: usize,
    hgmma: usize,
    /// Instructions that reach device memory in front of the wait for the launch before, where nothing tells the host of them.
    early: usize,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, arch, nvrtc, entry, registers, spills, local, shared, hmma, hgmma, early } = self;
        write!(f, "{unit} {arch} {nvrtc} {entry} {registers} {spills} {local} {shared} {hmma} {hgmma} {early}")
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let [unit, arch, nvrtc, entry, numbers @ ..] = &words[..] else { return Err(format!("expected {HEADER:?}; found {text:?}")) };
        let numbers: Vec<u32> = numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(|error| format!("{text:?}: {error}"))?;
        let [registers, spills, local, shared, hmma, hgmma, early] = numbers[..] else { return Err(format!("expected 7 numbers; found {text:?}")) };
        let [hmma, hgmma, early] = [hmma, hgmma, early].map(|count| count as usize);
        let [unit, arch, nvrtc, entry] = [unit, arch, nvrtc, entry].map(|word| word.to_string());
        Ok(Self { unit, arch, nvrtc, entry, registers, spills, local, shared, hmma, hgmma, early })
    }
}

/// A unit of the catalogue, and what its machine code must show.
#[derive(Clone)]
pub struct Work {
    pub unit: Unit,
    pub arch: Arch,
    /// The variant that it is of first, as `linear/sm90`; units beside variants' own are of `helpers`.
    pub of: String,
    /// What its machine code must show.
    pub instruction: Option<&'static str>,
}

impl Work {
    fn key(&self) -> String {
        key(&self.unit, self.arch)
    }

    /// Compiles it, and reads what came of it; none where the assembler said nothing, as of code that NVRTC has in a cache of its own.
    pub fn measure(&self) -> Option<Line> {
        let (major, minor) = nvrtc_version().unwrap();
        let built = compile(&self.unit, self.arch).unwrap();
        let serialized: Vec<_> = built.log.lines().filter(|line| line.contains("instructions are serialized")).collect();
        assert!(serialized.is_empty(), "{} {}: the assembler has every product waited for: {serialized:?}", self.unit.name, self.arch);
        let used = trifuse::backends::cuda::jit::resources(&built);
        assert!(used.len() < 2, "{}: expected one kernel; found {used:?}", self.unit.name);
        let used = used.first()?;
        let code = disassemble(&built.cubin);
        let count = |word: &str| code.lines().filter(|line| line.split_whitespace().any(|found| found.starts_with(word))).count();
        Some(Line {
            unit: self.key(),
            arch: self.arch.to_string(),
            nvrtc: format!("{major}.{minor}"),
            entry: used.entry.clone(),
            registers: used.registers,
            spills: used.spill_bytes,
            local: used.local_bytes,
            shared: used.shared_bytes + self.unit.shared_bytes,
            hmma: count("HMMA"),
            hgmma: count("HGMMA"),
            early: waits::ahead(&code).len(),
        })
    }

    /// What `line` is refused for: spills, local memory, too much shared memory, no tensor cores, reads in front of a wait.
    pub fn judge(&self, line: &Line) -> Vec<String> {
        let mut faults = Vec::new();
        let mut refuse = |wrong: bool, what: String| faults.extend(wrong.then(|| format!("{} for {}: {what}", self.unit.name, self.arch)));
        refuse(self.unit.entries != [line.entry.as_str()], format!("it has {}, and the host names {:?}", line.entry, self.unit.entries));
        refuse(line.registers == 0, "no registers were read from the log".into());
        refuse((line.spills, line.local) != (0, 0), format!("{} bytes spilled, {} of local memory", line.spills, line.local));
        let limit = self.arch.shared_bytes().unwrap();
        refuse(line.shared > limit, format!("{} bytes of shared memory > {limit}", line.shared));
        refuse(line.early > 0, format!("{} reads in front of the wait for the launch before", line.early));
        if let Some(instruction) = self.instruction {
            let found = if instruction == "HGMMA" { line.hgmma } else { line.hmma + line.hgmma };
            refuse(found == 0, format!("no {instruction}"));
        }
        faults
    }
}

/// What a unit is called in the ledger.
fn key(unit: &Unit, arch: Arch) -> String {
    unit.hash(arch)[..20].to_owned()
}

/// Every unit that the catalogue may launch on the checked architectures, each once.
pub fn all_work() -> Vec<Work> {
    let own = |entry: Entry, arch: Arch| {
        let of = format!("{}/{}", entry.op, entry.variant);
        entry.units(arch).into_iter().map(move |unit| Work { instruction: entry.tensor_cores.instruction(&unit), unit, arch, of: of.clone() })
    };
    let beside = |entry: Entry, arch: Arch| entry.helpers(arch).into_iter().map(move |unit| Work { unit, arch, of: "helpers".into(), instruction: None });
    let each = || catalogue().into_iter().flat_map(|entry| Arch::CHECKED.map(|arch| (entry.clone(), arch)));
    let mut met = HashSet::new();
    let all = each().flat_map(|(entry, arch)| own(entry, arch)).chain(each().flat_map(|(entry, arch)| beside(entry, arch)));
    all.filter(|work| met.insert(work.key())).collect()
}

/// The committed lines by unit.
pub fn known() -> BTreeMap<String, Line> {
    let lines = LINES.lines().filter(|line| !line.starts_with('#')).map(|line| line.parse::<Line>().unwrap());
    lines.map(|line| (line.unit.clone(), line)).collect()
}

/// The line of a unit, if the ledger has one.
pub fn line_of<'a>(known: &'a BTreeMap<String, Line>, work: &Work) -> Option<&'a Line> {
    known.get(&work.key())
}

/// Prints the ledger anew: lines of units that are as they were are kept, all others compiled on every core; none is begun after
/// `TRIFUSE_LEDGER_SECONDS`, where that is set.
pub fn probe() {
    let known = if std::env::var_os("TRIFUSE_ALL_KERNELS").is_some() { BTreeMap::new() } else { known() };
    let work = all_work();
    let begun = std::time::Instant::now();
    let seconds = std::env::var("TRIFUSE_LEDGER_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let (next, lines) = (std::sync::atomic::AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(|| {
                while let Some(work) = work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let late = begun.elapsed().as_secs() >= seconds;
                    let line = line_of(&known, work).cloned().or_else(|| if late { None } else { work.measure() });
                    let Some(line) = line else { continue };
                    work.judge(&line).iter().for_each(|fault| eprintln!("{fault}"));
                    lines.lock().unwrap().push(line);
                }
            });
        }
    });
    let mut lines = lines.into_inner().unwrap();
    lines.sort_by(|a, b| (&a.arch, &a.entry, &a.unit).cmp(&(&b.arch, &b.entry, &b.unit)));
    println!("{HEADER}");
    lines.iter().for_each(|line| println!("{line}"));
}
