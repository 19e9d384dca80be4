//! Cases from outside: one `.safetensors` file each, with the operands and the answer that something else computed.
//!
//! `__metadata__` holds `op` and `params`, a JSON object; the tensors are the operands by name, in the type that
//! `params` names, and the expected outputs in F64. Whatever is missing, of another shape or type, out of range or not
//! known is an [`Error::Input`] that names the file and the tensor or parameter.
//!
//! Numbers in `params` are read as f64. The expected outputs are those of that f64. An operation takes `scaling` and `scale` as f32: it is
//! given the f64 rounded once, to nearest, ties to even, and what that rounding moves its answer by is part of the tolerance. A number beyond
//! what f32 holds is refused. `scale` means 1/√d where the f64 is 0; one that only rounds to 0 is a scale of 0.
//!
//! | op | params | tensors |
//! |---|---|---|
//! | `codebook_gemm` | `dtype`, `accumulate`, `scaling` (one an adapter) | `x [tokens, d_in]`, `basis [d_in, R]`, `token_adapter [tokens]` I32, `codes1`, `codes2 [adapters, d_out, R]` U8, `codebook1 [adapters, 16]`, `codebook2 [adapters, 8]`; optional `core [adapters, R, R]`; where it accumulates `y_in [tokens, d_out]`; expected `y` |
//! | `attention` | `dtype`, `causal`, `window` (−1: none), `scale` (0: 1/√d), `block` (0: dense) | `q`, `k`, `v [b, s, h, d]`; `row_ptr [(patterns,) blocks + 1]`, `col_idx` I32 where `block` is not 0; or `cu_seqlens_q`, `cu_seqlens_k` I32, with b = 1; or `page_table [b, pages]`, `kv_len [b]` I32, with `k`, `v [pool, page, h, d]`; expected `o`, optional `lse [b, h, s]` (varlen `[h, total]`) |
//! | `fused_mlp` | `dtype`, `activation`, `gated` | `x`, `w1 [d_ff, d_model]`, `w2 [d_out, d_ff]`; `wg` where it is gated; optional `b1`, `b2`, `residual`; expected `y` |
//! | `linear` | `dtype`, `activation` or `"none"` | `x`, `w [d_out, d_in]`; optional `bias`, `residual`; expected `y` |

mod attention;
mod codebook_gemm;
mod dense;
mod tensors;

use std::path::{Path, PathBuf};

use crate::cases::Problem;
use crate::tolerance::{Expected, expect_given};
use tensors::Tensors;
use trifuse::error::{Error, Result};
use trifuse::ops::{Attention, CodebookGemm, FusedMlp, Linear, Op};
use trifuse::safetensors_file::TensorFile;

/// A case as a file holds it.
#[derive(Clone, Debug)]
pub struct CaseFile {
    /// The file's name without its ending.
    pub name: String,
    /// The operation with its operands.
    pub problem: Problem,
    /// The file's outputs, in the order and layout of [`crate::oracle::Define::evaluate`], with bounds from this
    /// crate's own step by step run.
    pub expected: Vec<Expected>,
}

/// Reads one case.
///
/// # Errors
/// `Io` where the file cannot be read, `Input` where it is not a case.
pub fn read(path: &Path) -> Result<CaseFile> {
    case(TensorFile::open(path)?)
}

/// Reads one case from a file that is already in memory; `path` is what errors name.
///
/// # Errors
/// The errors of [`read`].
pub fn parse(path: &Path, bytes: &[u8]) -> Result<CaseFile> {
    case(TensorFile::from_bytes(path, bytes.to_vec())?)
}

fn case(file: TensorFile) -> Result<CaseFile> {
    let path = file.path().to_path_buf();
    let mut tensors = Tensors::new(file);
    let (problem, expected) = match tensors.op()? {
        CodebookGemm::NAME => codebook_gemm::read(&mut tensors)?,
        Attention::NAME => attention::read(&mut tensors)?,
        FusedMlp::NAME => dense::read_fused_mlp(&mut tensors)?,
        Linear::NAME => dense::read_linear(&mut tensors)?,
        other => return Err(tensors.fault("op", format!("expected codebook_gemm, attention, fused_mlp or linear, found {other:?}"))),
    };
    tensors.finish()?;
    // Whatever the shapes did not rule out, the operation's own rules must: nothing refuses a case later.
    let expected = expect_given(&problem, expected).map_err(|error| Error::input(&path, error.to_string()))?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(CaseFile { name, problem, expected })
}

/// The case files of a folder, in order of name.
///
/// # Errors
/// `Io` where the folder cannot be read, `Input` where it holds no case.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_file() {
        return Err(Error::input(folder, "expected a folder of .safetensors files, found a file"));
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
        let path = entry.map_err(Error::io(folder, "read"))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() { Err(Error::input(folder, "expected at least one .safetensors file, found none")) } else { Ok(paths) }
}
