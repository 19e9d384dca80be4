//! The text that a unit is compiled from: its source, and the headers that it includes, at any depth.
//!
//! Every file of `kernels/` is embedded. A quoted include names a file by its path from there, from whatever file it stands in.

use std::collections::HashSet;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// A source under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The source's path from `kernels/`.
    pub path: &'static str,
    /// The source's text.
    pub text: &'static str,
}

macro_rules! source {
    ($path:literal) => {
        $crate::backends::cuda::jit::sources::Source { path: $path, text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $path)) }
    };
}
pub(crate) use source;

/// A file of `kernels/`.
pub struct File {
    path: &'static str,
    text: &'static str,
    /// What is derived from the text, at its first use.
    known: OnceLock<Known<'static>>,
}

/// What is asked of a text again and again.
#[derive(Clone, Debug)]
struct Known<'a> {
    digest: [u8; 32],
    includes: Vec<Include<'a>>,
}

/// A line that includes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Include<'a> {
    /// The text between quotes, or everything after `include` where it is not quoted.
    name: &'a str,
    /// Whether the line stands under an `#if`, which may leave it out.
    conditional: bool,
}

impl File {
    const fn new(path: &'static str, text: &'static str) -> Self {
        Self { path, text, known: OnceLock::new() }
    }

    fn known(&self) -> Known<'static> {
        self.known.get_or_init(|| Known::of(self.text)).clone()
    }
}

impl<'a> Known<'a> {
    fn of(text: &'a str) -> Self {
        Self { digest: Sha256::digest(text).into(), includes: includes(text).collect() }
    }
}

include!(concat!(env!("OUT_DIR"), "/kernel_files.rs"));

/// The file with this path from `kernels/`.
fn embedded(path: &str) -> Option<&'static File> {
    FILES.binary_search_by(|file| file.path.cmp(path)).ok().map(|at| &FILES[at])
}

/// The includes of a text, in order.
fn includes(text: &str) -> impl Iterator<Item = Include<'_>> {
    let mut depth = 0u32;
    text.lines().filter_map(move |line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        if directive.starts_with("if") {
            depth += 1;
        } else if directive.starts_with("endif") {
            depth = depth.saturating_sub(1);
        }
        let target = directive.strip_prefix("include")?.trim();
        let name = target.strip_prefix('"').and_then(|rest| rest.split_once('"')).map_or(target, |(name, _)| name);
        Some(Include { name, conditional: depth > 0 })
    })
}

/// A header that a unit includes.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The name by which the header is included.
    pub name: &'a str,
    /// The header's text.
    pub text: &'a str,
    /// The SHA-256 of the text.
    pub digest: [u8; 32],
}

/// Everything that a source is compiled with.
#[derive(Debug)]
pub struct Included<'a> {
    /// The SHA-256 of the source's own text.
    pub digest: [u8; 32],
    /// Each header once, in the order in which they are met.
    pub headers: Vec<Header<'a>>,
    /// Includes that are not found: the name, and the file that includes it.
    pub missing: Vec<(&'a str, &'a str)>,
}

/// Which includes are followed, by where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// All includes, under a condition too: everything that may be needed.
    All,
    /// Includes under no condition: everything that must be there.
    Certain,
}

