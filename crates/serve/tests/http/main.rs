//! A server asked through a real socket. Every vector is compared bit for bit with what the library gives to the sentence alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adapters;
mod ahead;
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
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "otlp")]
mod traces;
mod turns;
mod vllm;

use std::sync::Arc;

use support::client::Client;
use support::tiny;
use tempfile::TempDir;
use trifuse_serve::generate::Generate;
use trifuse_serve::{Config, Handle, Opened, Server};

/// A server that runs, and the folder of its model.
struct Running {
    handle: Option<Handle>,
    folder: TempDir,
}

impl Running {
    fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    fn with(set: impl FnOnce(&mut Config), change: impl FnOnce(&mut Opened) + Send + 'static) -> Self {
        let folder = tiny::folder();
        let model = tiny::model_with(folder.path(), change);
        Self { handle: Some(Server::start(config(set), Some(model), None).unwrap()), folder }
    }

    fn handle(&self) -> &Handle {
        self.handle.as_ref().unwrap()
    }

    fn client(&self) -> Client {
        Client::to(self.handle().addr()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.drain();
            handle.wait();
        }
    }
}

/// The defaults on any port, with no delay at the end.
fn config(set: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.threads = 2;
    config.limits.drain_delay = std::time::Duration::ZERO;
    set(&mut config);
    config
}

/// A server of a language model alone.
fn writes(generator: Arc<dyn Generate>) -> Handle {
    Server::start(config(|_| {}), None, Some(generator)).unwrap()
}
