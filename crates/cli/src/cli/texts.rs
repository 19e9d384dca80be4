//! Texts as a language model reads them: files, documents in them, and tokens.

use std::path::Path;

use serde::Serialize;
use trifuse::llm::Files;
use trifuse::read::read_file;
use trifuse::{Error, Result};

/// The longest text, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// How a file is cut into documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Documents {
    /// The file is one document
    Whole,
    /// Each line is one
    Lines,
    /// Each `<doc ...>` block is one, as WikiExtractor writes them
    Doc,
}

/// The token that ends a text: the one of that name where there is one, else the first that the model names.
pub fn end(files: &Files) -> u32 {
    files.tokenizer.id_of("<|endoftext|>").or(files.ends.first().copied()).unwrap_or(0)
}

/// The tokens of each document of a file.
pub fn tokens(files: &Files, path: &Path, how: Documents) -> Result<Vec<Vec<u32>>> {
    let text = String::from_utf8(read_file(path, MAX_TEXT_BYTES)?).map_err(|error| Error::input(path, format!("expected UTF-8: {error}")))?;
    let parts: Vec<&str> = match how {
        Documents::Whole => vec![text.as_str()],
        Documents::Lines => text.lines().collect(),
        Documents::Doc => text.split("</doc>").filter_map(|block| block.split_once("<doc ")?.1.split_once('>').map(|(_, body)| body)).collect(),
    };
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| files.tokenizer.encode(part, false)).collect()
}
