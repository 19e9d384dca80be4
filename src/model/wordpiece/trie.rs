//! The vocabulary as a trie whose failure links give the longest token at every place of a word, in time linear in the word's length.
//!
//! This is LinMaxMatch of Song, Salcianu, Song, Dopson and Zhou, "Fast WordPiece Tokenization", 2021: where a symbol does not go on from a
//! node, the tokens of what was read are known, and so is the node of what is left of it.

use std::ops::Range;

/// A node of a trie.
pub type Node = u32;

/// The node before a word.
pub const START: Node = 0;
/// The node behind a token inside a word.
const INSIDE: Node = 1;
/// No node and no token.
const NONE: u32 = u32::MAX;
/// The most children that are looked through one after the other.
const FEW: usize = 8;

/// A vocabulary's trie over symbols. The children of a node lie side by side, sorted by their symbols.
pub struct Trie {
    /// The first child of each node, and one more.
    first: Vec<Node>,
    /// The symbol that leads to each node.
    symbols: Vec<u32>,
    /// The node of what is left where a symbol does not go on, or [`NONE`] where the word has no tokens then.
    fails: Vec<Node>,
    /// Where the tokens of what was read lie in `tokens`.
    given: Vec<Range<u32>>,
    tokens: Vec<i32>,
    /// The children of the two roots by their symbols, as these are looked up most.
    roots: [Vec<Node>; 2],
}

/// A token as symbols: whether it stands inside a word, its symbols, its id.
pub type Entry = (bool, Vec<u32>, i32);

impl Trie {
    /// The trie of a vocabulary, without two tokens of the same symbols at the same place. Symbols lie below `symbols`.
    pub fn new(mut entries: Vec<Entry>, symbols: u32) -> Self {
        entries.retain(|(_, text, _)| !text.is_empty());
        entries.sort_unstable();
        let split = entries.partition_point(|(inside, ..)| !inside);
        // The entries that begin with the symbols of each node, and how many symbols these are. Nodes come in the order of their depth.
        let mut nodes: Vec<(Range<usize>, usize)> = vec![(0..split, 0), (split..entries.len(), 0)];
        let (mut first, mut parents, mut leads, mut own) = (Vec::new(), vec![NONE; 2], vec![0; 2], Vec::new());
        let mut at = 0;
        while at < nodes.len() {
            let (mut range, depth) = nodes[at].clone();
            first.push(nodes.len() as Node);
            let ends = range.clone().next().is_some_and(|entry| entries[entry].1.len() == depth);
            own.push(if ends { Some(entries[range.start].2) } else { None });
            range.start += usize::from(ends);
            while !range.is_empty() {
                let symbol = entries[range.start].1[depth];
                let count = entries[range.clone()].partition_point(|(_, text, _)| text[depth] == symbol);
                nodes.push((range.start..range.start + count, depth + 1));
                parents.push(at as Node);
                leads.push(symbol);
                range.start += count;
            }
            at += 1;
        }
        first.push(nodes.len() as Node);
        let mut trie = Self { first, symbols: leads, fails: vec![NONE; 2], given: vec![0..0; 2], tokens: Vec::new(), roots: Default::default() };
        trie.roots = [START, INSIDE].map(|root| (0..symbols).map(|symbol| trie.search(root, symbol).unwrap_or(NONE)).collect());
        trie.link(&parents, &own);
        trie
    }

    /// Fills in what each node gives and where it leads where a symbol does not go on. What a node needs lies at a smaller depth.
    fn link(&mut self, parents: &[Node], own: &[Option<i32>]) {
        for node in 2..parents.len() {
            let begin = self.tokens.len();
            if let Some(token) = own[node] {
                self.tokens.push(token);
                self.fails.push(INSIDE);
            } else {
                let mut before = parents[node];
                let fail = loop {
                    let next = self.fails[before as usize];
                    if next == NONE {
                        self.tokens.truncate(begin);
                        break NONE;
                    }
                    let given = self.given[before as usize].clone();
                    self.tokens.extend_from_within(given.start as usize..given.end as usize);
                    if let Some(child) = self.child(next, self.symbols[node]) {
                        break child;
                    }
                    before = next;
                };
                self.fails.push(fail);
            }
            self.given.push(begin as u32..self.tokens.len() as u32);
        }
    }

    fn search(&self, node: Node, symbol: u32) -> Option<Node> {
        let range = self.first[node as usize] as usize..self.first[node as usize + 1] as usize;
        let children = &self.symbols[range.clone()];
        let found = if children.len() <= FEW { children.iter().position(|other| *other == symbol) } else { children.binary_search(&symbol).ok() };
        found.map(|at| (range.start + at) as Node)
    }

    fn child(&self, node: Node, symbol: u32) -> Option<Node> {
        match self.roots.get(node as usize) {
            Some(children) => children.get(symbol as usize).copied().filter(|child| *child != NONE),
            None => self.search(node, symbol),
        }
    }

    /// Gives the tokens of what was read, and goes to what is left of it; `None` where the word has no tokens.
    fn fall(&self, node: Node, out: &mut Vec<i32>) -> Option<Node> {
        let next = self.fails[node as usize];
        if next == NONE {
            return None;
        }
        let given = &self.given[node as usize];
        out.extend_from_slice(&self.tokens[given.start as usize..given.end as usize]);
        Some(next)
    }

    /// Reads a symbol of a word. Tokens that are certain go to `out`; `None` where the word has no tokens.
    pub fn step(&self, mut node: Node, symbol: u32, out: &mut Vec<i32>) -> Option<Node> {
        loop {
            match self.child(node, symbol) {
                Some(child) => return Some(child),
                None => node = self.fall(node, out)?,
            }
        }
    }

    /// Ends a word of at least one symbol. Whether it has tokens.
    pub fn end(&self, mut node: Node, out: &mut Vec<i32>) -> bool {
        while node != INSIDE {
            match self.fall(node, out) {
                Some(next) => node = next,
                None => return false,
            }
        }
        true
    }
}
