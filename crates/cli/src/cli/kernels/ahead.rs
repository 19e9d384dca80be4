//! Compiling variants ahead of their first use.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trifuse::adapters::whole::{check_file, make_folder, write_file};
use trifuse::backends::cuda::jit::{Arch, Unit, resources};
use trifuse::backends::cuda::{Cache, Entry, KERNELS, PackWriter, Packs, RunsOn, TensorCores, catalogue, nvrtc_version};
use trifuse::{Error, Result};

use super::args::Args;
use super::report::{ArchUnits, Compiled, Kernel, Kernels, PackFile, VariantRow};
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::progress::Progress;

/// Lists, and compiles where an architecture is named.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    let start = Instant::now();
    let entries = chosen(args)?;
    let archs = args.arch.iter().map(|text| text.parse()).collect::<Result<Vec<Arch>>>()?;
    let shown = if archs.is_empty() { Arch::CHECKED.to_vec() } else { archs.clone() };
    let variants = entries.iter().map(|entry| row(entry, &shown)).collect();
    if let Some(path) = &args.output {
        check_file(path)?;
    }
    let cache = match args.output {
        // All of a pack is of one compiler: nothing is taken from other packs.
        Some(_) => Cache::from_environment().with_packs(Packs::default()),
        None => Cache::from_environment(),
    };
    let folder = cache.folder().map(Path::to_path_buf).filter(|_| !archs.is_empty());
    let work = work(&entries, &archs);
    if work.is_empty() && !archs.is_empty() {
        return Err(Error::unsupported("compiling ahead", format!("no variant that was asked for runs on {}", args.arch.join(", "))));
    }
    if let (Some(folder), None) = (&folder, &args.output) {
        make_folder(folder)?;
    }
    let compiler = nvrtc_version().ok();
    let writer = args.output.as_ref().map(|_| Mutex::new(PackWriter::new(compiler)));
    let disassembler = args.disassemble.then(disassembler).transpose()?;
    let compiled = compile_all(&work, &cache, writer.as_ref(), disassembler.as_deref(), &Progress::new(output, "compiling", work.len() as u64))?;
    let pack = args.output.as_ref().zip(writer).map(|(path, writer)| write_pack(path, writer)).transpose()?;
    let compiler = compiler.map(|(major, minor)| format!("NVRTC {major}.{minor}"));
    let report = Kernels { compiler, folder, pack, seconds: start.elapsed().as_secs_f64(), variants, compiled };
    output.report(&report)?;
    for reason in cache.refused() {
        output.note(format_args!("passed over: {reason}"));
    }
    if let Some(pack) = &report.pack {
        output.note(format_args!("use it on a machine without NVRTC, by this same build of trifuse: {KERNELS}={}", pack.path.display()));
    }
    Ok(if report.compiled.iter().all(|unit| unit.faults.is_empty()) { Outcome::Right } else { Outcome::Wrong })
}

/// The variants that were asked for.
fn chosen(args: &Args) -> Result<Vec<Entry>> {
    let all = catalogue();
    let known = |option: &str, asked: &Option<String>, names: Vec<&'static str>| match asked {
        Some(asked) if !names.contains(&asked.as_str()) => {
            let mut names = names;
            names.sort_unstable();
            names.dedup();
            Err(Error::invalid(option, format!("one of {}", names.join(", ")), asked))
        }
        _ => Ok(()),
    };
    known("--op", &args.op, all.iter().map(|entry| entry.op).collect())?;
    known("--variant", &args.variant, all.iter().map(|entry| entry.variant).collect())?;
    let wanted = |asked: &Option<String>, name: &str| asked.as_ref().is_none_or(|asked| asked == name);
    let chosen: Vec<Entry> = all.into_iter().filter(|entry| wanted(&args.op, entry.op) && wanted(&args.variant, entry.variant)).collect();
    match (&args.op, &args.variant) {
        (Some(op), Some(variant)) if chosen.is_empty() => Err(Error::invalid("--variant", format!("a variant of {op}"), variant)),
        _ => Ok(chosen),
    }
}

fn row(entry: &Entry, archs: &[Arch]) -> VariantRow {
    let units = archs.iter().map(|&arch| {
        let units: Vec<String> = entry.units(arch).into_iter().map(|unit| unit.name).collect();
        ArchUnits { arch: arch.to_string(), units }
    });
    let instructions = entry.tensor_cores.instructions();
    let runs_on = match entry.runs_on {
        RunsOn::From(least) => format!("{} and newer", Arch(least)),
        RunsOn::Only(exact) => format!("{} alone", Arch(exact)),
    };
    VariantRow {
        op: entry.op,
        variant: entry.variant,
        runs_on,
        tensor_cores: instructions.as_ref().ok().cloned(),
        without_tensor_cores: instructions.err(),
        archs: units.collect(),
    }
}

/// One compilation.
struct Work {
    unit: Unit,
    arch: Arch,
    /// What its machine code must show.
    instruction: Option<&'static str>,
}

