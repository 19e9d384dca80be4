//! The messages of `inference.GRPCInferenceService` and `grpc.health.v1.Health`, by the numbers that their fields have there. Elements of strings are left
//! out, as no model here takes them.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// A message without fields.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Whether the server runs.
#[derive(Clone, PartialEq, Message)]
pub struct ServerLive {
    #[prost(bool, tag = "1")]
    pub live: bool,
}

/// Whether the server, or a model, answers.
#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    #[prost(bool, tag = "1")]
    pub ready: bool,
}

/// What the server is.
#[derive(Clone, PartialEq, Message)]
pub struct ServerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, repeated, tag = "3")]
    pub extensions: Vec<String>,
}

/// A model that is asked about.
#[derive(Clone, PartialEq, Message)]
pub struct ModelName {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// What a model is.
#[derive(Clone, PartialEq, Message)]
pub struct ModelMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub platform: String,
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub properties: BTreeMap<String, String>,
}

/// An input or an output that a model has.
#[derive(Clone, PartialEq, Message)]
pub struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;

/// A parameter.
#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")]
    pub choice: Option<Choice>,
}

/// The value of a parameter.
#[derive(Clone, PartialEq, Oneof)]
pub enum Choice {
    #[prost(bool, tag = "1")]
    Flag(bool),
    #[prost(int64, tag = "2")]
    Whole(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Real(f64),
    #[prost(uint64, tag = "5")]
    Unsigned(u64),
}

/// A request for an answer.
#[derive(Clone, PartialEq, Message)]
pub struct ModelInfer {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: Parameters,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Input>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<Wanted>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

/// An input of a request.
#[derive(Clone, PartialEq, Message)]
pub struct Input {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: Parameters,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

/// The elements of a tensor as numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub bool_contents: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub int_contents: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub int64_contents: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub uint_contents: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub uint64_contents: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub fp32_contents: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub fp64_contents: Vec<f64>,
}

/// An output that is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct Wanted {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub parameters: Parameters,
}

/// An answer.
#[derive(Clone, PartialEq, Message)]
pub struct ModelInferred {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: Parameters,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<Output>,
    /// The bytes of each output, none where they are in a region.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}

/// An output of an answer.
#[derive(Clone, PartialEq, Message)]
pub struct Output {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: Parameters,
}

/// A service whose health is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheck {
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The health of a service.
#[derive(Clone, PartialEq, Message)]
pub struct Health {
    /// 1 where it answers, 2 where it does not.
    #[prost(int32, tag = "1")]
    pub status: i32,
}
