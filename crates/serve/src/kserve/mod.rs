//! The open inference protocol, version 2, as bytes and values: what a request says, what an answer says. Nothing here has a socket, a device or a thread.

pub mod attention;
pub mod body;
pub mod datatype;
pub mod json;
pub mod message;
pub mod parameters;
pub mod reply;
pub mod sentences;
pub mod target;
pub mod tensor;
pub mod values;
