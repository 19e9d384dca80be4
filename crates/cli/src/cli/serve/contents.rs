//! What tells the contents of adapters apart, and what a server tells of them.

use std::path::PathBuf;

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::peft::adapter_folders;
use trifuse::{Error, Result};
use trifuse_serve::queueing::registry::{About, Beside, Generation};
use trifuse_serve::{content, of_folder};

/// What tells the contents of adapters with these names apart, whose files lie at `paths`, and what else lies there.
fn contents(names: &[&str], paths: &[PathBuf]) -> Result<Vec<(String, Beside)>> {
    let bundle = if let [path] = paths { Some(path).filter(|path| path.is_file()) } else { None };
    let mut folders = Vec::new();
    for path in paths.iter().filter(|_| bundle.is_none()) {
        folders.extend(adapter_folders(path)?);
    }
    let one = |name: &&str| match (bundle, folders.iter().find(|folder| folder.name == *name)) {
        (Some(bundle), _) => Ok((content([bundle.as_path()], name)?, Beside::default())),
        (None, Some(found)) => of_folder(&found.folder),
        (None, None) => Err(Error::invalid("adapter", "its folder, as it was there before", format!("{name:?} gone"))),
    };
    names.iter().map(one).collect()
}

/// The adapters with what tells their contents apart, and what else is known of them; their files lie at `paths`.
///
/// # Errors
/// Files that cannot be read.
pub fn generations<'a, A>(attached: impl Iterator<Item = (&'a str, A)>, about: &dyn Fn(&A) -> Option<About>, paths: &[PathBuf]) -> Result<Vec<Generation<A>>> {
    let (names, ids): (Vec<&str>, Vec<A>) = attached.unzip();
    let contents = contents(&names, paths)?;
    let one = |((name, adapter), (content, beside)): ((&str, A), (String, Beside))| Generation {
        about: about(&adapter),
        beside,
        ..Generation::new(name, content, adapter)
    };
    Ok(names.into_iter().zip(ids).zip(contents).map(one).collect())
}

/// What is told of an adapter.
pub fn about(adapter: &EncodedAdapter) -> Option<About> {
    Some(About { bytes: adapter.bytes(), cosine: adapter.least_cosine() })
}
