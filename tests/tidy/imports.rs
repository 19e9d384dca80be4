//! Who may import whom: the packages, and the modules inside them, whose names no two packages share.

use proc_macro2::TokenTree;

use crate::source::{File, inner};
use crate::tokens::{Flat, flatten};

/// What every backend and the session stand on.
const CORE: &[&str] = &["error", "dtype", "device", "ops", "backend"];

/// The packages as Rust names them, and how the paths of their files begin: each may import those before it.
const PACKAGES: [(&str, &[&str]); 4] =
    [("trifuse", &["src/", "backends/"]), ("trifuse_testkit", &["crates/testkit/"]), ("trifuse_serve", &["crates/serve/"]), ("trifuse_cli", &["crates/cli/"])];

/// Whether a path that begins with `name` begins at the root of a package.
pub fn is_root(name: &str) -> bool {
    name == "crate" || PACKAGES.iter().any(|(package, _)| *package == name)
}

/// A module and those that it may import besides itself. A new module goes in here with its place.
const ALLOWED: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("dtype", &["error"]),
    ("device", &["error", "dtype"]),
    ("ops", &["error", "dtype", "device"]),
    ("backend", &["error", "dtype", "device", "ops"]),
    ("read", &["error"]),
    ("safetensors_file", &["error", "dtype", "read"]),
    ("hub", &["error"]),
    ("session", CORE),
    ("layer", &["error", "dtype", "device", "ops", "backend", "session"]),
    ("adapters", &["error", "dtype", "device", "ops", "backend", "read", "safetensors_file", "hub", "session"]),
    ("model", &["error", "dtype", "device", "ops", "backend", "read", "safetensors_file", "hub", "session", "adapters"]),
    ("llm", &["error", "dtype", "device", "ops", "backend", "read", "safetensors_file", "hub", "session", "adapters", "layer", "model"]),
    ("shrink", &["error", "dtype", "device", "ops", "backend", "read", "safetensors_file", "session", "adapters", "llm"]),
    // Of the testkit.
    ("oracle", &["error", "dtype", "device", "ops"]),
    ("cases", &["error", "dtype", "device", "ops", "oracle"]),
    ("tolerance", &["error", "dtype", "device", "ops", "oracle", "cases"]),
    ("casefile", &["error", "dtype", "device", "ops", "safetensors_file", "oracle", "cases", "tolerance"]),
    ("conformance", &["error", "dtype", "device", "ops", "backend", "session", "oracle", "cases", "tolerance", "casefile"]),
    ("contract", &["error", "dtype", "device", "ops", "backend", "session", "cases", "conformance"]),
    // Of the server.
    ("queueing", &[]),
    ("spent", &[]),
    ("account", &["spent"]),
    ("otlp", &["error", "account"]),
    ("content", &["error", "adapters", "llm", "queueing"]),
    ("keys", &["error", "read", "queueing"]),
    ("keeper", &["error", "adapters", "queueing"]),
    ("adapter_root", &["error", "adapters", "content", "keeper", "queueing"]),
    ("config", &["adapter_root", "keys", "otlp", "queueing"]),
    ("replica", &[]),
    ("metrics", &["error", "queueing", "replica"]),
    ("embedder", &["error", "backend", "adapters", "model", "queueing"]),
    ("line", &["error", "adapters", "embedder", "metrics", "queueing", "replica", "spent"]),
    ("runner", &["error", "adapters", "model", "embedder", "keeper", "line", "queueing"]),
    ("embeddings", &["error", "adapters", "model", "embedder", "keeper", "line", "metrics", "queueing", "replica", "runner"]),
    ("kserve", &["error", "dtype", "ops"]),
    ("operations", &["error", "backend", "device", "ops", "session", "embeddings", "kserve", "line", "queueing", "replica", "spent"]),
    ("shm", &["error"]),
    ("stats", &[]),
    ("workers", &["error"]),
    ("generate", &["error", "llm", "keeper", "line", "queueing", "replica"]),
    ("turns", &["error", "llm", "generate", "keeper", "line", "metrics", "queueing", "replica"]),
    ("language_model", &["error", "backend", "adapters", "llm", "generate", "keeper", "line", "queueing", "replica"]),
    (
        "http",
        &[
            "error",
            "account",
            "adapters",
            "llm",
            "model",
            "config",
            "embeddings",
            "generate",
            "keeper",
            "keys",
            "kserve",
            "line",
            "metrics",
            "operations",
            "otlp",
            "queueing",
            "replica",
            "shm",
            "stats",
            "workers",
        ],
    ),
    ("grpc", &["error", "account", "http", "kserve", "queueing"]),
    (
        "server",
        &[
            "error",
            "config",
            "embedder",
            "embeddings",
            "generate",
            "grpc",
            "http",
            "keys",
            "kserve",
            "metrics",
            "operations",
            "otlp",
            "queueing",
            "turns",
            "workers",
        ],
    ),
    // Of the command.
    ("verify", &["error", "dtype", "device", "ops", "backend", "safetensors_file", "session", "oracle", "cases", "tolerance", "conformance", "adapters"]),
];

