//! What tells the contents of adapters apart.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use trifuse::adapters::peft::{CONFIG_FILE, TENSOR_FILE};
use trifuse::llm::ChatTemplate;
use trifuse::{Error, Result};

use crate::queueing::registry::Beside;

/// What tells the content of a PEFT folder from others, and the template of chats that lies in it, which is part of the content: with another one a chat has
/// another answer.
///
/// # Errors
/// A file that cannot be read; a template that is not sound.
pub fn of_folder(folder: &Path) -> Result<(String, Beside)> {
    let template = ChatTemplate::in_folder(folder)?;
    let files = [CONFIG_FILE, TENSOR_FILE].map(|file| folder.join(file));
    let own = template.as_ref().map(ChatTemplate::path);
    let content = content(files.iter().map(PathBuf::as_path).chain(own), "")?;
    Ok((content, template.map_or_else(Beside::default, Beside::new)))
}

/// The SHA-256 of an adapter's files in their order, and of its name where one file holds many adapters.
///
/// # Errors
/// A file that cannot be read.
pub fn content<'a>(files: impl IntoIterator<Item = &'a Path>, name: &str) -> Result<String> {
    let mut digest = Sha256::new();
    for path in files {
        let mut file = std::fs::File::open(path).map_err(Error::io(path, "open"))?;
        let bytes = std::io::copy(&mut file, &mut digest).map_err(Error::io(path, "read"))?;
        // Bytes that move from one file to the next make another content.
        digest.update(bytes.to_le_bytes());
    }
    digest.update(name);
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
