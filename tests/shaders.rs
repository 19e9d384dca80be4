//! Every shader in every specialisation, composed as the pipelines compose it, parsed and validated by naga: no GPU.
#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use trifuse::backends::wgpu::{Source, sources};

/// What every Vulkan adapter has.
const EVERYWHERE: Capabilities = Capabilities::IMMEDIATES.union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);

/// What the adapter must have that is given this shader.
fn capabilities(source: &Source) -> Capabilities {
    if source.f16 { EVERYWHERE | Capabilities::SHADER_FLOAT16 } else { EVERYWHERE }
}

fn validate(source: &Source, capabilities: Capabilities) -> Result<naga::Module, String> {
    let text = source.compose();
    let module = naga::front::wgsl::parse_str(&text).map_err(|error| error.emit_to_string_with_path(&text, &source.kernel))?;
    let checked = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    checked.map_err(|error| error.emit_to_string_with_path(&text, &source.kernel))?;
    Ok(module)
}

#[test]
fn every_specialisation_is_valid() {
    let sources = sources();
    assert!(!sources.is_empty());
    for source in &sources {
        let module = validate(source, capabilities(source)).unwrap_or_else(|error| panic!("{}: {error}", source.kernel));
        let entries: Vec<_> = module.entry_points.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(entries, ["main"], "{}", source.kernel);
    }
}

/// Offsets and parameters travel in immediates, of which every Vulkan driver has 128 bytes.
#[test]
fn immediates_fit_everywhere() {
    for source in sources() {
        let module = validate(&source, capabilities(&source)).unwrap();
        let immediates = module.global_variables.iter().find(|(_, variable)| variable.space == naga::AddressSpace::Immediate);
        let (_, launch) = immediates.unwrap_or_else(|| panic!("{}: no variable `launch`", source.kernel));
        let bytes = module.types[launch.ty].inner.size(module.to_ctx());
        assert!(bytes <= 128, "{}: {bytes} bytes", source.kernel);
    }
}

/// A buffer may be bound twice in one dispatch only where no binding is read-only.
#[test]
fn every_binding_is_read_write() {
    for source in sources() {
        let module = validate(&source, capabilities(&source)).unwrap();
        for (_, variable) in module.global_variables.iter() {
            if let naga::AddressSpace::Storage { access } = variable.space {
                assert!(access.contains(naga::StorageAccess::LOAD | naga::StorageAccess::STORE), "{}: {:?}", source.kernel, variable.name);
            }
        }
    }
}

/// Workgroup memory stays within what WebGPU promises, 16 KiB, so that no adapter is left out.
#[test]
fn workgroup_memory_fits_everywhere() {
    for source in sources() {
        let module = validate(&source, capabilities(&source)).unwrap();
        let tiles = module.global_variables.iter().filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup);
        let bytes: u32 = tiles.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum();
        assert!(bytes <= 16 << 10, "{}: {bytes} bytes", source.kernel);
    }
}

/// Nor do workgroups or operands outgrow what WebGPU promises.
#[test]
fn workgroups_and_operands_fit_everywhere() {
    for source in sources() {
        let module = validate(&source, capabilities(&source)).unwrap();
        let invocations: u32 = module.entry_points[0].workgroup_size.iter().product();
        assert!(invocations <= 256 && source.present().count() <= 8, "{}: {invocations} invocations, {} operands", source.kernel, source.present().count());
    }
}

/// Without SHADER_F16 the portable shaders must still compile, and the others must be known to need it.
#[test]
fn the_f16_flag_says_what_a_shader_needs() {
    for source in sources() {
        let without = validate(&source, EVERYWHERE);
        assert_eq!(without.is_err(), source.f16, "{}", source.kernel);
    }
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
