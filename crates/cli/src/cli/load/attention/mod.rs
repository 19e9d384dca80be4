//! Queries of attention whose tensors lie in memory of the server.

mod options;
mod proof;
mod resident;
mod sets;

pub use options::{Options, Shape};
pub use proof::{Proven, prove};
pub use resident::Resident;
pub use sets::{DTYPE, Part, Sets};

/// The operation's name among the models of the open inference protocol.
pub const NAME: &str = "op.attention";
/// Where it is asked.
pub const PATH: &str = "/v2/models/op.attention/infer";
