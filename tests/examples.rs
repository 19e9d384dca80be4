//! Every example runs: on the processor, and on a GPU, or a driver in software, where Vulkan has one.

#![cfg(all(feature = "cpu", feature = "compress"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use trifuse::backends::Choice;
use trifuse::{Error, Result};

/// Runs an example on both backends; one that is not here is named.
fn on_each(run: fn(&Choice) -> Result<()>) {
    run(&"cpu".parse().unwrap()).unwrap();
    match run(&"wgpu".parse().unwrap()) {
        Err(Error::NoBackend { reason, .. }) => println!("skipped on wgpu: {reason}"),
        ran => ran.unwrap(),
    }
}

macro_rules! examples {
    ($($name:ident $path:literal)*) => { $(
        #[path = $path]
        mod $name;

        #[test]
        fn $name() {
            on_each($name::run);
        }
    )* };
}

examples! {
    attention "../examples/attention.rs"
    fused_mlp "../examples/fused_mlp.rs"
    linear_with_lora "../examples/linear_with_lora.rs"
    serve_adapters "../examples/serve_adapters.rs"
    capture_graph "../examples/capture_graph.rs"
    paged_decode "../examples/paged_decode.rs"
    choose_backend "../examples/choose_backend.rs"
}

#[path = "../examples/own_backend.rs"]
mod own_backend;

#[test]
fn a_backend_of_ones_own_agrees_with_float64() {
    own_backend::run().unwrap();
}
