//! The inspection of an adapter's folder, which does not stop at the first fault.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::{Config, MAX_CONFIG_BYTES, Reading};
use super::tensor_name::{Side, TensorName};
use super::{Finding, FindingKind, Inspection, Lora, MAX_RANK, Verdict};
use crate::adapters::encoded::Matrix;
use crate::adapters::whole::check_name;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::hub;
use crate::read::read_file;
use crate::safetensors_file::{TensorFile, TensorInfo};

/// The name of the configuration's file.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The name of the tensors' file.
pub const TENSOR_FILE: &str = "adapter_model.safetensors";
/// The name of the tensors' file of old versions, a pickle, which can run any program when it is read.
pub(super) const PICKLE_FILE: &str = "adapter_model.bin";

/// Inspects everything in an adapter's folder, without stopping at the first fault.
pub fn inspect(folder: impl AsRef<Path>) -> Inspection {
    let folder = folder.as_ref();
    inspect_as(name_of(folder).and_then(|name| checked(name, folder)), folder)
}

/// Inspects an adapter that has its name from elsewhere.
pub(super) fn inspect_as(name: Result<String>, folder: &Path) -> Inspection {
    let mut faults = Vec::new();
    let mut keep = |error: Error| faults.push(error);
    let name = name.map_err(&mut keep).unwrap_or_default();
    let config = read_config(&folder.join(CONFIG_FILE)).map_err(&mut keep).ok();
    let tensors = open_tensors(folder).map_err(&mut keep).ok();
    let mut inspection = examine(name, folder, config.as_deref(), tensors.as_ref());
    faults.append(&mut inspection.faults);
    Inspection { faults, ..inspection }
}

/// Inspects the two files of an adapter in memory as [`inspect`] does. The fuzzers and the tests of bad input call it.
pub fn inspect_bytes(name: &str, config: &[u8], tensors: Vec<u8>) -> Inspection {
    let folder = Path::new(name);
    match TensorFile::from_bytes(folder.join(TENSOR_FILE), tensors) {
        Ok(file) => examine(name.into(), folder, Some(config), Some(&file)),
        Err(error) => {
            let mut inspection = examine(name.into(), folder, Some(config), None);
            inspection.faults.push(error);
            inspection
        }
    }
}

/// The name of the adapter in `folder`, not yet [`checked`].
pub(super) fn name_of(folder: &Path) -> Result<String> {
    let whole = folder.canonicalize().map_err(Error::io(folder, "read"))?;
    // The given name is taken, where there is one: a cache may link it to a folder named by a hash.
    let last = folder.file_name().or_else(|| whole.file_name());
    let name = hub::name_of(folder).or_else(|| last.and_then(|name| name.to_str()).map(str::to_owned));
    name.ok_or_else(|| Error::input(folder, "expected a folder whose name is text, to name the adapter by"))
}

/// The name, if a folder can have it.
pub(super) fn checked(name: String, folder: &Path) -> Result<String> {
    check_name(&name).map_err(|problem| Error::input(folder, problem)).map(|()| name)
}

fn read_config(path: &Path) -> Result<Vec<u8>> {
    read_file(path, MAX_CONFIG_BYTES)
}

fn open_tensors(folder: &Path) -> Result<TensorFile> {
    let (path, pickle) = (folder.join(TENSOR_FILE), folder.join(PICKLE_FILE));
    if !path.exists() && pickle.exists() {
        return Err(Error::input(
            pickle,
            "expected safetensors, found a pickle, which can run any program when it is read; where you trust it, load it with \
             PEFT and save it again: PeftModel.from_pretrained(base, folder).save_pretrained(folder, safe_serialization=True)",
        ));
    }
    TensorFile::open(path)
}

/// Tensors of an adapter, at most: two for each of the experts of the largest models, and as much again.
const MAX_TENSORS: usize = 1 << 18;
/// Longest name of a tensor, in bytes: module paths have a tenth of that.
const MAX_NAME_BYTES: usize = 1024;
/// Bounds of a product's size: within them its arithmetic neither overflows f32 nor vanishes.
const MAX_PRODUCT: f64 = 1e36;
const MIN_PRODUCT: f64 = 1e-30;

/// One factor as it was found.
struct Found {
    tensor: String,
    dtype: DType,
    matrix: Matrix<f32>,
}

/// The inspection of two files that may each be missing.
struct Examination<'a> {
    config: Option<&'a Config>,
    file: &'a TensorFile,
    factors: BTreeMap<String, [Option<Found>; 2]>,
    findings: Vec<Finding>,
    faults: Vec<Error>,
}

fn examine(name: String, folder: &Path, config: Option<&[u8]>, file: Option<&TensorFile>) -> Inspection {
    let Reading { value, config, mut findings, mut faults } = config.map(|text| Reading::new(&folder.join(CONFIG_FILE), text)).unwrap_or_default();
    let mut modules = BTreeMap::new();
    if let Some(file) = file {
        let mut look = Examination { config: config.as_ref(), file, factors: BTreeMap::new(), findings: Vec::new(), faults: Vec::new() };
        let long = |name: &String| name.len() > MAX_NAME_BYTES;
        match file.names() {
            names if names.len() > MAX_TENSORS => {
                look.faults.push(Error::input(file.path(), format!("expected at most {MAX_TENSORS} tensors, found {}", names.len())))
            }
            names => match names.iter().find(|name| long(name)) {
                Some(name) => {
                    look.faults.push(Error::input(file.path(), format!("expected names of at most {MAX_NAME_BYTES} bytes, found one of {}", name.len())))
                }
                None => names.iter().for_each(|tensor| look.tensor(tensor)),
            },
        }
        modules = look.modules();
        if modules.is_empty() && look.faults.is_empty() {
            look.faults.push(Error::input(file.path(), "expected lora_A and lora_B of at least one target module, found none"));
        }
        findings.append(&mut look.findings);
        faults.append(&mut look.faults);
    }
    Inspection { name, folder: folder.into(), config: value, modules, findings, faults }
}

