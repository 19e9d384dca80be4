//! The house rules that a compiler does not hold: who may import whom, how long a file may be, what may stand where.
//!
//! Rust is read as tokens, so that comments and strings cannot mislead a rule. Every rule is also shown a sample
//! that breaks it: a rule that cannot fail is no rule.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/cuda.rs"]
mod cuda;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/licences.rs"]
mod licences;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/text.rs"]
mod text;
#[path = "tidy/tokens.rs"]
mod tokens;

use source::{File, files};

/// Runs `rule` over every file and fails with every fault it finds.
fn hold(rule: impl Fn(&File) -> Vec<String>) {
    let faults: Vec<String> = files().iter().flat_map(rule).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// What `rule` says of a made-up file.
fn said(rule: impl Fn(&File) -> Vec<String>, path: &str, text: &str) -> usize {
    rule(&File { path: path.into(), text: text.into() }).len()
}

#[test]
fn imports_go_one_way() {
    hold(imports::rust);
    assert_eq!(said(imports::rust, "src/device.rs", "use crate::error::Result;"), 0);
    assert_eq!(said(imports::rust, "src/device.rs", "use crate::session::Session;"), 1);
    assert_eq!(said(imports::rust, "src/ops/mod.rs", "use crate::{error::Result, backend::{Kernel}, oracle};"), 2);
    assert_eq!(said(imports::rust, "src/ops/index/codes.rs", "fn f() { super::super::super::session::g() }"), 1);
    assert_eq!(said(imports::rust, "src/ops/index/codes.rs", "use super::super::codes::Layout;"), 0);
    assert_eq!(said(imports::rust, "src/ops/mod.rs", "#[cfg(test)] mod tests { use crate::oracle::f; }"), 0);
    assert_eq!(said(imports::rust, "backends/cpu/linear.rs", "use crate::backends::cpu::Cpu; use crate::backend::Kernel;"), 0);
    assert_eq!(said(imports::rust, "backends/cpu/linear.rs", "use crate::backends::wgpu::Wgpu;"), 1);
    assert_eq!(said(imports::rust, "backends/wgpu/mod.rs", "fn f() { crate::oracle::linear() }"), 1);
    assert_eq!(said(imports::rust, "backends/wgpu/mod.rs", "use super::cuda::jit;"), 1);
    let pure = |text: &str| said(imports::rust, "src/llm/schedule/plan.rs", text);
    assert_eq!(pure("use crate::error::Result; use crate::llm::cache::Blocks; use super::super::step::Step; use std::collections::HashMap;"), 0);
    assert_eq!(pure("use crate::llm::forward::f; use super::super::engine; use std::{fmt, time::Instant}; fn f() { std::thread::yield_now() }"), 4);
    let sampler = |text: &str| said(imports::rust, "src/llm/sample/noise.rs", text);
    assert_eq!((sampler("use crate::ops::sample::f;"), sampler("use crate::ops::Op;"), pure("use crate::ops::sample::f;")), (0, 1, 1));
    let oracle = |text: &str| said(imports::rust, "crates/testkit/src/oracle/mod.rs", text);
    assert_eq!(oracle("use trifuse::ops::Linear; use trifuse::Error; use crate::oracle::f;"), 0);
    assert_eq!(oracle("use crate::cases::Case;"), 1);
    assert_eq!(oracle("use trifuse::{session::Session, ops};"), 1);
    assert_eq!(oracle("use trifuse_testkit::conformance::run_case;"), 1);
    assert_eq!(said(imports::rust, "crates/cli/src/cli/mod.rs", "use trifuse::ops::Op; use trifuse_cli::bench::run; use trifuse_testkit::cases::all;"), 0);
    assert_eq!(said(imports::rust, "crates/testkit/src/lib.rs", "use trifuse_cli::bench::run;"), 1, "a package that stands on this one");
    assert_eq!(said(imports::rust, "src/ops/mod.rs", "use trifuse_testkit::cases::all;"), 2, "a package above, and a module that is not on the list");
    assert_eq!(said(imports::rust, "crates/other/src/lib.rs", ""), 1, "a package that the table does not know");
    assert_eq!(said(imports::rust, "src/newcomer.rs", "fn f() {}"), 1, "a module that the table does not know");
}

/// Made-up files.
fn made<const N: usize>(files: [(&str, &str); N]) -> [File; N] {
    files.map(|(path, text)| File { path: path.into(), text: text.into() })
}

#[test]
fn imports_make_no_circle() {
    let faults = circles::faults(&files());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let told = circles::faults(&made([("src/a.rs", "use crate::b::F;"), ("src/b.rs", "mod m {}\nfn f() { super::a::g() }"), ("src/c.rs", "use crate::a::g;")]));
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("a circle of 2 files: src/a.rs, src/b.rs\n    src/a.rs:1 -> src/b.rs\n    src/b.rs:2 -> src/a.rs"), "{told:?}");
    let circles =
        |parent: &str, child: &str, other: &str| circles::faults(&made([("src/a/mod.rs", parent), ("src/a/b.rs", child), ("src/a/c.rs", other)])).len();
    assert_eq!(circles("mod b; pub use b::F; struct S;", "use super::S;", ""), 0, "a list of contents is no arrow");
    assert_eq!(circles("mod b; struct S { f: b::F }", "use super::S;", ""), 1, "a parent that uses its child");
    assert_eq!(circles("use b::F; struct S;", "use super::S;", ""), 1, "an import for itself");
    assert_eq!(circles("pub use b::F;", "use super::c::G;", "use super::F;"), 1, "through what the parent gives again");
    assert_eq!(circles("pub use b::F;", "", "use super::F;"), 0, "the same, one way");
    assert_eq!(circles("", "use super::c; fn f() { c::g() }", "use crate::a::{b::{self, F}};"), 1, "through the name of a module");
    assert_eq!(circles("", "use super::c; use half::f16;", "use super::b::F;"), 0, "a module that is imported and not used");
    assert_eq!(circles("", "#[cfg(test)] mod tests { use super::super::c::g; }", "use super::b::F;"), 0, "tests may");
    assert_eq!(circles("", "mod inner { fn f() { super::super::c::g() } }", "use super::b::F;"), 1, "from an inner module");
    assert_eq!(circles("", "fn f() { x.super_::<u8>(); y.c::<u8>() }", "use super::b::F;"), 0, "a method of that name");
}

