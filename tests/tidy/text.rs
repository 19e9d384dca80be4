//! Rules over lines and names.

use std::path::Path;

use crate::source::File;
use crate::tokens::is_tests;

/// The most lines that a file may have.
pub fn length(file: &File) -> Vec<String> {
    let most = match file.path.rsplit('.').next() {
        Some("rs") if file.under("tests") || is_tests(file) => 450,
        Some("rs") => 400,
        Some("cu" | "cuh" | "h" | "wgsl") => 450,
        _ => return Vec::new(),
    };
    let lines = file.text.lines().count();
    if lines > most { vec![file.fault(lines, format_args!("{lines} lines; {most} at most, one subject a file"))] } else { Vec::new() }
}

/// How a doc comment begins that leans on the item above it. A hover shows each comment alone, and docs.rs a page of its own.
const LEANING: &[&str] = &["Of ", "The same", "Those ", "Whether that", "As with", "And "];

/// Doc comments of the library and its backends that begin without a subject of their own.
pub fn subjects(file: &File) -> Vec<String> {
    if !file.path.ends_with(".rs") || !(file.under("src") || file.under("backends")) {
        return Vec::new();
    }
    let lines: Vec<Option<&str>> = file.text.lines().map(doc).collect();
    let begins = |at: usize| lines[at].filter(|_| at == 0 || lines[at - 1].is_none());
    let leans = |at: usize| LEANING.iter().find(|start| begins(at).is_some_and(|text| text.starts_with(**start)));
    (0..lines.len()).filter_map(|at| Some(file.fault(at + 1, format_args!("a doc comment begins {:?}; give it a subject", leans(at)?.trim_end())))).collect()
}

/// The text of a line of a doc comment.
fn doc(line: &str) -> Option<&str> {
    ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark)).map(str::trim_start)
}

/// Kernels and shaders that no Rust file names: nothing would run them. Headers of kernels are all in the binary, and a test of the CUDA
/// backend holds that each is included.
pub fn unreferenced(files: &[File]) -> Vec<String> {
    let rust: String = files.iter().filter(|file| file.is_product()).map(|file| file.text.as_str()).collect();
    let embedded = |path: &str| {
        // By its path from the root, or from inside the folder where a macro adds the folder's name.
        let inner = path.split_once('/').map_or(path, |(_, inner)| inner);
        rust.contains(&format!("/{path}\"")) || rust.contains(&format!("\"{inner}\"")) || rust.contains(&format!("/{inner}\""))
    };
    let is_code = |file: &&File| (file.under("kernels") || file.under("shaders")) && !file.path.ends_with(".md") && !file.path.ends_with(".cuh");
    files.iter().filter(is_code).filter(|file| !embedded(&file.path)).map(|file| file.path.clone()).collect()
}

/// Package registries by host name: which one serves the packages is the reader's choice, not the project's.
pub fn registries(file: &File) -> Vec<String> {
    // Cargo writes its lock files itself: this one, and one beside the fuzz targets.
    if file.path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    // Put together here, so that this file does not name them.
    let hosts = [("crates", "io"), ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("proxy.golang", "org")];
    let hosts: Vec<String> = hosts.iter().map(|(name, domain)| format!("{name}.{domain}")).collect();
    let named = |line: &str| hosts.iter().find(|host| line.contains(host.as_str())).cloned();
    file.text.lines().enumerate().filter_map(|(number, line)| Some(file.fault(number + 1, format_args!("names {}", named(line)?)))).collect()
}

/// Relative links of Markdown pages that lead nowhere: to no file, or to no heading of a page.
pub fn links(file: &File) -> Vec<String> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join(Path::new(&file.path).parent().unwrap_or(Path::new("")));
    // A package leaves the notebook out, and not the pages that lead to it.
    let packaged = !root.join("lab").exists();
    let mut faults = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        for after in line.split("](").skip(1) {
            let (target, anchor) = split_link(after.split([')', ' ']).next().unwrap_or_default());
            if target.contains("://") || target.starts_with("mailto:") || packaged && target.trim_start_matches("../").starts_with("lab/") {
                continue;
            }
            let path = folder.join(target);
            if !target.is_empty() && !path.exists() {
                faults.push(file.fault(number + 1, format_args!("no {target} there")));
            } else if let Some(anchor) = anchor.filter(|_| target.is_empty() || target.ends_with(".md")) {
                let page = if target.is_empty() { file.text.clone() } else { std::fs::read_to_string(path).unwrap_or_default() };
                if !anchors(&page).iter().any(|known| known == anchor) {
                    faults.push(file.fault(number + 1, format_args!("no heading {anchor} in {target}")));
                }
            }
        }
    }
    faults
}

/// Pages of the notebook that its index does not lead to: nobody would find what they say.
pub fn unlisted(files: &[File]) -> Vec<String> {
    let index = files.iter().find(|file| file.path == "lab/README.md").map_or("", |file| file.text.as_str());
    let listed = |file: &&File| file.path.strip_prefix("lab/").is_some_and(|page| [")", "#"].iter().any(|end| index.contains(&format!("]({page}{end}"))));
    let pages = files.iter().filter(|file| file.under("lab") && file.path.ends_with(".md") && file.path != "lab/README.md");
    pages.filter(|file| !listed(file)).map(|file| file.path.clone()).collect()
}

/// A link's page and, behind `#`, its heading.
fn split_link(link: &str) -> (&str, Option<&str>) {
    link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)))
}

/// What a page's headings are called in links: small letters, hyphens for spaces, no other marks; those that come again are numbered.
fn anchors(page: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut found = Vec::new();
    let mut code = false;
    for line in page.lines() {
        code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|mark| mark.is_alphanumeric() || " -_".contains(*mark));
        let name: String = kept.flat_map(char::to_lowercase).map(|mark| if mark == ' ' { '-' } else { mark }).collect();
        let again = names.iter().filter(|known| **known == name).count();
        found.push(if again == 0 { name.clone() } else { format!("{name}-{again}") });
        names.push(name);
    }
    found
}
