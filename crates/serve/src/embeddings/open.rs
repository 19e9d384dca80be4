//! A model as its devices open it: one after the other ready, and all of them with the same adapters.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use trifuse::adapters::engine::AdapterId;
use trifuse::model::Text;
use trifuse::{Error, Result};

use crate::embedder::{Open, Opened};
use crate::keeper::Names;
use crate::line::{Copies, Line};
use crate::queueing::registry::{Generation, Registry};
use crate::runner::Runner;

/// What the thread of a device tells once the model is open there.
pub struct Ready {
    /// The model's tokenizer.
    pub text: Text,
    /// The adapters, as the device knows them.
    pub adapters: Vec<Generation<AdapterId>>,
    /// Elements of a vector.
    pub width: usize,
    /// Rows of the token table.
    pub vocabulary: u32,
    /// Where the thread waits for the names that lead to adapters.
    names: mpsc::Sender<Names<Copies>>,
}

/// A thread that opens the model.
pub struct Opening {
    thread: JoinHandle<()>,
    ready: mpsc::Receiver<Result<Ready>>,
}

impl Opening {
    /// Has a thread open the model on the device of this number, which then takes from the line.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(number: usize, open: Open, line: &Arc<Line>) -> Result<Self> {
        let (sender, ready) = mpsc::channel();
        let line = Arc::clone(line);
        let work = move || match open().and_then(|opened| prepared(number, opened, &line)) {
            Ok((runner, told, names)) => {
                // Nobody waits for it any more where the server is being given up.
                if let (Ok(()), Ok(names)) = (sender.send(Ok(told)), names.recv()) {
                    runner.run(&line, &names);
                }
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name(format!("device {number}")).spawn(work).map_err(Error::io("thread of the device", "start"))?;
        Ok(Self { thread, ready })
    }

    /// Waits until the model is open.
    ///
    /// # Errors
    /// What opening it or its first batch fails with.
    pub fn wait(self) -> Result<(Ready, JoinHandle<()>)> {
        let ready = self.ready.recv().map_err(|_| Error::device("opening the model", "its thread ended"))??;
        Ok((ready, self.thread))
    }
}

/// An open model, ready to run.
fn prepared(number: usize, opened: Opened, line: &Line) -> Result<(Runner, Ready, mpsc::Receiver<Names<Copies>>)> {
    let Opened { embedder, text, adapters, width, vocabulary, batch_tokens, warm } = opened;
    let mut runner = Runner::new(number, embedder, [batch_tokens, text.max_tokens()], width);
    if warm {
        runner.warm(line)?;
    }
    let (sender, names) = mpsc::channel();
    Ok((runner, Ready { text, adapters, width, vocabulary, names: sender }, names))
}

/// The names that lead to the adapters of every device, which all of them are told.
///
/// # Errors
/// Two adapters of one name; devices with other adapters or another model.
pub fn name(base: &str, ready: &mut [Ready]) -> Result<Names<Copies>> {
    let mut lists: Vec<Vec<Generation<AdapterId>>> = ready.iter_mut().map(|ready| std::mem::take(&mut ready.adapters)).collect();
    let differs = || Error::invalid("devices", "the same model with the same adapters on each", "another on one of them");
    let first = ready.first().map(|ready| (ready.width, ready.vocabulary));
    if ready.iter().any(|other| Some((other.width, other.vocabulary)) != first) {
        return Err(differs());
    }
    let others = if lists.is_empty() { Vec::new() } else { lists.split_off(1) };
    let mut registry = Registry::new(base);
    for Generation { alias, content, adapter, about, beside } in lists.into_iter().flatten() {
        let same =
            |list: &Vec<Generation<AdapterId>>| list.iter().find(|other| other.alias == alias && other.content == content).map(|other| Some(other.adapter));
        let copies: Option<Vec<Option<AdapterId>>> = std::iter::once(Some(Some(adapter))).chain(others.iter().map(same)).collect();
        let generation = Generation { alias: alias.clone(), content, adapter: Copies(copies.ok_or_else(differs)?), about, beside };
        let taken = |_| Error::invalid("adapters", "names of their own, other than the model's", format!("{alias:?} twice"));
        registry.load(generation, false, None).map_err(taken)?;
    }
    if others.iter().any(|list| list.len() != registry.adapters().count()) {
        return Err(differs());
    }
    let names = Names::new(registry);
    // A thread that has ended is seen by what it does not do.
    ready.iter().for_each(|ready| drop(ready.names.send(names.clone())));
    Ok(names)
}
