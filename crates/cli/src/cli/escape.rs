//! What files say of themselves, made fit to be shown: their names may hold codes that a terminal acts on.

use std::borrow::Cow;
use std::fmt::Write;

/// The codes of [`Tone`](super::output::Tone), which may pass where colours are on: a file can colour a word by them, and do no more.
const COLOURS: [&str; 6] = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"];

/// Whether a terminal acts on a character in place of showing it: controls, and marks that turn the direction of what follows.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with such characters as `\u{1b}`, in lines as it is.
pub fn escaped(text: &str, colours: bool) -> Cow<'_, str> {
    escape(text, colours, true)
}

/// The same on one line: what is one word of a table must not look like two rows.
pub fn escaped_line(text: &str, colours: bool) -> Cow<'_, str> {
    escape(text, colours, false)
}

fn escape(text: &str, colours: bool, lines: bool) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let code = COLOURS.iter().find(|code| colours && rest.starts_with(**code));
        let taken = code.map_or(c.len_utf8(), |code| code.len());
        match c {
            _ if code.is_some() => out.push_str(&rest[..taken]),
            '\n' if lines => out.push(c),
            '\t' if lines => out.push(c),
            // Writing to a string does not fail.
            c if acts(c) => drop(write!(out, "{}", c.escape_unicode())),
            c => out.push(c),
        }
        rest = &rest[taken..];
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_passes() {
        assert_eq!(escaped("\x1b]0;PWNED\x07\x1b[2J é\n", true), "\\u{1b}]0;PWNED\\u{7}\\u{1b}[2J é\n");
        assert_eq!(escaped("a\rb\u{9b}31m\u{202e}c", false), "a\\u{d}b\\u{9b}31m\\u{202e}c");
        assert_eq!(escaped_line("usable\nrefused", false), "usable\\u{a}refused");
        assert!(matches!(escaped("as it is", true), Cow::Borrowed(_)));
    }

    #[test]
    fn colours_pass_where_they_are_on() {
        assert_eq!(escaped("\x1b[31mbad\x1b[0m", true), "\x1b[31mbad\x1b[0m");
        assert_eq!(escaped("\x1b[31mbad\x1b[0m", false), "\\u{1b}[31mbad\\u{1b}[0m");
    }
}
