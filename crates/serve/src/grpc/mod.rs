//! The open inference protocol over gRPC: the same core as its routes over HTTP, behind messages of Protocol Buffers.

mod answer;
mod connection;
mod contents;
mod framing;
mod messages;
mod method;
mod reply;
mod request;
mod service;
mod status;
mod timeout;

pub use connection::connection;