/// The parts of `llm` that decide without a device, a clock or a thread, so that a test can try every case. They import `error` and each other, and the
/// sampler the random numbers of the operation.
const PURE: &[&str] = &["cache", "sample", "schedule", "step", "stops", "tokens"];

/// What a pure part may not have of the standard library.
const IMPURE: &[&str] = &["env", "fs", "net", "process", "sync", "thread", "time"];

/// Modules that may import anything: the front page and what hangs off the end of the chain.
const FREE: &[&str] = &["lib", "main", "cli", "bench"];

/// Names that the crate's root gives again, and the module that each comes from.
const ROOT: &[(&str, &str)] = &[("Error", "error"), ("Result", "error"), ("DType", "dtype")];

/// Faults in the imports of a Rust file.
pub fn rust(file: &File) -> Vec<String> {
    if !file.is_product() {
        return Vec::new();
    }
    let mut faults = packages(file);
    let module = module_path(&file.path);
    let top = module[0].as_str();
    let allowed: Vec<&str> = match (top, FREE.contains(&top)) {
        (_, true) => return faults,
        ("backends", _) => [CORE, &["backends"]].concat(),
        _ => match ALLOWED.iter().find(|(name, _)| *name == top) {
            Some((_, allowed)) => [allowed, &[top][..]].concat(),
            None => return vec![file.fault(1, format_args!("module {top} has no place in the import order; give it one in tests/tidy/imports.rs"))],
        },
    };
    let tokens = flatten(&file.text);
    let is_pure = |module: &[String]| module[0] == "llm" && module.get(1).is_some_and(|part| PURE.contains(&part.as_str()));
    if is_pure(&module) {
        faults.extend(
            standard(&tokens)
                .into_iter()
                .filter(|(_, part)| IMPURE.contains(&part.as_str()))
                .map(|(line, part)| file.fault(line, format_args!("{} may not use std::{part}", module.join("::")))),
        );
    }
    for (line, path) in paths(&tokens, &module) {
        let name = ROOT.iter().find(|(name, _)| *name == path[0]).map_or(path[0].as_str(), |(_, module)| module);
        if !allowed.contains(&name) {
            faults.push(file.fault(line, format_args!("{top} may not import {name}")));
        }
        let operation = module.get(1).is_some_and(|part| part == "sample") && path.len() > 1 && path[..2] == ["ops", "sample"];
        if is_pure(&module) && name != "error" && !is_pure(&path) && !operation {
            faults.push(file.fault(line, format_args!("{} may not import {}", module.join("::"), path.join("::"))));
        }
        // One backend must not lean on another: each can be left out of a build.
        if top == "backends" && name == "backends" && module.len() > 1 && path.get(1).is_some_and(|other| *other != module[1]) {
            faults.push(file.fault(line, format_args!("backend {} may not import {}", module[1], path[1])));
        }
    }
    faults
}

/// The modules of the standard library that the tokens name, with their lines.
fn standard(tokens: &[Flat]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.ident().as_deref() == Some("std") && tokens.get(at + 1).is_some_and(Flat::is_path_separator) {
            leaves(&tokens[at + 2..], &["std".into()], token.line, &mut found);
        }
    }
    found.into_iter().filter_map(|(line, path)| Some((line, path.into_iter().nth(1)?))).collect()
}