#[test]
fn the_cuda_wing_stands_on_its_layers() {
    let faults = cuda::imports(&files());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let said = |path: &str, text: &str| {
        let variant = "const VARIANT: Variant<Linear> = 0;";
        let folders = ["backends/mod.rs", "backends/cuda/mod.rs", "backends/cuda/gemm/mod.rs", "backends/cuda/linear/mod.rs", "backends/cuda/jit/mod.rs"];
        let others = [("backends/cuda/jit/unit.rs", ""), ("backends/cuda/linear/skinny.rs", variant), ("backends/cuda/linear/problem.rs", "")];
        let all = [(path, text)].into_iter().chain(folders.map(|folder| (folder, ""))).chain(others);
        cuda::imports(&all.map(|(path, text)| File { path: path.into(), text: text.into() }).collect::<Vec<_>>()).len()
    };
    assert_eq!(said("backends/cuda/gemm/problem.rs", "use crate::backends::cuda::jit::unit::Unit;"), 0);
    assert_eq!(said("backends/cuda/gemm/problem.rs", "use crate::backends::cuda::linear::problem::product;"), 1, "an operation above");
    assert_eq!(said("backends/cuda/newcomer.rs", ""), 1, "no layer");
    let variant = |import: &str| said("backends/cuda/linear/tile.rs", &format!("use super::{import};\nconst VARIANT: Variant<Linear> = 0;"));
    assert_eq!([variant("skinny::splits"), variant("problem::product")], [1, 0], "a variant that imports one");
}

#[test]
fn can_is_not_should() {
    hold(cuda::supports);
    let said_of = |text: &str| said(cuda::supports, "backends/cuda/linear/tile.rs", text);
    assert_eq!(said_of("fn supports(op: &Op, target: &Target) -> R {\n    (target.units > 4).then_some(())\n}\nfn suits() { target.units }\n"), 1);
    assert_eq!(said_of("fn supports(op: &Op, target: &Target) -> R {\n    Ok(())\n}\nfn suits() {\n    target.units\n}\n"), 0);
}

