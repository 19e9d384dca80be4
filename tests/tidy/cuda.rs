//! The layers inside `backends/cuda`, and what a variant may say and import.

use crate::circles::Graph;
use crate::source::File;

/// The folder.
const CUDA: &str = "backends/cuda/";

/// R1: the layers, lowest first, by how the path of a file begins behind `backends/cuda/`. A file imports its own layer and those below.
const LAYERS: [&[&str]; 7] = [
    &["runtime/"],
    &["jit/"],
    &["device.rs"],
    &["variant/"],
    &["gemm/", "codebook_gemm/factor.rs"],
    &["attention/", "checksum.rs", "codebook_gemm/", "fused_mlp/", "grouped_linear/", "heads.rs", "linear/", "pointwise.rs", "prefix_attention/", "sample.rs"],
    &["catalogue.rs", "mod.rs"],
];

/// The layer of a file.
fn layer(file: &File) -> Option<usize> {
    let inner = file.path.strip_prefix(CUDA)?;
    LAYERS.iter().position(|starts| starts.iter().any(|start| inner.starts_with(start)))
}

/// Whether a file declares a variant, and no table of them.
fn is_variant(file: &File) -> bool {
    let declares = |line: &str| line.contains("const ") && line.contains(": Variant<");
    file.path.starts_with(CUDA) && file.text.lines().any(declares) && !file.text.contains("impl Table for")
}

/// Arrows that run up, files with no layer, and variants that import a variant (R2: what two share lies in a file below both).
pub fn imports(files: &[File]) -> Vec<String> {
    let graph = Graph::read(files);
    let mut faults: Vec<String> = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(CUDA) && file.path.ends_with(".rs") && layer(file).is_none()) {
        faults.push(file.fault(1, "it has no layer; give it one in tests/tidy/cuda.rs"));
    }
    for (from, to, line) in graph.arrows() {
        if let (Some(low), Some(high)) = (layer(from), layer(to))
            && low < high
        {
            faults.push(from.fault(line, format_args!("a lower layer may not import {}", to.path)));
        }
        if is_variant(from) && is_variant(to) {
            faults.push(from.fault(line, format_args!("a variant may not import {}, a variant: what both need lies in a file below", to.path)));
        }
    }
    faults
}

/// R3: functions whose names begin with `supports` ask for no count of multiprocessors: that is a question of time, and `suits` has it. A grid
/// whose blocks wait for each other needs one for each: that line says `resident`.
pub fn supports(file: &File) -> Vec<String> {
    if !file.path.starts_with(CUDA) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut inside = false;
    for (number, line) in file.text.lines().enumerate() {
        let starts = line.contains("fn supports") || (line.trim_start().starts_with("supports:") && line.trim_end().ends_with('{'));
        inside |= starts;
        if (inside || line.trim_start().starts_with("supports:")) && line.contains(".units") && !line.contains("resident") {
            faults.push(file.fault(number + 1, "`supports` says what kernels can compute; a count of multiprocessors belongs to `suits`"));
        }
        inside &= starts || !(line == "}" || line == "    },");
    }
    faults
}

/// What the house counts of the wing.
#[derive(Debug, PartialEq, Eq)]
pub struct Census {
    /// Arrows from a layer to a higher one.
    pub up: usize,
    /// Arrows from a variant to a variant.
    pub between_variants: usize,
    /// The most files, the variant's own among them, that name one variant: what adding one touches, with its kernel besides.
    pub places: usize,
}

impl Census {
    /// Counts among these files. A rule of speed is no part of a variant, and its file does not count.
    pub fn of(files: &[File]) -> Self {
        let graph = Graph::read(files);
        let arrows: Vec<_> = graph.arrows().collect();
        let up = arrows.iter().filter(|(from, to, _)| matches!((layer(from), layer(to)), (Some(low), Some(high)) if low < high)).count();
        let between_variants = arrows.iter().filter(|(from, to, _)| is_variant(from) && is_variant(to)).count();
        let naming = |variant: &File| arrows.iter().filter(|(from, to, _)| to.path == variant.path && !from.path.ends_with("/choose.rs")).count();
        let places = files.iter().filter(|file| is_variant(file)).map(|file| 1 + naming(file)).max().unwrap_or(0);
        Self { up, between_variants, places }
    }
}
