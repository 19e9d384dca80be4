#![no_main]

#[macro_use]
mod target;

target!("inference_body");
