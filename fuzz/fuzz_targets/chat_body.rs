#![no_main]

#[macro_use]
mod target;

target!("chat_body");
