//! A server asked through real sockets: OpenAI's routes in `http`, the open inference protocol in `kserve`. One program, so that the library is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden;
mod http;
mod kserve;
#[path = "../support/mod.rs"]
mod support;

use support::client::Client;
use tempfile::TempDir;
use trifuse_serve::{Config, Handle, Models, Server};

/// A server that runs, and the folder of its encoder.
struct Running {
    handle: Option<Handle>,
    folder: TempDir,
}

impl Running {
    fn start(config: Config, folder: TempDir, models: Models) -> Self {
        Self { handle: Some(Server::serve(config, models).unwrap()), folder }
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
