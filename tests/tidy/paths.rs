//! The paths that a Rust file names, and what each leads to.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::imports::{is_root, module_path, split_at_commas};
use crate::source::File;
use crate::tokens::{is_tests, test_module};

/// Follows no longer chain of `use`: one that leads back to itself ends here.
const HOPS: usize = 16;

type Path = Vec<String>;

/// A path as it is written.
pub struct Mention {
    /// The file that names it, by its number.
    pub file: usize,
    /// The line it begins at, from 1.
    pub line: usize,
    /// Whether a `pub use` of any kind gives it to others under this module's name.
    pub published: bool,
    glob: bool,
    module: Path,
    names: Path,
}

/// The modules of the product, what each imports, and every path that is named.
#[derive(Default)]
pub struct Paths {
    /// Every path, file by file.
    pub mentions: Vec<Mention>,
    modules: BTreeMap<Path, usize>,
    uses: BTreeMap<(Path, String), Path>,
}

impl Paths {
    /// Reads what ships of `files`; the module `tests` of a module does not.
    pub fn read(files: &[File]) -> Self {
        let mut all = Self::default();
        for (number, file) in files.iter().enumerate().filter(|(_, file)| file.is_product() && !is_tests(file)) {
            let module = if matches!(file.inner(), Some("lib.rs" | "main.rs")) { Vec::new() } else { module_path(&file.path) };
            all.modules.insert(module.clone(), number);
            all.walk(number, &module, file.text.parse().expect("the file is Rust"));
        }
        all
    }

    /// The file that declares what is mentioned; none where that is not this crate's, or is a module and no item of it.
    pub fn target(&self, mention: &Mention) -> Option<usize> {
        self.resolve(&self.absolute(&mention.module, &mention.names)?, mention.glob, HOPS)
    }

    /// Whether `published` names are from below the module that publishes them.
    pub fn is_from_below(&self, mention: &Mention) -> bool {
        self.absolute(&mention.module, &mention.names).is_some_and(|path| path.starts_with(&mention.module))
    }

    /// The path from the crate's root; none where the first name is neither a module here nor imported here.
    fn absolute(&self, module: &[String], names: &[String]) -> Option<Path> {
        let supers = names.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match names[0].as_str() {
            name if is_root(name) => (&[][..], &names[1..]),
            "self" => (module, &names[1..]),
            "super" => (&module[..module.len().checked_sub(supers)?], &names[supers..]),
            name => {
                let known = self.modules.contains_key(&[module, &names[..1]].concat()) || self.uses.contains_key(&(module.to_vec(), name.into()));
                (known.then_some(module)?, names)
            }
        };
        Some([base, rest].concat())
    }

    /// Walks from the root, module by module, and goes on from another place where a module only imports the name.
    fn resolve(&self, path: &[String], glob: bool, hops: usize) -> Option<usize> {
        let mut length = 0;
        while length < path.len() && self.modules.contains_key(&path[..=length]) {
            length += 1;
        }
        let (module, rest) = path.split_at(length);
        let Some(name) = rest.first() else { return glob.then(|| self.modules[module]) };
        match self.uses.get(&(module.to_vec(), name.clone())) {
            Some(names) if hops > 0 => self.resolve(&[&self.absolute(module, names)?, &rest[1..]].concat(), glob, hops - 1),
            Some(_) => None,
            None => self.modules.get(module).copied(),
        }
    }

    fn walk(&mut self, file: usize, module: &[String], stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if let Some(length) = test_module(&tokens[at..]) {
                at += length;
                continue;
            }
            match (&tokens[at], &tokens[at + 1..]) {
                (TokenTree::Ident(word), [TokenTree::Ident(name), after, ..]) if word == "mod" => {
                    if let TokenTree::Group(inner) = after {
                        let module = [module, &[name.to_string()]].concat();
                        self.modules.insert(module.clone(), file);
                        self.walk(file, &module, inner.stream());
                    }
                    at += 3;
                }
                (TokenTree::Ident(word), rest) if word == "use" => {
                    let length = rest.iter().position(|token| is_punct(token, ';')).unwrap_or(rest.len());
                    let before = tokens[..at].iter().rev().find(|token| !matches!(token, TokenTree::Group(_)));
                    let published = matches!(before, Some(TokenTree::Ident(word)) if word == "pub");
                    self.import(file, module, &[], &rest[..length], published);
                    at += length + 1;
                }
                (TokenTree::Ident(_), _) => {
                    let (names, length) = names(&tokens[at..]);
                    if names.len() > 1 && !continues(&tokens[..at]) {
                        let line = tokens[at].span().start().line;
                        self.mentions.push(Mention { file, line, published: false, glob: false, module: module.to_vec(), names });
                    }
                    at += length;
                }
                (TokenTree::Group(group), _) => {
                    self.walk(file, module, group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Takes a tree of imports apart: `a::{b, c::d as e, f::*}`.
    fn import(&mut self, file: usize, module: &[String], base: &[String], tokens: &[TokenTree], published: bool) {
        let Some(first) = tokens.first() else { return };
        let (own, length) = names(tokens);
        let mut path = [base, &own].concat();
        let rest = &tokens[length..];
        let group = rest.iter().find_map(|token| match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
            _ => None,
        });
        if let Some(group) = group {
            for branch in split_at_commas(group.stream()) {
                self.import(file, module, &path, &branch, published);
            }
            return;
        }
        if !base.is_empty() {
            path.pop_if(|name| name == "self");
        }
        let glob = rest.iter().any(|token| is_punct(token, '*'));
        let alias = match rest {
            [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "as" => Some(name.to_string()),
            _ => path.last().cloned(),
        };
        if let Some(alias) = alias.filter(|_| !glob) {
            self.uses.entry((module.to_vec(), alias)).or_insert_with(|| path.clone());
        }
        if !path.is_empty() {
            self.mentions.push(Mention { file, line: first.span().start().line, published, glob, module: module.to_vec(), names: path });
        }
    }
}

/// The names at the front that `::` joins, and how many tokens they take, with a `::` at their end.
fn names(tokens: &[TokenTree]) -> (Path, usize) {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        names.push(name.to_string());
        at += 1;
        if !is_separator(&tokens[at..]) {
            break;
        }
        at += 2;
    }
    (names, at)
}

/// Whether what follows is a method, or the rest of a path.
fn continues(before: &[TokenTree]) -> bool {
    match before {
        [.., a, b] if is_punct(b, '.') => !is_punct(a, '.'),
        [.., _, _] => is_separator(&before[before.len() - 2..]),
        _ => false,
    }
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [a, b, ..] if is_punct(a, ':') && is_punct(b, ':'))
}
