//! LoRA adapters as PEFT saves them: a folder with `adapter_config.json` and `adapter_model.safetensors`.
//!
//! The update of a weight `W [d_out, d_in]` is `ΔW = scaling · B · A`, with `A [r, d_in]`, `B [d_out, r]` and scaling
//! `lora_alpha / r`, or `lora_alpha / √r` for rank-stabilised LoRA (Hu et al. 2021; Kalajdzievski 2023).
//! Whatever would change that mathematics is refused by the name of its key; see [`inspect`] for the whole list of
//! what was used, ignored and refused. `fan_in_fan_out` only says that the base weight is stored transposed.

mod config;
mod folder;
mod pattern;
mod place;
mod tensor_name;
mod value;

pub use config::Config;
pub use folder::{CONFIG_FILE, TENSOR_FILE, inspect, inspect_bytes};
pub use place::{AdapterFolder, adapter_files, adapter_folders, open_all};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::matrix::Matrix;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Highest rank that is read. Adapters in use have 2 to 256.
pub const MAX_RANK: u64 = 4096;

/// One adapter, its factors widened to f32.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraAdapter {
    /// The folder's name, or the one it was given.
    pub name: String,
    /// The folder.
    pub folder: PathBuf,
    /// `adapter_config.json` as it is.
    pub config: serde_json::Value,
    /// The updates, by module path in the base model (`encoder.layer.0.attention.self.query`).
    pub modules: BTreeMap<String, Lora>,
    /// Every key and tensor: used, or ignored and why.
    pub findings: Vec<Finding>,
}

/// One adapter's update of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// `[r, d_in]`.
    pub a: Matrix<f32>,
    /// `[d_out, r]`.
    pub b: Matrix<f32>,
    /// The factor in front of the product.
    pub scaling: f32,
    /// The type both were stored in; the wider, where they differ.
    pub dtype: DType,
}

/// What became of one key of the configuration or one tensor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Whether it is a key of the configuration or a tensor.
    pub kind: FindingKind,
    /// The key or the tensor's name.
    pub name: String,
    /// The key's value, or the tensor's type and shape.
    pub content: String,
    /// What was done with it.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

impl Finding {
    /// Whether it is a key of the configuration that is set and that this version does not know.
    pub fn is_unknown_key(&self) -> bool {
        self.kind == FindingKind::Key && self.verdict == Verdict::Ignored && self.reason == UNKNOWN_KEY
    }
}

/// Why a key that is set is ignored where nothing is known of it.
const UNKNOWN_KEY: &str = "unknown key: its meaning, if it has one, is left out";

/// Where a [`Finding`] is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// `adapter_config.json`.
    Key,
    /// `adapter_model.safetensors`.
    Tensor,
}

/// What was done with a key or tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is part of the adapter.
    Used,
    /// The adapter means the same without it.
    Ignored,
    /// The adapter cannot be used because of it.
    Refused,
}

/// Everything found in an adapter's folder, faults included.
#[derive(Debug)]
pub struct Inspection {
    /// The folder's name.
    pub name: String,
    /// The folder.
    pub folder: PathBuf,
    /// `adapter_config.json`, where it could be read.
    pub config: Option<serde_json::Value>,
    /// What is sound.
    pub modules: BTreeMap<String, Lora>,
    /// Every key and tensor.
    pub findings: Vec<Finding>,
    /// Why the adapter cannot be used; empty where it can.
    pub faults: Vec<Error>,
}

impl Lora {
    /// Rank.
    pub fn rank(&self) -> usize {
        self.a.rows
    }

    /// Bytes of the two factors in the type they were stored in.
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
    /// The adapter.
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
