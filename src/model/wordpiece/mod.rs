//! WordPiece of BERT's kind in time linear in the text, token for token what `tokenizers` gives. `tests/wordpiece.rs` compares the two.
//!
//! It reads a text once: each character is normalised by a table, and goes into the trie of the vocabulary.

mod letters;
mod trie;

use std::collections::BTreeSet;

use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use letters::{Act, Letters, Rules};
use trie::{Entry, Node, START, Trie};

/// How a token begins that stands inside a word. No word has it, as its characters are words of their own.
const PREFIX: &str = "##";
/// The most that the squares of the tokens' lengths come to, as each symbol of a token may give as many tokens as there are before it. BERT's vocabulary
/// has a fortieth of that.
const MOST_SQUARES: usize = 1 << 26;

/// A tokenizer that is described by BERT's normaliser, BERT's split into words, and a vocabulary.
pub struct WordPiece {
    letters: Letters,
    trie: Trie,
    /// The token of a word that has no others.
    unknown: i32,
    /// The most characters of a word that has others.
    most_letters: usize,
    /// Tokens that stand in a text as they are, the longest first.
    special: Vec<(String, i32)>,
    /// How these begin.
    begins: Vec<char>,
    /// What stands before and behind every text.
    marks: [Vec<i32>; 2],
}

impl WordPiece {
    /// A twin of `tokenizer`, unless that is of another kind, or has ids from `vocabulary` on. `encode` gives its ids of a text, with marks.
    pub fn of(tokenizer: &Tokenizer, vocabulary: u32, encode: &dyn Fn(&str) -> Option<Vec<i32>>) -> Option<Self> {
        let (Some(NormalizerWrapper::BertNormalizer(normal)), Some(PreTokenizerWrapper::BertPreTokenizer(_)), ModelWrapper::WordPiece(model)) =
            (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer(), tokenizer.get_model())
        else {
            return None;
        };
        let ids = tokenizer.get_vocab(false);
        let squares = ids.keys().fold(0usize, |sum, token| sum.saturating_add(token.len().saturating_mul(token.len())));
        if model.continuing_subword_prefix != PREFIX || squares > MOST_SQUARES || ids.values().any(|id| *id >= vocabulary) {
            return None;
        }
        let rules = Rules {
            clean: normal.clean_text,
            chinese: normal.handle_chinese_chars,
            accents: normal.strip_accents.unwrap_or(normal.lowercase),
            lowercase: normal.lowercase,
        };
        let mut special = Vec::new();
        for (id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            let plain = token.special && !(token.single_word || token.lstrip || token.rstrip || token.normalized);
            if !plain || token.content.is_empty() || ids.get(&token.content) != Some(id) {
                return None;
            }
            special.push((token.content.clone(), *id as i32));
        }
        special.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        let begins: BTreeSet<char> = special.iter().filter_map(|(content, _)| content.chars().next()).collect();
        let characters: BTreeSet<char> = ids.keys().flat_map(|token| token.chars()).collect();
        let symbols = characters.len() as u32 + 1;
        let letters = Letters::new(rules, characters.into_iter().zip(1..).collect());
        let entry = |(token, id): (&String, &u32)| -> Entry {
            let inside = token.strip_prefix(PREFIX);
            (inside.is_some(), inside.unwrap_or(token).chars().map(|letter| letters.symbol(letter)).collect(), *id as i32)
        };
        let trie = Trie::new(ids.iter().map(entry).collect(), symbols);
        let unknown = *ids.get(&model.unk_token)? as i32;
        let marks = marks(encode, &model.unk_token, unknown)?;
        // The library's way says whose fault it is.
        if marks.iter().flatten().any(|&id| !u32::try_from(id).is_ok_and(|id| id < vocabulary)) {
            return None;
        }
        Some(Self { letters, trie, unknown, most_letters: model.max_input_chars_per_word, special, begins: begins.into_iter().collect(), marks })
    }

    /// The tokens of a text, at most `most` with the marks, and whether some were left out; `None` where what a character does depends on its
    /// neighbours.
    pub fn tokens(&self, text: &str, most: usize) -> Option<(Vec<i32>, bool)> {
        let [before, behind] = &self.marks;
        let most = most.saturating_sub(behind.len());
        let mut words = Words { own: self, ids: before.clone(), node: Some(START), letters: 0, begin: before.len() };
        let mut rest = text;
        while let Some(letter) = rest.chars().next()
            && words.begin <= most
        {
            let special = if self.begins.contains(&letter) { self.special.iter().find(|(content, _)| rest.starts_with(content)) } else { None };
            if let Some((content, id)) = special {
                words.token(*id);
                rest = &rest[content.len()..];
                continue;
            }
            rest = &rest[letter.len_utf8()..];
            match self.letters.act(letter) {
                Act::Letter(symbol) => words.letter(symbol),
                Act::Several(from, count) => self.letters.several(letter, from, count).iter().for_each(|act| words.act(*act)),
                Act::Hard => return None,
                act => words.act(act),
            }
        }
        words.end();
        let mut ids = words.ids;
        let cut = ids.len() > most;
        ids.truncate(most);
        ids.extend_from_slice(behind);
        Some((ids, cut))
    }
}

/// What stands before and behind every text, where `unknown` is the text of the token `id`.
fn marks(encode: &dyn Fn(&str) -> Option<Vec<i32>>, unknown: &str, id: i32) -> Option<[Vec<i32>; 2]> {
    let (empty, mut before) = (encode("")?, encode(unknown)?);
    let at = before.iter().position(|other| *other == id)?;
    let behind = before.split_off(at + 1);
    before.pop();
    let is_all = [&before[..], &behind].concat() == empty && !empty.contains(&id);
    is_all.then_some([before, behind])
}

/// The words of a text as they are read.
struct Words<'a> {
    own: &'a WordPiece,
    ids: Vec<i32>,
    /// Where the word under way is in the trie; nowhere where it has no tokens.
    node: Option<Node>,
    /// The characters of the word under way.
    letters: usize,
    /// Where its tokens begin.
    begin: usize,
}

impl Words<'_> {
    /// What a part of a character does.
    fn act(&mut self, act: Act) {
        match act {
            Act::Letter(symbol) => self.letter(symbol),
            Act::Mark(symbol) => {
                self.end();
                self.letter(symbol);
                self.end();
            }
            Act::Space => self.end(),
            Act::Nothing | Act::Several(..) | Act::Hard => {}
        }
    }

    fn letter(&mut self, symbol: u32) {
        self.letters += 1;
        self.node = match self.node {
            Some(node) if symbol > 0 && self.letters <= self.own.most_letters => self.own.trie.step(node, symbol, &mut self.ids),
            _ => None,
        };
    }

    /// Ends the word under way, where there is one.
    fn end(&mut self) {
        if self.letters > 0 {
            let whole = self.node.is_some_and(|node| self.own.trie.end(node, &mut self.ids));
            if !whole {
                self.ids.truncate(self.begin);
                self.ids.push(self.own.unknown);
            }
            (self.node, self.letters, self.begin) = (Some(START), 0, self.ids.len());
        }
    }

    /// A token that stands in the text as it is.
    fn token(&mut self, id: i32) {
        self.end();
        self.ids.push(id);
        self.begin = self.ids.len();
    }
}

impl std::fmt::Debug for WordPiece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WordPiece with {} special tokens", self.special.len())
    }
}
