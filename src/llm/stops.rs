//! Stop strings, which end a text and are not shown. One may begin in one token and end in another.

use crate::error::{Error, Result};

/// A text as it comes, without what may become a stop string.
#[derive(Clone, Debug)]
pub struct Stops {
    strings: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    ended: Option<usize>,
}

/// What can be shown of a text now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text to show; may be empty.
    pub text: String,
    /// The stop string that ended the text, by its place in the list. The text ends before it.
    pub stop: Option<usize>,
}

impl Stops {
    /// An empty text that ends before any of the strings. The one that is complete first counts, of two that end together the longer one.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(strings: Vec<String>) -> Result<Self> {
        match strings.iter().position(String::is_empty) {
            Some(at) => Err(Error::invalid("stop string", "at least 1 character", format!("an empty one at place {at}"))),
            None => Ok(Self { strings, held: String::new(), ended: None }),
        }
    }

    /// The stop string that ended the text, by its place in the list.
    pub fn ended(&self) -> Option<usize> {
        self.ended
    }

    /// Adds text, and gives what cannot be a part of a stop string. After a stop string nothing comes any more.
    pub fn push(&mut self, text: &str) -> Piece {
        if self.ended.is_some() {
            return Piece { text: String::new(), stop: self.ended };
        }
        for character in text.chars() {
            self.held.push(character);
            let ended = self.strings.iter().enumerate().filter(|(_, stop)| self.held.ends_with(stop.as_str()));
            if let Some((index, stop)) = ended.max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index))) {
                self.held.truncate(self.held.len() - stop.len());
                self.ended = Some(index);
                return Piece { text: std::mem::take(&mut self.held), stop: self.ended };
            }
        }
        // The longest end that begins a stop string stays.
        let begins = |at: &usize| self.strings.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let kept = self.held.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(kept);
        Piece { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Adds the last text, and gives what was held back too.
    pub fn finish(&mut self, text: &str) -> Piece {
        let mut piece = self.push(text);
        piece.text.push_str(&std::mem::take(&mut self.held));
        piece
    }
}
