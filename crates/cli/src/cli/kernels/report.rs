//! What `kernels` tells.

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::output::{Page, Report, Tone};

/// The result.
#[derive(Debug, Serialize)]
pub struct Kernels {
    /// The compiler, where there is one.
    pub compiler: Option<String>,
    /// Where compiled kernels went; nothing where none were asked for, or where the environment names no folder.
    pub folder: Option<PathBuf>,
    /// The file that all went into, where one was asked for.
    pub pack: Option<PackFile>,
    pub seconds: f64,
    pub variants: Vec<VariantRow>,
    /// What was compiled or found compiled; empty where no architecture was named.
    pub compiled: Vec<Compiled>,
}

/// A file of compiled kernels.
#[derive(Debug, Serialize)]
pub struct PackFile {
    pub path: PathBuf,
    pub bytes: u64,
}

/// A variant of an operation, and what there is of it to compile.
#[derive(Debug, Serialize)]
pub struct VariantRow {
    pub op: &'static str,
    pub variant: &'static str,
    /// The architectures, in words.
    pub runs_on: String,
    /// The tensor-core instruction that its machine code must show.
    pub tensor_cores: Option<String>,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_tensor_cores: Option<&'static str>,
    pub archs: Vec<ArchUnits>,
}

/// What there is to compile for one architecture.
#[derive(Debug, Serialize)]
pub struct ArchUnits {
    pub arch: String,
    /// A name for each tile configuration and dtype.
    pub units: Vec<String>,
}

/// One unit, compiled.
#[derive(Debug, Serialize)]
pub struct Compiled {
    pub unit: String,
    pub arch: String,
    /// Whether it was there already.
    pub cached: bool,
    pub kernels: Vec<Kernel>,
    /// The tensor-core instruction that has to be there.
    pub tensor_cores: Option<&'static str>,
    /// How many of it there are; nothing where nobody asked.
    pub tensor_instructions: Option<usize>,
    /// What is not as it should be.
    pub faults: Vec<String>,
}

/// What one kernel of a unit uses: registers a thread, bytes of shared memory a block, the rest in bytes a thread.
#[derive(Debug, Serialize)]
pub struct Kernel {
    pub entry: String,
    pub registers: u32,
    pub shared_bytes: u32,
    pub dynamic_shared_bytes: u32,
    pub local_bytes: u32,
    pub spill_bytes: u32,
}

impl Report for Kernels {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.list(page)?;
        if self.compiled.is_empty() {
            return page.line(match &self.compiler {
                Some(compiler) => format!("{compiler} is there; --arch sm_90a compiles ahead, and shows what each kernel uses"),
                None => "the compiler NVRTC is not there; trifuse devices says what to install".into(),
            });
        }
        page.line("")?;
        let head = ["unit", "for", "kernel", "registers", "shared", "local", "spilled", "tensor cores"];
        page.table(&head, &[3, 4, 5, 6], self.compiled.iter().flat_map(|unit| unit.rows(page)).collect::<Vec<_>>())?;
        for unit in &self.compiled {
            for fault in &unit.faults {
                page.line(format!("{} {} for {}: {fault}", page.tone(Tone::Bad, "FAULT"), unit.unit, unit.arch))?;
            }
        }
        let cached = self.compiled.iter().filter(|unit| unit.cached).count();
        let place = match (&self.pack, &self.folder) {
            (Some(PackFile { path, bytes }), _) => format!("in {}, {:.1} MB", path.display(), *bytes as f64 / 1e6),
            (None, Some(folder)) => format!("in {}", folder.display()),
            (None, None) => "in no folder: the environment names none".into(),
        };
        let count = self.compiled.len();
        page.line(format!("{count} units, {} of them compiled now, {cached} found, {place} ({:.1} s)", count - cached, self.seconds))
    }
}

impl Kernels {
    fn list(&self, page: &mut Page) -> std::fmt::Result {
        let archs: Vec<&str> = self.variants.first().map(|variant| variant.archs.iter().map(|arch| arch.arch.as_str()).collect()).unwrap_or_default();
        let mut head = vec!["operation", "variant", "runs on", "tensor cores"];
        head.extend(&archs);
        let numbers: Vec<usize> = (4..head.len()).collect();
        let rows = self.variants.iter().map(|variant| {
            let tensor_cores = match (&variant.tensor_cores, variant.without_tensor_cores) {
                (Some(instruction), _) => instruction.to_owned(),
                (None, reason) => format!("none: {}", reason.unwrap_or_default()),
            };
            let mut row = vec![variant.op.to_owned(), variant.variant.to_owned(), variant.runs_on.clone(), tensor_cores];
            row.extend(variant.archs.iter().map(|arch| if arch.units.is_empty() { "-".to_owned() } else { arch.units.len().to_string() }));
            row
        });
        let rows: Vec<Vec<String>> = rows.collect();
        page.table(&head, &numbers, rows)?;
        page.line("by architecture: units, one a tile configuration and dtype, as --json names them")
    }
}

impl Compiled {
    /// A row a kernel.
    fn rows(&self, page: &Page) -> Vec<Vec<String>> {
        let tensor_cores = match (self.tensor_cores, self.tensor_instructions) {
            (None, _) => "none".to_owned(),
            (Some(instruction), None) => format!("{instruction}, not looked for"),
            (Some(instruction), Some(0)) => page.tone(Tone::Bad, format!("no {instruction}")),
            (Some(instruction), Some(count)) => format!("{count} {instruction}"),
        };
        let bad = |bytes: u32| if bytes > 0 { page.tone(Tone::Bad, bytes) } else { bytes.to_string() };
        let row = |kernel: &Kernel| {
            let shared = (kernel.shared_bytes + kernel.dynamic_shared_bytes).to_string();
            let used = [kernel.registers.to_string(), shared, bad(kernel.local_bytes), bad(kernel.spill_bytes)];
            [vec![self.unit.clone(), self.arch.clone(), kernel.entry.clone()], used.to_vec(), vec![tensor_cores.clone()]].concat()
        };
        self.kernels.iter().map(row).collect()
    }
}
