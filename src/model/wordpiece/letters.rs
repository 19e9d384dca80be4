//! What becomes of a character before words are looked up: BERT's cleaning, spaces around Chinese characters, accents taken off, lower case,
//! and where words end. Tables of 256 characters are made when one of them is first met.

use std::collections::HashMap;
use std::sync::OnceLock;

use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_canonical};

/// Characters of a table.
const PAGE: u32 = 256;
/// Tables for all characters.
const PAGES: usize = 0x11_0000 / PAGE as usize;

/// How texts are normalised.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether control characters are left out, and every space is a plain one.
    pub clean: bool,
    /// Whether a Chinese character is a word of its own.
    pub chinese: bool,
    /// Whether accents are left out.
    pub accents: bool,
    /// Whether letters are put into lower case.
    pub lowercase: bool,
}

/// What a character, or a part of it, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It goes on with a word; 0 is the symbol of every character that no token has.
    Letter(u32),
    /// It is a word.
    Mark(u32),
    /// It ends a word.
    Space,
    /// It is left out.
    Nothing,
    /// It does several things, those of [`Letters::several`].
    Several(u16, u8),
    /// What it does depends on its neighbours.
    Hard,
}

/// A table of characters.
struct Page {
    acts: [Act; PAGE as usize],
    several: Vec<Act>,
}

/// What all characters do.
pub struct Letters {
    rules: Rules,
    symbols: HashMap<char, u32>,
    pages: Vec<OnceLock<Box<Page>>>,
}

impl Letters {
    /// The characters of a vocabulary under these rules, by their symbols, which begin at 1.
    pub fn new(rules: Rules, symbols: HashMap<char, u32>) -> Self {
        Self { rules, symbols, pages: (0..PAGES).map(|_| OnceLock::new()).collect() }
    }

    /// The symbol of a character as it stands in a token.
    pub fn symbol(&self, letter: char) -> u32 {
        self.symbols.get(&letter).copied().unwrap_or(0)
    }

    fn page(&self, letter: char) -> &Page {
        let number = letter as u32 / PAGE;
        self.pages[number as usize].get_or_init(|| self.make(number * PAGE))
    }

    /// What a character does.
    pub fn act(&self, letter: char) -> Act {
        self.page(letter).acts[(letter as u32 % PAGE) as usize]
    }

    /// What a character does that does several things.
    pub fn several(&self, letter: char, from: u16, count: u8) -> &[Act] {
        &self.page(letter).several[usize::from(from)..usize::from(from) + usize::from(count)]
    }

    fn make(&self, start: u32) -> Box<Page> {
        let mut page = Box::new(Page { acts: [Act::Nothing; PAGE as usize], several: Vec::new() });
        for at in 0..PAGE {
            // Half of a surrogate pair is no character, and never met.
            let Some(letter) = char::from_u32(start + at) else { continue };
            page.acts[at as usize] = match self.normalised(letter) {
                None => Act::Hard,
                Some(text) => match text[..] {
                    [] => Act::Nothing,
                    [one] => self.plain(one),
                    _ => {
                        let from = page.several.len() as u16;
                        page.several.extend(text.iter().map(|one| self.plain(*one)));
                        Act::Several(from, text.len() as u8)
                    }
                },
            };
        }
        page
    }

    /// What a normalised character does.
    fn plain(&self, letter: char) -> Act {
        if letter.is_whitespace() {
            Act::Space
        } else if letter.is_ascii_punctuation() || letter.is_punctuation() {
            Act::Mark(self.symbol(letter))
        } else {
            Act::Letter(self.symbol(letter))
        }
    }

    /// What a character becomes, or nothing certain where that depends on its neighbours: marks are sorted by their classes, and one that stays may
    /// change places with another.
    fn normalised(&self, letter: char) -> Option<Vec<char>> {
        let Rules { clean, chinese, accents, lowercase } = self.rules;
        let letter = match letter {
            '\t' | '\n' | '\r' if clean => ' ',
            '\0' | '\u{FFFD}' if clean => return Some(Vec::new()),
            other if clean && other.is_other() => return Some(Vec::new()),
            other if clean && other.is_whitespace() => ' ',
            other => other,
        };
        let mut text = if chinese && is_chinese(letter) { vec![' ', letter, ' '] } else { vec![letter] };
        if accents {
            let mut apart = Vec::new();
            text.iter().for_each(|letter| decompose_canonical(*letter, |part| apart.push(part)));
            apart.retain(|part| !part.is_mark_nonspacing());
            if apart.iter().any(|part| canonical_combining_class(*part) != 0) {
                return None;
            }
            text = apart;
        }
        if lowercase {
            text = text.into_iter().flat_map(char::to_lowercase).collect();
        }
        Some(text)
    }
}

fn is_chinese(letter: char) -> bool {
    matches!(letter as u32,
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F | 0x2_B740..=0x2_B81F | 0x2_B920..=0x2_CEAF | 0xF900..=0xFAFF
            | 0x2_F800..=0x2_FA1F)
}
