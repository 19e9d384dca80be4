#![no_main]

#[macro_use]
mod target;

target!("completions_body");