/// Every unit of these variants once: their own first, which must show more than those beside them.
fn work(entries: &[Entry], archs: &[Arch]) -> Vec<Work> {
    let beside = TensorCores::Without("it is launched beside a variant's own kernels");
    let mut met = HashSet::new();
    let own = entries.iter().flat_map(|entry| archs.iter().map(move |&arch| (entry.units(arch), arch, entry.tensor_cores)));
    let helpers = entries.iter().flat_map(|entry| archs.iter().map(move |&arch| (entry.helpers(arch), arch, beside)));
    let of = |unit: Unit, arch, tensor_cores: TensorCores| Work { instruction: tensor_cores.instruction(&unit), unit, arch };
    let all = own.chain(helpers).flat_map(|(units, arch, tensor_cores)| units.into_iter().map(move |unit| of(unit, arch, tensor_cores)));
    all.filter(|work| met.insert(work.unit.hash(work.arch))).collect()
}

fn write_pack(path: &Path, writer: Mutex<PackWriter>) -> Result<PackFile> {
    let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
    write_file(path, |to| writer.write(to))?;
    let bytes = std::fs::metadata(path).map_err(Error::io(path, "read"))?.len();
    Ok(PackFile { path: path.into(), bytes })
}

/// Compiles on every core, and takes all into `pack`; the first error in the order of the work is told, after all have ended.
fn compile_all(work: &[Work], cache: &Cache, pack: Option<&Mutex<PackWriter>>, disassembler: Option<&Path>, progress: &Progress) -> Result<Vec<Compiled>> {
    let results: Vec<Mutex<Option<Result<Compiled>>>> = work.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(work.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let (number, Some(work)) = take(&next, work) {
                    progress.now(format!("{} for {}", work.unit.name, work.arch));
                    let done = compile(work, cache, pack, disassembler);
                    if let Ok(mut place) = results[number].lock() {
                        *place = Some(done);
                    }
                    progress.step();
                }
            });
        }
    });
    let lost = || Error::invalid("compiling", "a result for every unit", "a thread that ended without one");
    results.into_iter().map(|result| result.into_inner().ok().flatten().ok_or_else(lost)?).collect()
}

fn take<'a>(next: &AtomicUsize, work: &'a [Work]) -> (usize, Option<&'a Work>) {
    let number = next.fetch_add(1, Ordering::Relaxed);
    (number, work.get(number))
}

fn compile(Work { unit, arch, instruction }: &Work, cache: &Cache, pack: Option<&Mutex<PackWriter>>, disassembler: Option<&Path>) -> Result<Compiled> {
    let (hash, compiler) = (unit.hash(*arch), nvrtc_version().ok());
    let kept = cache.get(&hash, compiler);
    let cached = kept.is_some();
    let built = match kept {
        Some(built) => built,
        None => unit.build(*arch, cache)?,
    };
    // Elsewhere a cache that cannot be written costs only time; here, where no pack is made, it is what was asked for.
    if let Some(pack) = pack {
        pack.lock().unwrap_or_else(PoisonError::into_inner).add(unit, *arch, &built);
    } else if let (Some(folder), true) = (cache.folder(), !cached && cache.get(&hash, compiler).is_none()) {
        return Err(Error::Io { path: folder.into(), action: "write", source: std::io::Error::other("the kernel is not there after it was written") });
    }
    let mut faults = Vec::new();
    let kernels = resources(&built).into_iter().map(|used| Kernel {
        entry: used.entry,
        registers: used.registers,
        shared_bytes: used.shared_bytes,
        dynamic_shared_bytes: unit.shared_bytes,
        local_bytes: used.local_bytes,
        spill_bytes: used.spill_bytes,
    });
    let kernels: Vec<Kernel> = kernels.collect();
    for kernel in &kernels {
        if kernel.spill_bytes + kernel.local_bytes > 0 {
            faults.push(format!("{} spills {} bytes and has {} of local memory", kernel.entry, kernel.spill_bytes, kernel.local_bytes));
        }
        let (shared, most) = (kernel.shared_bytes + kernel.dynamic_shared_bytes, arch.shared_bytes());
        if let Some(most) = most.filter(|most| shared > *most) {
            faults.push(format!("{} takes {shared} bytes of shared memory, and a block of {arch} has {most}", kernel.entry));
        }
    }
    let mut tensor_instructions = None;
    if let (Some(instruction), Some(disassembler)) = (instruction, disassembler) {
        let count = disassemble(disassembler, &built.cubin)?.lines().filter(|line| line.contains(instruction)).count();
        if count == 0 {
            faults.push(format!("no {instruction} in its machine code"));
        }
        tensor_instructions = Some(count);
    }
    Ok(Compiled { unit: unit.name.clone(), arch: arch.to_string(), cached, kernels, tensor_cores: *instruction, tensor_instructions, faults })
}

/// What reads machine code.
fn disassembler() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("nvdisasm")).find(|file| file.is_file());
    found.ok_or_else(|| Error::unsupported("--disassemble", "nvdisasm is not on the PATH; pip install nvidia-cuda-nvdisasm, or add the toolkit's bin folder"))
}

fn disassemble(program: &Path, cubin: &[u8]) -> Result<String> {
    let during = |error: std::io::Error| Error::io(program, "run")(error);
    let mut file = tempfile::NamedTempFile::new().map_err(Error::io("a temporary file", "create"))?;
    file.write_all(cubin).map_err(Error::io(file.path(), "write"))?;
    let output = Command::new(program).arg("--print-code").arg(file.path()).output().map_err(during)?;
    if !output.status.success() {
        return Err(Error::unsupported("reading machine code", format!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
