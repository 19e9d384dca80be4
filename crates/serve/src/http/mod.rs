//! The server's face: routes, errors, limits and connections.

pub mod activity;
pub mod adapters;
pub mod app;
pub mod body;
pub mod caller;
pub mod caught;
pub mod chat;
pub mod completions;
pub mod connection;
pub mod embeddings;
pub mod fault;
pub mod fields;
pub mod health;
pub mod inputs;
pub mod kserve;
pub mod logprobs;
pub mod meters;
mod missing;
pub mod models;
pub mod page;
pub mod paths;
pub mod routes;
pub mod speech;
pub mod sse;
pub mod status;
pub mod structured;
pub mod writing;
