//! A server asked through a real socket. Every vector is compared bit for bit with what the library gives to the sentence alone.

mod adapters;
mod ahead;
mod demand;
mod described;
mod drain;
mod embeddings;
mod faults;
mod forms;
mod limits;
mod page;
mod replicas;
mod replicas_writing;
mod routes;
mod shapes;
mod speaking;
#[cfg(feature = "otlp")]
mod templates;
mod traces;
mod turns;
mod vllm;
mod warm;

use std::sync::Arc;

use trifuse_serve::generate::Generate;
use trifuse_serve::{Config, Handle, Models, Opened, Server};

use crate::support::tiny;
use crate::{Running, config};

impl Running {
    /// Serves the encoder alone.
    fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    fn with(set: impl FnOnce(&mut Config), change: impl FnOnce(&mut Opened) + Send + 'static) -> Self {
        let folder = tiny::folder();
        let model = tiny::model_with(folder.path(), change);
        Self::start(config(set), folder, Models { embeddings: Some(model), ..Models::default() })
    }
}

/// A server of a language model alone.
fn writes(generator: Arc<dyn Generate>) -> Handle {
    Server::start(config(|_| {}), None, Some(generator)).unwrap()
}
