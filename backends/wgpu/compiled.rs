//! A compiled shader, and what a dispatch passes to it besides its operands.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Bytes of immediates that every driver has room for.
pub(super) const MAX_IMMEDIATES: usize = 128;

/// Compiled pipelines by their whole text.
pub(super) type Cache = HashMap<String, Arc<Pipeline>>;

/// A compiled shader.
pub(super) struct Pipeline {
    pub kernel: String,
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// The name of each operand of the source and, where it is present, its bytes an element.
    pub operands: Vec<(&'static str, Option<u64>)>,
}

/// The bytes of the variable `launch`: the number of groups, the operands' offsets, the shader's `Params`.
#[derive(Clone)]
pub(super) struct Immediates {
    bytes: [u8; MAX_IMMEDIATES],
    len: usize,
}

impl Immediates {
    pub fn new(kernel: &str, header: &[u32], params: &[u8]) -> Result<Self> {
        let header: &[u8] = bytemuck::cast_slice(header);
        let mut bytes = [0; MAX_IMMEDIATES];
        let len = header.len() + params.len();
        if len > MAX_IMMEDIATES || !len.is_multiple_of(4) {
            return Err(Error::Compile { kernel: kernel.into(), log: format!("{len} bytes of immediates, expected whole words, at most {MAX_IMMEDIATES}") });
        }
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..len].copy_from_slice(params);
        Ok(Self { bytes, len })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
