//! Every variant, and every function of `kernels/ptx`, compiled to machine code for every architecture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use trifuse::Error;
use trifuse::backends::cuda::jit::{Arch, Source, Unit};
use trifuse::backends::cuda::{Cache, nvrtc_version};

use super::ledger::{Work, all_work, known, line_of};
use super::ptx::{AMPERE, HOPPER};
use super::waits;

/// `part` of every folder of NVIDIA's in `.cuda`, where `./check` installs.
pub fn python_folders(part: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cuda/lib");
    let list = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    list(root).flat_map(|python| list(python.join("site-packages/nvidia"))).map(|package| package.join(part)).collect()
}

/// Whether the folder has a file whose name starts so.
pub fn holds(folder: &Path, start: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(start))
}

/// The disassembler, if there is one.
pub fn nvdisasm() -> Option<PathBuf> {
    let installed = python_folders("bin").into_iter().map(|folder| folder.join("nvdisasm")).find(|path| path.exists());
    installed.or_else(|| Command::new("nvdisasm").arg("--version").output().is_ok().then(|| "nvdisasm".into()))
}

pub fn disassemble(cubin: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cubin).unwrap();
    let output = Command::new(nvdisasm().unwrap()).arg("--print-code").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn compile(unit: &Unit, arch: Arch) -> trifuse::Result<trifuse::backends::cuda::Built> {
    unit.build(arch, &Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")))
}

pub fn probe_unit(source: &'static str) -> Unit {
    Unit { entries: &["probe"], ..Unit::new("probe", Source { path: "probe.cu", text: source }) }
}

/// A test that panics where it fails, or its name with what it lacks, ignored.
pub fn trial(name: &str, lacks: Option<&str>, body: Box<dyn FnOnce() + Send>) -> Trial {
    super::trial(name, lacks, move || {
        body();
        Ok(())
    })
}

/// Lines of the ledger that are compiled again, where not all are.
const DRAWN: usize = 12;
/// Kernels that the ledger lacks that are compiled, where not all are: a change to a header that many include has more.
const LACKING: usize = 240;

/// Whether all kernels are compiled, and the number from which on they are drawn where not.
fn draw() -> (bool, usize) {
    let turn = std::env::var("TRIFUSE_KERNELS_TURN").ok().and_then(|turn| turn.parse().ok()).unwrap_or(0);
    (std::env::var_os("TRIFUSE_ALL_KERNELS").is_some(), turn)
}

/// Trials of the kernels: those that the ledger holds by its lines, some of them compiled again, and all others compiled.
fn kernels(lacks: Option<&'static str>) -> Vec<Trial> {
    let known = known();
    let (all, turn) = draw();
    let mut trials = Vec::new();
    let mut held: BTreeMap<(String, Arch), Vec<Work>> = BTreeMap::new();
    let mut lacking = Vec::new();
    for work in all_work() {
        match line_of(&known, &work) {
            Some(_) => held.entry((work.of.clone(), work.arch)).or_default().push(work),
            None => lacking.push(work),
        }
    }
    let step = if all { 1 } else { lacking.len().div_ceil(LACKING).max(1) };
    let left = lacking.len() - lacking.iter().skip(turn % step).step_by(step).count();
    if left > 0 {
        let name = format!("compile: {left} more kernels that the ledger lacks (skipped: others are drawn each revision; scripts/ledger.sh takes all)");
        trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
    }
    for work in lacking.into_iter().skip(turn % step).step_by(step) {
        let name = format!("compile: {} for {}", work.unit.name, work.arch);
        let body = move || assert_eq!(work.measure().map(|line| work.judge(&line)).unwrap_or_default(), [""; 0]);
        trials.push(trial(&name, lacks, Box::new(body)));
    }
    let lines: Vec<Work> = held.values().flatten().cloned().collect();
    for ((of, arch), works) in held {
        let lines: Vec<_> = works.iter().filter_map(|work| line_of(&known, work).cloned()).collect();
        let body = move || works.iter().zip(&lines).for_each(|(work, line)| assert_eq!(work.judge(line), [""; 0]));
        trials.push(trial(&format!("ledger: {of} for {arch}"), None, Box::new(body)));
    }
    let step = if all { 1 } else { (lines.len() / DRAWN).max(1) };
    let left = lines.len() - lines.iter().skip(turn % step).step_by(step).count();
    if left > 0 {
        let name = format!("ledger: {left} more kernels compiled again (skipped: their lines stand; TRIFUSE_ALL_KERNELS=1 compiles all)");
        trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
    }
    for work in lines.into_iter().skip(turn % step).step_by(step) {
        let line = line_of(&known, &work).cloned().unwrap();
        let name = format!("ledger: {} for {} compiled again", work.unit.name, work.arch);
        let body = move || assert!(work.measure().is_none_or(|found| found == line), "not as its line says; scripts/ledger.sh all writes it anew: {line}");
        trials.push(trial(&name, lacks, Box::new(body)));
    }
    trials
}

pub fn trials() -> Vec<Trial> {
    let lacks = nvrtc_version().is_err().then_some("NVRTC");
    let shows = lacks.or_else(|| nvdisasm().is_none().then_some("nvdisasm"));
    let mut trials = kernels(shows);
    let late = r#"
        #include "ptx/grid.cuh"
        extern "C" __global__ void probe(const float *from, float *to) { float value = from[0]; grid_wait(); to[0] = value; }
    "#;
    trials.push(trial(
        "compile: what is read in front of a wait is found",
        shows,
        Box::new(|| {
            let code = disassemble(&compile(&probe_unit(late), Arch(90)).unwrap().cubin);
            assert!(matches!(waits::ahead(&code)[..], [("probe", load)] if load.starts_with("LDG.E ")), "{code}");
        }),
    ));
    trials.push(trial(
        "compile: what an architecture lacks is an error with the assembler's words",
        lacks,
        Box::new(|| match compile(&probe_unit(HOPPER), Arch(80)) {
            Err(Error::Compile { kernel, log }) => assert!(kernel.contains("sm_80") && log.contains("sm_90"), "{kernel}: {log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials.push(trial(
        "compile: an include that leads nowhere is an error that names it, but for one that a condition leaves out",
        lacks,
        Box::new(|| {
            match compile(&probe_unit("#include \"ptx/none.cuh\""), Arch(80)) {
                Err(Error::Compile { log, .. }) => assert!(log.contains("probe.cu includes ptx/none.cuh"), "{log}"),
                other => panic!("{other:?}"),
            }
            let left_out = "#if 0\n#include \"ptx/none.cuh\"\n#endif\nextern \"C\" __global__ void probe() {}";
            compile(&probe_unit(left_out), Arch(80)).unwrap();
        }),
    ));
    trials.push(trial(
        "compile: a fault in a source is an error with its line",
        lacks,
        Box::new(|| match compile(&probe_unit("\nextern \"C\" __global__ void probe() { nonsense(); }"), Arch(80)) {
            Err(Error::Compile { log, .. }) => assert!(log.contains("probe.cu(2)") && log.contains("nonsense"), "{log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials.push(trial(
        "compile: an architecture that NVRTC does not know is named",
        lacks,
        Box::new(|| match compile(&probe_unit(AMPERE), Arch(999)) {
            Err(Error::Compile { log, .. }) => assert!(log.contains("does not know") && log.contains("newer NVRTC"), "{log}"),
            other => panic!("{other:?}"),
        }),
    ));
    trials
}