/// The headers that `source` includes, at any depth. A header that the host writes takes precedence over one of `kernels/`.
pub fn included<'a>(source: &Source, written: &'a [(&'static str, String)], follow: Follow) -> Included<'a> {
    let own = embedded(source.path).filter(|file| file.text == source.text).map_or_else(|| Known::of(source.text), File::known);
    let mut all = Included { digest: own.digest, headers: Vec::new(), missing: Vec::new() };
    let mut met: HashSet<&str> = HashSet::new();
    let mut open: Vec<(Include<'_>, &str)> = own.includes.into_iter().rev().map(|include| (include, source.path)).collect();
    while let Some((Include { name, conditional }, by)) = open.pop() {
        if (conditional && follow == Follow::Certain) || !met.insert(name) {
            continue;
        }
        let written = written.iter().find(|(written, _)| *written == name).map(|(_, text)| (text.as_str(), Known::of(text)));
        match written.or_else(|| embedded(name).map(|file| (file.text, file.known()))) {
            Some((text, known)) => {
                all.headers.push(Header { name, text, digest: known.digest });
                open.extend(known.includes.into_iter().rev().map(|next| (next, name)));
            }
            None => all.missing.push((name, by)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::catalogue::catalogue;
    use super::super::unit::Arch;
    use super::*;

    fn names(text: &'static str, written: &[(&'static str, String)]) -> (Vec<String>, Vec<String>) {
        let all = included(&Source { path: "probe.cu", text }, written, Follow::All);
        (all.headers.iter().map(|header| header.name.to_owned()).collect(), all.missing.iter().map(|(name, by)| format!("{name} by {by}")).collect())
    }

    #[test]
    fn every_file_of_the_kernels_is_there_in_order() {
        assert!(FILES.is_sorted_by_key(|file| file.path));
        assert!(embedded("ptx/types.cuh").is_some_and(|file| file.text.contains("u32")));
        assert!(embedded("pointwise/simt.cu").is_some() && embedded("pointwise").is_none());
    }

    #[test]
    fn includes_are_read_as_they_stand() {
        let text = "#include \"a/b.cuh\"\n  # include \"c.cuh\" // why\n#include <d.h>\n#include E\n// #include \"f.cuh\"\n#if 0\n#include \"g.cuh\"\n#endif\n#include \"h.cuh\"";
        let found: Vec<(&str, bool)> = includes(text).map(|include| (include.name, include.conditional)).collect();
        assert_eq!(found, [("a/b.cuh", false), ("c.cuh", false), ("<d.h>", false), ("E", false), ("g.cuh", true), ("h.cuh", false)]);
    }

    #[test]
    fn headers_are_followed_once_and_what_the_host_writes_goes_first() {
        let written = [("own.cuh", "#include \"ptx/types.cuh\"\n#include \"own.cuh\"\n#include \"gone.cuh\"".to_owned()), ("unused.cuh", String::new())];
        let (found, missing) = names("#include \"own.cuh\"\n#include \"ptx/types.cuh\"", &written);
        assert_eq!((found, missing), (vec!["own.cuh".into(), "ptx/types.cuh".into()], vec!["gone.cuh by own.cuh".into()]));
        let mine = [("ptx/types.cuh", "// mine".to_owned())];
        let all = included(&Source { path: "probe.cu", text: "#include \"ptx/types.cuh\"" }, &mine, Follow::All);
        assert_eq!(all.headers.iter().map(|header| header.text).collect::<Vec<_>>(), ["// mine"]);
    }

    #[test]
    fn what_a_condition_leaves_out_may_be_missing() {
        let probe = Source { path: "probe.cu", text: "#ifdef A\n#include \"own.cuh\"\n#endif" };
        let written = [("own.cuh", "#include \"gone.cuh\"".to_owned())];
        assert_eq!(included(&probe, &written, Follow::All).missing, [("gone.cuh", "own.cuh")]);
        assert_eq!(included(&probe, &written, Follow::Certain).missing, []);
    }

    #[test]
    fn every_unit_of_the_catalogue_resolves() {
        for entry in catalogue() {
            for arch in Arch::CHECKED {
                for unit in entry.units(arch).into_iter().chain(entry.helpers(arch)) {
                    assert_eq!(included(&unit.source, &unit.headers, Follow::Certain).missing, [], "{}", unit.name);
                }
            }
        }
    }

    #[test]
    fn every_header_is_included_by_some_unit() {
        let units = || catalogue().into_iter().flat_map(|entry| Arch::CHECKED.map(|arch| [entry.units(arch), entry.helpers(arch)].concat())).flatten();
        let mut used: HashSet<String> = HashSet::new();
        for unit in units() {
            used.insert(unit.source.path.to_owned());
            used.extend(included(&unit.source, &unit.headers, Follow::All).headers.iter().map(|header| header.name.to_owned()));
        }
        let lost: Vec<&str> = FILES.iter().map(|file| file.path).filter(|path| !used.contains(*path)).collect();
        assert!(lost.is_empty(), "files of kernels/ that no unit is made from: {lost:?}");
    }
}
