#![no_main]

#[macro_use]
mod target;

target!("embeddings_body");