#[test]
fn the_bench_stands_on_three_floors() {
    let faults = circles::bench(&files());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let up = |path: &str, text: &str| {
        let others = ["crates/cli/src/bench/mod.rs", "crates/cli/src/bench/shape.rs", "crates/cli/src/bench/stored.rs", "crates/cli/src/bench/timing.rs"]
            .map(|other| (other, ""));
        circles::bench(&made([(path, text), others[0], others[1], others[2], others[3]])).len()
    };
    assert_eq!(up("crates/cli/src/bench/suite.rs", "use super::timing::Times; use super::shape::Shape;"), 1, "from the model to measuring");
    assert_eq!(up("crates/cli/src/bench/judge.rs", "use super::stored::Stored; use super::shape::Shape;"), 1, "from measuring to rendering");
    assert_eq!(up("crates/cli/src/bench/markdown.rs", "use super::stored::Stored; use super::timing::Times;"), 0);
}

/// What `scripts/house.sh` prints.
#[test]
fn the_house_is_counted() {
    let all = files();
    let (counts, census) = (circles::Counts::of(&all), cuda::Census::of(&all));
    println!("circles: {}", counts.circles);
    println!("arrows up in backends/cuda: {}", census.up);
    println!("arrows from a variant to a variant: {}", census.between_variants);
    println!("places to add a variant: {}", census.places + 1);
    assert_eq!((counts.circles, census.up, census.between_variants), (0, 0, 0));
    // The kernel, the host's file, the line of the table.
    assert!(census.places < 3, "{census:?}");
    let two = made([("src/a.rs", "use crate::b::F;"), ("src/b.rs", "use crate::a::G;")]);
    assert_eq!(circles::Counts::of(&two), circles::Counts { circles: 1, files: 2, arrows: 2 });
}

#[test]
fn kernels_include_downwards_and_no_system_header() {
    hold(imports::kernels);
    assert_eq!(said(imports::kernels, "kernels/gemm/sm80/tile.cu", "#include <stdint.h>"), 1);
    assert_eq!(said(imports::kernels, "kernels/gemm/sm80/tile.cu", "#include \"gemm/gemm.cuh\"\n#include \"ptx/mma.cuh\""), 0);
    assert_eq!(said(imports::kernels, "kernels/gemm/sm80/tile.cu", "#include \"attention/mask.cuh\""), 1);
    assert_eq!(said(imports::kernels, "kernels/gemm/gemm.cuh", "#include \"../linear/shape.cuh\""), 1);
    assert_eq!(said(imports::kernels, "kernels/ptx/mma.cuh", "#  include \"gemm/gemm.cuh\""), 1);
}

#[test]
fn every_kernel_and_shader_is_embedded() {
    let all = files();
    let faults = text::unreferenced(&all);
    assert!(faults.is_empty(), "not named by any Rust file: {faults:?}");
    let orphan = [File { path: "shaders/lost.wgsl".into(), text: String::new() }, File { path: "src/a.rs".into(), text: "fn f() {}".into() }];
    assert_eq!(text::unreferenced(&orphan).len(), 1);
}

#[test]
fn files_stay_small() {
    hold(text::length);
    assert_eq!(said(text::length, "src/long.rs", &"\n".repeat(401)), 1);
    assert_eq!(said(text::length, "src/fits.rs", &"\n".repeat(400)), 0);
    assert_eq!(said(text::length, "shaders/long.wgsl", &"\n".repeat(451)), 1);
    assert_eq!(said(text::length, "tests/fits.rs", &"\n".repeat(450)), 0);
}

#[test]
fn the_library_never_prints() {
    hold(tokens::prints);
    assert_eq!(said(tokens::prints, "src/ops/mod.rs", "fn f() { println!(\"x\"); dbg!(1); }"), 2);
    assert_eq!(said(tokens::prints, "crates/cli/src/cli/output.rs", "fn f() { print!(\"x\") }"), 1, "it panics on a closed pipe");
    assert_eq!(said(tokens::prints, "src/ops/mod.rs", "// println!(\"x\")\nconst S: &str = \"println!()\";"), 0);
}

#[test]
fn nothing_panics_outside_tests() {
    hold(tokens::panics);
    assert_eq!(said(tokens::panics, "src/a.rs", "fn f() { g().unwrap(); h().expect(\"x\"); panic!(); todo!() }"), 4);
    assert_eq!(said(tokens::panics, "src/a.rs", "#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }"), 0);
    assert_eq!(said(tokens::panics, "src/a.rs", "fn f() { g().unwrap_or_default(); }"), 0);
    assert_eq!(said(tokens::panics, "src/a.rs", "#![allow(clippy::unwrap_used)] fn f() {}"), 1);
}