impl Examination<'_> {
    fn note(&mut self, tensor: &str, info: Option<&TensorInfo>, verdict: Verdict, reason: &str) {
        let content = info.map_or_else(String::new, |info| format!("{:?} {:?}", info.dtype, info.shape));
        self.findings.push(Finding { kind: FindingKind::Tensor, name: tensor.into(), content, verdict, reason: reason.into() });
    }

    fn refuse(&mut self, tensor: &str, info: Option<&TensorInfo>, problem: String) {
        self.note(tensor, info, Verdict::Refused, &problem);
        self.faults.push(Error::input_item(self.file.path(), tensor, problem));
    }

    fn tensor(&mut self, tensor: &str) {
        let info = self.file.info(tensor);
        let info = info.as_ref();
        let (module, side) = match TensorName::parse(tensor) {
            TensorName::Factor(module, side) => (module, side),
            TensorName::Foreign(what) => return self.refuse(tensor, info, format!("expected a factor of LoRA, found {what}")),
        };
        if self.config.is_some_and(|config| !config.targets(module)) {
            return self.note(tensor, info, Verdict::Ignored, "target_modules does not name the module, and PEFT leaves it out too");
        }
        if let Some([rows, cols]) = info.and_then(|info| <[usize; 2]>::try_from(info.shape.as_slice()).ok()) {
            let rank = if side == Side::A { rows } else { cols } as u64;
            if rank == 0 || rank > MAX_RANK {
                return self.refuse(tensor, info, format!("expected a rank from 1 to {MAX_RANK}, found {rank} in [{rows}, {cols}]"));
            }
        }
        let (dtype, shape, data) = match self.file.floats(tensor) {
            Ok(found) => found,
            Err(Error::Input { problem, .. }) => return self.refuse(tensor, info, problem),
            Err(error) => return self.faults.push(error),
        };
        let &[rows, cols] = shape.as_slice() else {
            return self.refuse(tensor, info, format!("expected two dimensions, found {shape:?}"));
        };
        let place = &mut self.factors.entry(module.into()).or_default()[side as usize];
        if let Some(other) = place {
            let problem = format!("expected one such factor for {module}, found also {}", other.tensor);
            return self.refuse(tensor, info, problem);
        }
        *place = Some(Found { tensor: tensor.into(), dtype, matrix: Matrix { rows, cols, data } });
    }

    fn modules(&mut self) -> BTreeMap<String, Lora> {
        let mut modules = BTreeMap::new();
        for (module, pair) in std::mem::take(&mut self.factors) {
            let (a, b) = match pair {
                [Some(a), Some(b)] => (a, b),
                [Some(lone), None] => {
                    self.lone(&lone, "lora_B", &module);
                    continue;
                }
                [None, Some(lone)] => {
                    self.lone(&lone, "lora_A", &module);
                    continue;
                }
                [None, None] => continue,
            };
            match self.pair(&module, &a, &b) {
                Err(problem) => {
                    let info = self.file.info(&b.tensor);
                    self.refuse(&b.tensor, info.as_ref(), problem);
                }
                Ok((scaling, reason)) => {
                    for found in [&a, &b] {
                        let info = self.file.info(&found.tensor);
                        self.note(&found.tensor, info.as_ref(), Verdict::Used, &reason);
                    }
                    modules.insert(module, Lora { dtype: a.dtype.max_width(b.dtype), a: a.matrix, b: b.matrix, scaling });
                }
            }
        }
        modules
    }

    fn lone(&mut self, found: &Found, other: &str, module: &str) {
        let info = self.file.info(&found.tensor);
        self.refuse(&found.tensor, info.as_ref(), format!("expected {other} of {module} beside it, found none"));
    }

    /// Checks two factors against each other and the configuration, and returns the scale and how it came about.
    fn pair(&self, module: &str, a: &Found, b: &Found) -> Result<(f32, String), String> {
        let rank = a.matrix.rows;
        if b.matrix.cols != rank {
            return Err(format!("expected {rank} columns, the rank of {}, found [{}, {}]", a.tensor, b.matrix.rows, b.matrix.cols));
        }
        let Some(config) = self.config else {
            return Ok((1.0, format!("rank {rank}; the scale is unknown without a sound configuration")));
        };
        let expected = config.rank(module);
        if rank as u64 != expected {
            return Err(format!("expected rank {expected}, as {CONFIG_FILE} says, found {rank}"));
        }
        let scaling = config.scaling(module) as f32;
        let largest = |found: &Found| found.matrix.data.iter().fold(0f32, |most, value| most.max(value.abs()));
        let [of_a, of_b] = [largest(a), largest(b)].map(f64::from);
        // The scale of the one may move into the other: each alone must leave room for that.
        let most = of_a.max(1.0) * of_b.max(1.0) * f64::from(scaling.abs());
        let product = of_a * of_b * f64::from(scaling.abs());
        if most > MAX_PRODUCT || (product > 0.0 && product < MIN_PRODUCT) {
            return Err(format!(
                "expected lora_A, lora_B and the scale to have a product from {MIN_PRODUCT:e} to {MAX_PRODUCT:e}, or of zeros, found values up to {of_a:e} and \
                 {of_b:e} under a scale of {scaling:e}: the training diverged, or the file is damaged"
            ));
        }
        Ok((scaling, format!("rank {rank}, scaling {scaling}")))
    }
}

impl DType {
    /// The type that holds every value of both.
    fn max_width(self, other: Self) -> Self {
        if self == other { self } else { Self::F32 }
    }
}
