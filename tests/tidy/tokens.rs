//! Rules over the tokens of Rust files.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::imports::split_at_commas;
use crate::source::File;

/// Files outside `backends/` where `unsafe` may stand: the front door, which vouches for every launch.
const UNSAFE_FILES: &[&str] = &["src/session.rs"];

/// Lines above an `unsafe` within which its reason must stand.
const REASON_WITHIN: usize = 8;

/// A token with its line; `::` is one token, and a group stands before what it holds.
pub struct Flat {
    /// The line it begins at, from 1.
    pub line: usize,
    tree: Option<TokenTree>,
}

impl Flat {
    /// The identifier, where it is one.
    pub fn ident(&self) -> Option<String> {
        match &self.tree {
            Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
            _ => None,
        }
    }

    /// Whether it is `::`.
    pub fn is_path_separator(&self) -> bool {
        self.tree.is_none()
    }

    /// The parts between the commas of a `{…}` group.
    pub fn branches(&self) -> Option<Vec<Vec<Flat>>> {
        match &self.tree {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                Some(split_at_commas(group.stream()).into_iter().map(|part| walk(part.into_iter().collect())).collect())
            }
            _ => None,
        }
    }

    fn is_punct(&self, sign: char) -> bool {
        matches!(&self.tree, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
    }

    fn opens(&self, delimiter: Delimiter) -> bool {
        matches!(&self.tree, Some(TokenTree::Group(group)) if group.delimiter() == delimiter)
    }
}

/// The tokens of a source file, without its `#[cfg(test)]` modules.
pub fn flatten(text: &str) -> Vec<Flat> {
    walk(text.parse().expect("the file is Rust"))
}

fn walk(stream: TokenStream) -> Vec<Flat> {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut flat = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(length) = test_module(&tokens[at..]) {
            at += length;
            continue;
        }
        let token = &tokens[at];
        let line = token.span().start().line;
        let colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
        if colon(Some(token)) && colon(tokens.get(at + 1)) {
            flat.push(Flat { line, tree: None });
            at += 2;
            continue;
        }
        flat.push(Flat { line, tree: Some(token.clone()) });
        if let TokenTree::Group(group) = token {
            flat.extend(walk(group.stream()));
        }
        at += 1;
    }
    flat
}

/// How many tokens a `#[cfg(test)] mod name { … }` at the front takes, other attributes between them counted too.
pub fn test_module(tokens: &[TokenTree]) -> Option<usize> {
    let attribute = |at: usize| match (tokens.get(at)?, tokens.get(at + 1)?) {
        (TokenTree::Punct(punct), TokenTree::Group(group)) if punct.as_char() == '#' && group.delimiter() == Delimiter::Bracket => {
            Some(group.stream().to_string().replace(' ', ""))
        }
        _ => None,
    };
    let mut at = 0;
    let mut for_tests = false;
    while let Some(text) = attribute(at) {
        for_tests |= text == "cfg(test)" || text.starts_with("cfg(all(test");
        at += 2;
    }
    if !for_tests {
        return None;
    }
    let end = tokens[at..].iter().position(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    })?;
    Some(at + end + 1)
}

/// The names of the macros that the tokens call, with their lines.
fn macros(tokens: &[Flat]) -> impl Iterator<Item = (usize, String)> + '_ {
    tokens.windows(2).filter(|pair| pair[1].is_punct('!')).filter_map(|pair| Some((pair[0].line, pair[0].ident()?)))
}

/// Whether the file holds a module's tests alone, or tests that the testkit gives to others.
pub fn is_tests(file: &File) -> bool {
    file.path.ends_with("/tests.rs") || file.path.contains("/tests/") || file.path.starts_with("crates/testkit/src/contract/")
}

/// Printing from shipped code. The command line writes through one helper: `println!` panics on a closed pipe.
pub fn prints(file: &File) -> Vec<String> {
    if !file.is_product() || is_tests(file) {
        return Vec::new();
    }
    let banned = ["print", "println", "eprint", "eprintln", "dbg"];
    let tokens = flatten(&file.text);
    macros(&tokens).filter(|(_, name)| banned.contains(&name.as_str())).map(|(line, name)| file.fault(line, format_args!("{name}! in shipped code"))).collect()
}

/// Calls that panic, outside tests; and permission for them.
pub fn panics(file: &File) -> Vec<String> {
    if !file.is_product() || is_tests(file) {
        return Vec::new();
    }
    let tokens = flatten(&file.text);
    let banned = ["panic", "todo", "unimplemented"];
    let mut faults: Vec<String> =
        macros(&tokens).filter(|(_, name)| banned.contains(&name.as_str())).map(|(line, name)| file.fault(line, format_args!("{name}!"))).collect();
    for three in tokens.windows(3) {
        if let Some(name) = three[1].ident().filter(|name| ["unwrap", "expect"].contains(&name.as_str()))
            && three[0].is_punct('.')
            && three[2].opens(Delimiter::Parenthesis)
        {
            faults.push(file.fault(three[1].line, format_args!(".{name}()")));
        }
    }
    let permits = ["unwrap_used", "expect_used", "panic", "todo"];
    for three in tokens.windows(3) {
        let lint = three[2].ident().filter(|name| permits.contains(&name.as_str()));
        if three[0].ident().as_deref() == Some("clippy") && three[1].is_path_separator() {
            faults.extend(lint.map(|name| file.fault(three[0].line, format_args!("clippy::{name} is allowed outside tests"))));
        }
    }
    faults
}

/// `unsafe` outside its fences, or with no reason above it.
pub fn unsafe_code(file: &File) -> Vec<String> {
    if !file.is_product() {
        return Vec::new();
    }
    let fenced = file.under("backends") || UNSAFE_FILES.contains(&file.path.as_str());
    let lines: Vec<&str> = file.text.lines().collect();
    let mut faults = Vec::new();
    for pair in flatten(&file.text).windows(2).filter(|pair| pair[0].ident().as_deref() == Some("unsafe")) {
        let line = pair[0].line;
        // `unsafe fn` in a trait only promises; the block or impl is where something is done.
        let acts = pair[1].opens(Delimiter::Brace) || pair[1].ident().as_deref() == Some("impl");
        if acts && !fenced {
            faults.push(file.fault(line, "unsafe outside backends/ and the files listed in tests/tidy/tokens.rs"));
        } else if acts && !lines[line.saturating_sub(REASON_WITHIN + 1)..line].iter().any(|above| above.contains("SAFETY:")) {
            faults.push(file.fault(line, "unsafe with no SAFETY: line above it"));
        }
    }
    faults
}