#[test]
fn unsafe_is_fenced_and_explained() {
    hold(tokens::unsafe_code);
    assert_eq!(said(tokens::unsafe_code, "src/ops/mod.rs", "// SAFETY: none.\nfn f() { unsafe { g() } }"), 1, "a place that is not on the list");
    assert_eq!(said(tokens::unsafe_code, "backends/cpu/mod.rs", "fn f() { unsafe { g() } }"), 1, "no reason given");
    assert_eq!(said(tokens::unsafe_code, "backends/cpu/mod.rs", "fn f() {\n    // SAFETY: checked.\n    unsafe { g() }\n}"), 0);
}

#[test]
fn doc_comments_have_subjects_of_their_own() {
    hold(text::subjects);
    let said_of = |text: &str| said(text::subjects, "src/a.rs", text);
    assert_eq!(said_of("//! Of all launches.\n\n/// The same for a row.\nstruct S {\n    /// Those that are left.\n    f: u8,\n}\n"), 3);
    assert_eq!(said_of("/// Whether that fits.\nfn f() {}\n/// As with the first.\nfn g() {}\n/// And its rows.\nfn h() {}\n"), 3);
    assert_eq!(said_of("/// Rows of a launch.\n/// Of all of them.\nfn f() {}\n// Of no doc comment.\n/// Offsets.\nfn g() {}\n"), 0);
    assert_eq!(said(text::subjects, "backends/cpu/mod.rs", "/// Of a row.\nfn f() {}\n"), 1);
    assert_eq!(said(text::subjects, "crates/cli/src/main.rs", "/// Of a row.\nfn f() {}\n"), 0, "the library alone");
}

#[test]
fn no_package_registry_is_named() {
    hold(text::registries);
    assert_eq!(said(text::registries, "README.md", &format!("see https://{}.io/x", "crates")), 1);
}

#[test]
fn links_resolve() {
    hold(text::links);
    assert_eq!(said(text::links, "README.md", "[a](docs/missing-page.md) [b](Cargo.toml#x) [c](https://example.org)"), 1);
    let page = "# One `two`\n## Of a (third), 4\n## Of a (third), 4\n```\n# code\n```\n";
    let said_of = |link: &str| said(text::links, "README.md", &format!("{page}[a]({link})"));
    assert_eq!(["#one-two", "#of-a-third-4-1", "docs/kernels.md#the-cuda-kernels"].map(said_of), [0; 3]);
    assert_eq!(["#code", "#of-a-third-4-2", "docs/kernels.md#no-such-heading"].map(said_of), [1; 3]);
}

/// The lines that who comes new to the code reads first, at most.
const OVERVIEW: usize = 150;

#[test]
fn the_overview_is_read_in_one_sitting() {
    let page = files().into_iter().find(|file| file.path == "ARCHITECTURE.md").unwrap();
    let lines = page.text.lines().count();
    assert!(lines <= OVERVIEW, "ARCHITECTURE.md: expected at most {OVERVIEW} lines, found {lines}");
}

#[test]
fn the_notebook_lists_its_pages() {
    let unlisted = text::unlisted(&files());
    assert!(unlisted.is_empty(), "lab/README.md leads to none of {unlisted:?}");
    let page = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let pages = [page("lab/README.md", "[a](a.md) [b](b.md#c) d.md"), page("lab/a.md", ""), page("lab/b.md", ""), page("lab/d.md", "")];
    assert_eq!(text::unlisted(&pages), ["lab/d.md"]);
}

#[test]
fn dependencies_have_accepted_licences() {
    let faults = licences::faults();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(licences::accepted("(MIT OR Apache-2.0) AND Unicode-3.0", &["MIT", "Unicode-3.0"]));
    assert!(licences::accepted("GPL-3.0 OR MIT", &["MIT"]));
    assert!(!licences::accepted("GPL-3.0", &["MIT"]));
    assert!(!licences::accepted("MIT AND GPL-3.0", &["MIT"]));
    assert!(licences::accepted("Apache-2.0 WITH LLVM-exception", &["Apache-2.0 WITH LLVM-exception"]));
}
