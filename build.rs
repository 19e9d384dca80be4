//! Embeds every file under `kernels/`: the CUDA backend compiles them where it runs, and no list of them is kept by hand.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo names no folder of the package")?);
    let mut names = Vec::new();
    collect(&root.join("kernels"), "", &mut names)?;
    // In the order of their names, for a search by halves.
    names.sort_unstable();
    let mut table = format!("pub static FILES: [File; {}] = [\n", names.len());
    for name in names {
        writeln!(table, "    File::new({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?}))),", format!("/kernels/{name}"))?;
    }
    table.push_str("];\n");
    let place = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo names no folder for what is made")?);
    Ok(std::fs::write(place.join("kernel_files.rs"), table)?)
}

/// Every source and header in `folder`, whose name from `kernels/` is `inside`.
fn collect(folder: &Path, inside: &str, names: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().into_string().map_err(|name| format!("{name:?} in kernels/ is no text"))?;
        let name = if inside.is_empty() { file } else { format!("{inside}/{file}") };
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, names)?;
        } else if name.ends_with(".cu") || name.ends_with(".cuh") {
            names.push(name);
        }
    }
    Ok(())
}