/// Names of packages that stand on the file's own.
fn packages(file: &File) -> Vec<String> {
    let Some(own) = PACKAGES.iter().position(|(_, starts)| starts.iter().any(|start| file.path.starts_with(start))) else {
        return vec![file.fault(1, "its package has no place in the import order; give it one in tests/tidy/imports.rs")];
    };
    let above = |name: &String| PACKAGES[own + 1..].iter().any(|(package, _)| package == name);
    let named = flatten(&file.text).into_iter().filter_map(|token| Some((token.line, token.ident().filter(above)?)));
    named.map(|(line, name)| file.fault(line, format_args!("{} may not import {name}", PACKAGES[own].0))).collect()
}

/// `src/ops/index/mod.rs` is `ops::index`, `crates/testkit/src/cases/mod.rs` is `cases`, `backends/mod.rs` is `backends`.
pub fn module_path(path: &str) -> Vec<String> {
    let path = inner(path).unwrap_or(path).trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// The paths from a package's root that the tokens name, with their lines: those that begin with `crate` or a package's name,
/// and those that `super` leads there.
fn paths(tokens: &[Flat], module: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let line = tokens[at].line;
        let first = tokens[at].ident();
        let base = match first.as_deref() {
            Some(name) if is_root(name) => Some(Vec::new()),
            Some("super") => Some(module[..module.len() - 1].to_vec()),
            _ => None,
        };
        at += 1;
        let Some(mut base) = base else { continue };
        while tokens.get(at).is_some_and(Flat::is_path_separator) && tokens.get(at + 1).and_then(Flat::ident).as_deref() == Some("super") {
            base.pop();
            at += 2;
        }
        if tokens.get(at).is_some_and(Flat::is_path_separator) {
            leaves(&tokens[at + 1..], &base, line, &mut found);
        }
    }
    found
}

/// Follows a path, or the branches of a `{…}` group, to the first two names from the crate's root.
fn leaves(tokens: &[Flat], base: &[String], line: usize, found: &mut Vec<(usize, Vec<String>)>) {
    let mut path = base.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.ident() {
            Some(name) => path.push(name),
            None if path.len() < 2 && token.branches().is_some() => {
                for branch in token.branches().into_iter().flatten() {
                    leaves(&branch, &path, line, found);
                }
                return;
            }
            None => break,
        }
        if path.len() >= 2 || !tokens.get(at + 1).is_some_and(Flat::is_path_separator) {
            break;
        }
        at += 2;
    }
    if !path.is_empty() {
        found.push((line, path));
    }
}

/// Splits the tokens of a group at its commas.
pub fn split_at_commas(stream: proc_macro2::TokenStream) -> Vec<Vec<TokenTree>> {
    let mut parts = vec![Vec::new()];
    for token in stream {
        match &token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => parts.push(Vec::new()),
            _ => parts.last_mut().unwrap().push(token),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Faults in the includes of a CUDA source: `ptx` ← `tile` ← `gemm` ← `fused_mlp`, `tile` ← every other operation, and nothing of the system.
pub fn kernels(file: &File) -> Vec<String> {
    let Some(inner) = file.path.strip_prefix("kernels/") else { return Vec::new() };
    let own = inner.split('/').next().unwrap_or_default();
    let allowed: &[&str] = match own {
        "ptx" => &["ptx"],
        "tile" => &["ptx", "tile"],
        "fused_mlp" => &["ptx", "tile", "gemm", own],
        own => &["ptx", "tile", own],
    };
    let mut faults = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let Some(target) = line.trim_start().strip_prefix('#').and_then(|line| line.trim_start().strip_prefix("include")) else { continue };
        let target = target.trim();
        if target.starts_with('<') {
            faults.push(file.fault(number + 1, format_args!("{target}: no system headers, so that a user needs no CUDA toolkit")));
            continue;
        }
        let name = target.trim_matches('"').trim_start_matches("../");
        let folder = if name.contains('/') { name.split('/').next().unwrap_or_default() } else { own };
        if !allowed.contains(&folder) {
            faults.push(file.fault(number + 1, format_args!("kernels/{own} may not include {name}")));
        }
    }
    faults
}
