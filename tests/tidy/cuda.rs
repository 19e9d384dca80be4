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
    &["attention/", "codebook_gemm/", "fused_mlp/", "linear/", "pointwise.rs", "prefix_attention/"],
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
        if let (Some(low), Some(high)) = (layer(from), layer(to)) {
            if low < high {
                faults.push(from.fault(line, format_args!("a lower layer may not import {}", to.path)));
            }
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
