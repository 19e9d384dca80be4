//! The way from a [`Source`] to a compiled pipeline, which the device keeps, and from slices to its bindings.

use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};

use super::compiled::{Immediates, MAX_IMMEDIATES, Pipeline};
use super::source::Source;
use super::{Buffer, Wgpu};
use crate::device::Slice;
use crate::error::{Error, Result};

/// Invocations of the largest workgroup of any shader.
const INVOCATIONS: u32 = 256;

impl Wgpu {
    /// The compiled form of `source`. The first compilation on a device is slow.
    pub(super) fn pipeline(&self, source: &Source) -> Result<Arc<Pipeline>> {
        let text = source.compose();
        if let Some(ready) = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner).get(&text) {
            return Ok(Arc::clone(ready));
        }
        // Compilation happens outside the lock. Two threads may do it twice, and none waits for another's shader.
        let pipeline = Arc::new(self.compile(source, &text)?);
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner).insert(text, Arc::clone(&pipeline));
        Ok(pipeline)
    }

    /// Why the device has no room for a shader's workgroups, if so.
    pub(super) fn narrow(&self) -> Option<String> {
        let most = self.limits.max_compute_invocations_per_workgroup;
        (most < INVOCATIONS).then(|| format!("needs workgroups of {INVOCATIONS}, the device allows {most}"))
    }

    fn compile(&self, source: &Source, text: &str) -> Result<Pipeline> {
        self.faults.check("compiling")?;
        let (operands, most) = (source.present().count(), self.limits.max_storage_buffers_per_shader_stage);
        if operands > most as usize {
            return Err(Error::unsupported(&source.kernel, format!("needs {operands} storage buffers, the device binds {most}")));
        }
        let entry = |binding| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty: wgpu::BufferBindingType::Storage { read_only: false }, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let bindings = source.present().count() as u32;
        let entries: Vec<_> = (0..bindings).map(entry).collect();
        let label = Some(source.kernel.as_str());
        let built = self.guard(|| {
            let module = self.raw.create_shader_module(wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text.into()) });
            let layout = self.raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
            let pipeline_layout = self.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: MAX_IMMEDIATES as u32,
            });
            let raw = self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            (raw, layout)
        });
        let (raw, layout) = built.map_err(|error| Error::Compile { kernel: source.kernel.clone(), log: error.to_string() })?;
        let operands = source.operands.iter().map(|operand| (operand.name, operand.present.then_some(operand.element.size()))).collect();
        Ok(Pipeline { kernel: source.kernel.clone(), raw, layout, operands })
    }
}

impl Pipeline {
    /// Binds `slices`, each through a window that starts where the device allows. The rest of its offset, in elements, goes into the
    /// immediates.
    pub(super) fn bind(&self, device: &Wgpu, slices: &[Option<&Slice<Wgpu>>], groups: u32, params: &[u8]) -> Result<(wgpu::BindGroup, Immediates)> {
        let align = u64::from(device.limits.min_storage_buffer_offset_alignment);
        let mut header = vec![groups];
        let mut entries = Vec::with_capacity(slices.len());
        for (index, (name, size)) in self.operands.iter().enumerate() {
            let (slice, size) = match (slices.get(index).copied().flatten(), size) {
                (Some(slice), Some(size)) => (slice, size),
                (None, None) => continue,
                (found, _) => {
                    let found = if found.is_some() { "present" } else { "absent" };
                    return Err(Error::invalid(format!("{}: {name}", self.kernel), "what the plan was made for", found));
                }
            };
            // An empty slice may lie at the buffer's end, where no word is left to bind.
            let start = if slice.len == 0 { 0 } else { slice.offset };
            let offset = start - start % align;
            let end = ((start + slice.len.max(1)).next_multiple_of(Buffer::WORD) + device.behind).min(slice.buffer.raw.size());
            let bytes = end - offset;
            let most = device.limits.max_storage_buffer_binding_size;
            if bytes > most {
                return Err(Error::unsupported(format!("{}: {name}", self.kernel), format!("{bytes} bytes in one dispatch, the device binds at most {most}")));
            }
            header.push(((start - offset) / size) as u32);
            let buffer = wgpu::BufferBinding { buffer: &slice.buffer.raw, offset, size: NonZeroU64::new(bytes) };
            entries.push(wgpu::BindGroupEntry { binding: entries.len() as u32, resource: wgpu::BindingResource::Buffer(buffer) });
        }
        let immediates = Immediates::new(&self.kernel, &header, params)?;
        let descriptor = wgpu::BindGroupDescriptor { label: Some(&self.kernel), layout: &self.layout, entries: &entries };
        let group = device.guard(|| device.raw.create_bind_group(&descriptor)).map_err(|error| Error::device(format!("binding {}", self.kernel), error))?;
        Ok((group, immediates))
    }
}
