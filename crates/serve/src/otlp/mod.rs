//! Traces by OpenTelemetry's protocol: a span a request, sent to a collector over HTTP from a thread of their own.

mod context;
mod endpoint;
mod exporter;
mod messages;
mod post;
mod span;

pub use context::Context;
pub use endpoint::Endpoint;
pub use exporter::{Exporter, Told};
pub use span::Record;
