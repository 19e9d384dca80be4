//! A small encoder and a small language model with adapters, and a client that speaks HTTP by hand.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod backend;
pub mod client;
pub mod faulty;
pub mod parrot;
pub mod tiny;
pub mod writer;
