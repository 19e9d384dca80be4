//! What routes read of a body before anything else is known, for a fuzzer that tries every body (`fuzz/subjects/bodies.rs`). It is no part of what this crate
//! promises.

use axum::http::StatusCode;
use bytes::Bytes;

use super::fault::Fault;
use super::kserve::embed::parts;
use super::{chat, completions, embeddings};
use crate::kserve::attention::Query;
use crate::kserve::body::split;
use crate::kserve::json;
use crate::kserve::sentences::{Bounds, sentences};
use crate::kserve::tensor::{Data, Tensor, int32};

/// Inputs of a request.
const INPUTS: usize = 256;
/// What an encoder of the usual size allows.
const BOUNDS: Bounds = Bounds { inputs: INPUTS, tokens: 512, vocabulary: 30_000 };

/// Nothing where a body is read, or the status and the body of the answer.
pub type Read = Result<(), (StatusCode, String)>;

fn told(read: Result<(), Fault>) -> Read {
    read.map_err(|fault| (fault.status, fault.body().to_string()))
}

/// A body of `/v1/embeddings`.
///
/// # Errors
/// It is not sound.
pub fn embeddings(body: &[u8]) -> Read {
    told(embeddings::Ask::read(body, INPUTS).map(drop))
}

/// A body of `/v1/completions`.
///
/// # Errors
/// It is not sound.
pub fn completions(body: &[u8]) -> Read {
    told(completions::Ask::read(body, INPUTS).map(drop))
}

/// A body of `/v1/chat/completions`.
///
/// # Errors
/// It is not sound.
pub fn chat(body: &[u8]) -> Read {
    told(chat::Ask::read(body).map(drop))
}

/// A body of the open inference protocol, for an encoder where it has ids and for attention else; `told` is the header that tells how much of it is JSON.
///
/// # Errors
/// It is not sound.
pub fn inference(body: &[u8], told: Option<&[u8]>) -> Read {
    self::told(infer(&Bytes::copy_from_slice(body), told))
}

fn infer(body: &Bytes, told: Option<&[u8]>) -> Result<(), Fault> {
    let (text, binary) = split(body, told.into_iter())?;
    let request = json::read(&text, binary)?;
    if request.inputs.iter().all(|input| input.name != "ids") {
        return Ok(Query::read(request).map(drop)?);
    }
    let (ids, lengths, _) = parts(request)?;
    // Of what lies in memory that has a name nothing is known yet.
    let here = |tensor: &Tensor| if let Data::Bytes(bytes) = &tensor.data { Some(int32(bytes)) } else { None };
    let Some(tokens) = here(&ids) else { return Ok(()) };
    let lengths = match &lengths {
        None => None,
        Some(lengths) => match here(lengths) {
            None => return Ok(()),
            known => known,
        },
    };
    Ok(sentences(&ids.shape, &tokens, lengths.as_deref(), BOUNDS).map(drop)?)
}
