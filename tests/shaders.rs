//! Every shader in every specialisation, composed as the pipelines compose it, parsed and validated by naga, translated to what each driver takes
//! and held to the limits that WebGPU promises: no GPU.
#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "shaders/translate.rs"]
mod translate;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use naga::back::hlsl::ShaderModel;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module};
use trifuse::backends::wgpu::{Source, sources};

/// What every adapter has.
const EVERYWHERE: Capabilities = Capabilities::IMMEDIATES.union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);
/// Bytes of immediates that every driver has room for: Vulkan and DX12 have 128, Metal 4096.
const IMMEDIATES: u32 = 128;

/// What the adapter must have that is given this shader.
fn capabilities(source: &Source) -> Capabilities {
    if source.f16 { EVERYWHERE | Capabilities::SHADER_FLOAT16 } else { EVERYWHERE }
}

fn validate(source: &Source, capabilities: Capabilities) -> Result<(Module, ModuleInfo), String> {
    let text = source.compose();
    let module = naga::front::wgsl::parse_str(&text).map_err(|error| error.emit_to_string_with_path(&text, &source.kernel))?;
    let checked = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = checked.map_err(|error| error.emit_to_string_with_path(&text, &source.kernel))?;
    Ok((module, info))
}

/// Every shader, valid; parsed once for all tests.
fn valid() -> &'static [(Source, Module, ModuleInfo)] {
    static ALL: OnceLock<Vec<(Source, Module, ModuleInfo)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let one = |source: Source| {
            let (module, info) = validate(&source, capabilities(&source)).unwrap_or_else(|error| panic!("{}: {error}", source.kernel));
            (source, module, info)
        };
        sources().into_iter().map(one).collect()
    })
}

/// Does `check` with every shader.
fn each(check: impl Fn(&Source, &Module, &ModuleInfo) -> Result<(), String>) {
    assert!(!valid().is_empty());
    for (source, module, info) in valid() {
        check(source, module, info).unwrap_or_else(|error| panic!("{}: {error}", source.kernel));
    }
}

#[test]
fn every_specialisation_is_valid() {
    each(|_, module, _| match &module.entry_points[..] {
        [entry] if entry.name == "main" => Ok(()),
        other => Err(format!("{} entry points", other.len())),
    });
}

#[test]
fn every_specialisation_is_translated_for_vulkan() {
    each(|_, module, info| translate::spirv(module, info));
}

#[test]
fn every_specialisation_is_translated_for_metal() {
    for version in [(2, 1), (3, 0)] {
        each(|_, module, info| translate::msl(module, info, version));
    }
}

/// Of shader model 5.1 is what the compiler takes that every Windows has; f16 needs 6.2.
#[test]
fn every_specialisation_is_translated_for_dx12() {
    each(|source, module, info| if source.f16 { Ok(()) } else { translate::hlsl(module, info, ShaderModel::V5_1) });
    each(|_, module, info| translate::hlsl(module, info, ShaderModel::V6_2));
}

/// A check that nothing fails would prove nothing.
#[test]
fn what_is_not_one_kernel_is_refused() {
    let text = "@compute @workgroup_size(1) fn main() {} @compute @workgroup_size(1) fn other() {}";
    let module = naga::front::wgsl::parse_str(text).unwrap();
    let info = Validator::new(ValidationFlags::all(), EVERYWHERE).validate(&module).unwrap();
    assert!(translate::msl(&module, &info, (2, 1)).is_err() && translate::hlsl(&module, &info, ShaderModel::V5_1).is_err());
}

/// Offsets and parameters travel in immediates.
#[test]
fn immediates_fit_everywhere() {
    each(|_, module, _| match translate::bytes(module, AddressSpace::Immediate) {
        0 => Err("no variable `launch`".into()),
        bytes if bytes > IMMEDIATES => Err(format!("{bytes} bytes")),
        _ => Ok(()),
    });
}

/// A buffer may be bound twice in one dispatch only where no binding is read-only.
#[test]
fn every_binding_is_read_write() {
    each(|_, module, _| {
        let both = naga::StorageAccess::LOAD | naga::StorageAccess::STORE;
        let readonly =
            module.global_variables.iter().find(|(_, variable)| matches!(variable.space, AddressSpace::Storage { access } if !access.contains(both)));
        readonly.map_or(Ok(()), |(_, variable)| Err(format!("{:?}", variable.name)))
    });
}

/// Workgroup memory, workgroups and operands stay within what WebGPU promises, so that no adapter is left out.
#[test]
fn the_limits_of_webgpu_are_enough() {
    let promised = wgpu::Limits::default();
    each(|source, module, _| {
        let memory = translate::bytes(module, AddressSpace::WorkGroup);
        let [x, y, z] = module.entry_points[0].workgroup_size;
        let sides = [promised.max_compute_workgroup_size_x, promised.max_compute_workgroup_size_y, promised.max_compute_workgroup_size_z];
        let fits = memory <= promised.max_compute_workgroup_storage_size
            && x * y * z <= promised.max_compute_invocations_per_workgroup
            && [x, y, z].iter().zip(sides).all(|(side, most)| *side <= most)
            && source.present().count() <= promised.max_storage_buffers_per_shader_stage as usize;
        if fits { Ok(()) } else { Err(format!("{memory} bytes, workgroups of {x} x {y} x {z}, {} operands", source.present().count())) }
    });
}

/// Without SHADER_F16 the portable shaders must still compile, and the others must be known to need it.
#[test]
fn the_f16_flag_says_what_a_shader_needs() {
    for source in sources() {
        let without = validate(&source, EVERYWHERE);
        assert_eq!(without.is_err(), source.f16, "{}", source.kernel);
    }
}

/// No shader uses a subgroup: what an adapter says of them changes nothing.
#[test]
fn no_shader_needs_a_subgroup() {
    each(|source, _, _| if source.compose().contains("subgroup") { Err("uses a subgroup".into()) } else { Ok(()) });
}

#[test]
fn no_file_is_left_out() {
    fn collect(folder: &Path, root: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, root, names);
            } else {
                let name = path.strip_prefix(root).unwrap().components().map(|part| part.as_os_str().to_str().unwrap()).collect::<Vec<_>>().join("/");
                assert!(name.ends_with(".wgsl"), "{name} in shaders/");
                names.insert(name);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut there = BTreeSet::new();
    collect(&root, &root, &mut there);
    let used: BTreeSet<_> = sources().iter().flat_map(Source::file_names).map(String::from).collect();
    assert_eq!(there, used);
}
