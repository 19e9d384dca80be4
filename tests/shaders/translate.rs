//! What drivers are given: SPIR-V for Vulkan, MSL for Metal, HLSL for DX12, with the options that wgpu sets.

use naga::ResourceBinding;
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{AddressSpace, Module};

/// Nothing is read or written outside a binding.
const CHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// The operands of a shader, in the order in which they are bound.
fn bindings(module: &Module) -> impl Iterator<Item = ResourceBinding> {
    module.global_variables.iter().filter_map(|(_, variable)| variable.binding)
}

/// Translates to SPIR-V.
pub fn spirv(module: &Module, info: &ModuleInfo) -> Result<(), String> {
    let options = spv::Options { bounds_check_policies: CHECKED, ..spv::Options::default() };
    let words = spv::write_vec(module, info, &options, None).map_err(|error| error.to_string())?;
    if words.first() == Some(&0x0723_0203) { Ok(()) } else { Err("no SPIR-V module".into()) }
}

/// Translates to the Metal shading language.
pub fn msl(module: &Module, info: &ModuleInfo, version: (u8, u8)) -> Result<(), String> {
    let count = bindings(module).count() as u8;
    let target = |number: usize| msl::BindTarget { buffer: Some(number as u8), mutable: true, ..msl::BindTarget::default() };
    let resources = bindings(module).enumerate().map(|(number, binding)| (binding, target(number))).collect();
    let entry = msl::EntryPointResources { resources, immediates_buffer: Some(count), sizes_buffer: Some(count + 1) };
    let options = msl::Options {
        lang_version: version,
        per_entry_point_map: [("main".to_owned(), entry)].into(),
        fake_missing_bindings: false,
        bounds_check_policies: CHECKED,
        ..msl::Options::default()
    };
    let (text, translated) = msl::write_string(module, info, &options, &msl::PipelineOptions::default()).map_err(|error| error.to_string())?;
    match &translated.entry_point_names[..] {
        [Ok(name)] if text.contains(&format!("kernel void {name}(")) => Ok(()),
        other => Err(format!("entry points {other:?}")),
    }
}

/// Translates to HLSL.
pub fn hlsl(module: &Module, info: &ModuleInfo, model: hlsl::ShaderModel) -> Result<(), String> {
    let target = |register: usize| hlsl::BindTarget { register: register as u32, restrict_indexing: true, ..hlsl::BindTarget::default() };
    let options = hlsl::Options {
        shader_model: model,
        binding_map: bindings(module).enumerate().map(|(number, binding)| (binding, target(number))).collect(),
        fake_missing_bindings: false,
        special_constants_binding: Some(hlsl::BindTarget { space: 1, ..hlsl::BindTarget::default() }),
        immediates_target: Some(hlsl::BindTarget { space: 2, ..hlsl::BindTarget::default() }),
        ..hlsl::Options::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    let translated = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None).map_err(|error| error.to_string())?;
    match &translated.entry_point_names[..] {
        [Ok(name)] if text.contains("[numthreads(") && text.contains(&format!("void {name}(")) => Ok(()),
        other => Err(format!("entry points {other:?}")),
    }
}

/// Bytes of the variables of one address space.
pub fn bytes(module: &Module, space: AddressSpace) -> u32 {
    let variables = module.global_variables.iter().filter(|(_, variable)| variable.space == space);
    variables.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum()
}
