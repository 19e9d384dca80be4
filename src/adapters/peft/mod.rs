//! LoRA adapters as PEFT saves them: a folder with `adapter_config.json` and `adapter_model.safetensors`.
//!
//! The update of a weight `W [d_out, d_in]` is `ΔW = scaling · B · A`, with `A [r, d_in]` and `B [d_out, r]`. The scaling is `lora_alpha /
//! r`, or `lora_alpha / √r` for rank-stabilised LoRA (Hu et al. 2021; Kalajdzievski 2023). A key that would change that mathematics is
//! refused by name. [`inspect`] lists everything that was used, ignored and refused. `fan_in_fan_out` only says that the base weight is
//! stored transposed.

mod config;
mod folder;
mod pattern;
mod place;
mod tensor_name;
mod value;

pub use config::{Config, MAX_CONFIG_BYTES};
pub use folder::{CONFIG_FILE, TENSOR_FILE, inspect, inspect_bytes};
pub use place::{AdapterFolder, adapter_files, adapter_folders, open_all};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::matrix::Matrix;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The highest rank that is read. Adapters in use have 2 to 256.
pub const MAX_RANK: u64 = 4096;

/// One adapter, with its factors widened to f32.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraAdapter {
    /// The folder's name, or a name that was given.
    pub name: String,
    /// The adapter's folder.
    pub folder: PathBuf,
    /// The JSON of `adapter_config.json`.
    pub config: serde_json::Value,
    /// The updates, by module path in the base model (`encoder.layer.0.attention.self.query`).
    pub modules: BTreeMap<String, Lora>,
    /// Every key and tensor: used, or ignored and why.
    pub findings: Vec<Finding>,
}

/// One adapter's update of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The factor A, `[r, d_in]`.
    pub a: Matrix<f32>,
    /// The factor B, `[d_out, r]`.
    pub b: Matrix<f32>,
    /// The factor in front of the product.
    pub scaling: f32,
    /// The type in which both factors were stored; the wider, where they differ.
    pub dtype: DType,
}

/// What was done with one key of the configuration or one tensor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Whether it is a key of the configuration or a tensor.
    pub kind: FindingKind,
    /// The key or the tensor's name.
    pub name: String,
    /// The key's value, or the tensor's type and shape.
    pub content: String,
    /// What was done with the key or tensor.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: String,
}

impl Finding {
    /// Whether the finding is a key of the configuration that is set and that this version does not know.
    pub fn is_unknown_key(&self) -> bool {
        self.kind == FindingKind::Key && self.verdict == Verdict::Ignored && self.reason == UNKNOWN_KEY
    }
}

/// The reason why a key that is set is ignored where nothing is known of it.
const UNKNOWN_KEY: &str = "unknown key: its meaning, if it has one, is left out";

/// The file from which a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A key of `adapter_config.json`.
    Key,
    /// A tensor of `adapter_model.safetensors`.
    Tensor,
}

/// What was done with a key or tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The key or tensor is part of the adapter.
    Used,
    /// The adapter means the same without it.
    Ignored,
    /// The adapter cannot be used because of it.
    Refused,
}

/// Everything found in an adapter's folder, with its faults.
#[derive(Debug)]
pub struct Inspection {
    /// The folder's name.
    pub name: String,
    /// The inspected folder.
    pub folder: PathBuf,
    /// The JSON of `adapter_config.json`, where it could be read.
    pub config: Option<serde_json::Value>,
    /// The updates that are sound.
    pub modules: BTreeMap<String, Lora>,
    /// Every key and tensor that was found.
    pub findings: Vec<Finding>,
    /// Why the adapter cannot be used; empty where it can.
    pub faults: Vec<Error>,
}

impl Lora {
    /// The rank of the update.
    pub fn rank(&self) -> usize {
        self.a.rows
    }

    /// Bytes of the two factors in the type in which they were stored.
    pub fn bytes(&self) -> u64 {
        (self.a.data.len() + self.b.data.len()) as u64 * self.dtype.size()
    }
}

impl LoraAdapter {
    /// Opens an adapter's folder.
    ///
    /// # Errors
    /// The first fault that [`inspect`] finds, by file, tensor or key, and value.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        inspect(folder).into_adapter()
    }
}

impl Inspection {
    /// The adapter, if nothing is wrong with it.
    ///
    /// # Errors
    /// The first fault.
    pub fn into_adapter(mut self) -> Result<LoraAdapter> {
        if !self.faults.is_empty() {
            return Err(self.faults.swap_remove(0));
        }
        let Some(config) = self.config else {
            return Err(Error::input(&self.folder, "no configuration was read"));
        };
        Ok(LoraAdapter { name: self.name, folder: self.folder, config, modules: self.modules, findings: self.findings })
    }
}
