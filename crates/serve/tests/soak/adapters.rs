//! Adapters that come and go: their files, the right vectors of each of their contents, and what a name can have led to at a time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tempfile::TempDir;
use trifuse::adapters::peft::{CONFIG_FILE, LoraAdapter, TENSOR_FILE};
use trifuse_serve::keeper::Found;
use trifuse_serve::queueing::registry::Generation;
use trifuse_serve::{AdapterRoot, Opened, content};

use super::support::tiny::{self, Reference, peft};

/// Names of adapters that come and go: 24 with those of the start.
pub const NAMES: usize = 22;
/// The ranks of the contents that each name may lead to. No two names have one in common.
const RANKS: [usize; 3] = [4, 7, 2];
/// Contents that each name may lead to.
pub const CONTENTS: usize = RANKS.len();

/// One content of an adapter, in a folder of its own.
pub struct Content {
    /// The folder, below the root.
    pub path: String,
    /// What the server has to call it.
    pub generation: String,
    /// The right vector of each text.
    pub bits: Vec<Vec<u32>>,
}

/// The folder of all contents.
pub struct Shelf {
    root: TempDir,
    contents: Vec<[Content; CONTENTS]>,
    /// What each name leads to at the start.
    first: Arc<Vec<(String, Found)>>,
}

impl Shelf {
    /// Contents for every name, with the vectors of these texts by the library. `others` are vectors of the first text that no adapter may have.
    pub fn new(library: &mut Reference, texts: &[&[i32]], others: &[&[u32]]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut make = |name: usize, number: usize| {
            let path = format!("{}-{number}", alias(name));
            let folder = root.path().join(&path);
            peft(&folder, (7000 + 100 * (name * CONTENTS + number)) as u64, RANKS[number], tiny::WIDTH);
            library.add(&path, &LoraAdapter::open(&folder).unwrap());
            let files = [CONFIG_FILE, TENSOR_FILE].map(|file| folder.join(file));
            let bits = texts.iter().map(|ids| library.of_ids(ids, Some(&path))).collect();
            Content { generation: content(files.iter().map(PathBuf::as_path), "").unwrap(), path, bits }
        };
        let contents: Vec<[Content; CONTENTS]> = (0..NAMES).map(|name| std::array::from_fn(|number| make(name, number))).collect();
        // Whoever answers in another's place is seen.
        let all: Vec<&[u32]> = contents.iter().flatten().map(|content| content.bits[0].as_slice()).chain(others.iter().copied()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "two adapters give the same vector");
        let open = AdapterRoot::open(root.path()).unwrap();
        let first = contents.iter().enumerate().map(|(name, of)| (alias(name), open.read(&of[0].path, "").unwrap())).collect();
        Self { root, contents, first: Arc::new(first) }
    }

    /// The contents of a name.
    pub fn of(&self, name: usize) -> &[Content; CONTENTS] {
        &self.contents[name]
    }

    /// The folder, as a server takes it.
    pub fn root(&self) -> AdapterRoot {
        AdapterRoot::open(self.root.path()).unwrap()
    }

    /// The files of a content.
    pub fn files(&self, content: &Content) -> [PathBuf; 2] {
        [CONFIG_FILE, TENSOR_FILE].map(|file| self.root.path().join(&content.path).join(file))
    }

    /// Has a model begin with all names, each at the first of its contents.
    pub fn begin(&self) -> impl FnOnce(&mut Opened) + Send + 'static {
        let first = Arc::clone(&self.first);
        move |opened| {
            for (alias, Found { content, adapter, .. }) in first.iter() {
                let adapter = opened.embedder.add(alias, adapter.clone()).unwrap();
                opened.adapters.push(Generation::new(alias, content, adapter));
            }
        }
    }
}

/// A name in requests.
pub fn alias(name: usize) -> String {
    format!("late{name}")
}

/// What a name leads to, and until when at the most. It is written down before the server is told.
struct Spell {
    content: Option<usize>,
    until: Option<Instant>,
}

/// What each name of a server has led to. One client changes names, and any ask by them.
pub struct History(Vec<Mutex<Vec<Spell>>>);

impl History {
    /// Each name leads to the first of its contents.
    pub fn new() -> Self {
        Self((0..NAMES).map(|_| Mutex::new(vec![Spell { content: Some(0), until: None }])).collect())
    }

    /// What a name leads to while nobody changes it.
    pub fn now(&self, name: usize) -> Option<usize> {
        self.0[name].lock().unwrap().last().unwrap().content
    }

    /// From now on a name may lead to another content, or to none.
    pub fn begin(&self, name: usize, content: Option<usize>) {
        self.0[name].lock().unwrap().push(Spell { content, until: None });
    }

    /// The change that was begun is there, or will never be.
    pub fn end(&self, name: usize, changed: bool) {
        let mut spells = self.0[name].lock().unwrap();
        if changed {
            let (now, before) = (Instant::now(), spells.len() - 1);
            spells[..before].iter_mut().filter(|spell| spell.until.is_none()).for_each(|spell| spell.until = Some(now));
        } else {
            spells.pop();
        }
    }

    /// Whether a name can have led there at any time since `asked`.
    pub fn may_have(&self, name: usize, content: Option<usize>, asked: Instant) -> bool {
        self.0[name].lock().unwrap().iter().any(|spell| spell.content == content && spell.until.is_none_or(|until| until >= asked))
    }
}
