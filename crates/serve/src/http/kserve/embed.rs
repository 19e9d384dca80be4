//! Vectors of sentences that are given by their tokens.

use std::sync::Arc;

use tokio::sync::oneshot;
use trifuse::{Error, Result as Sound};

use super::super::fault::Fault;
use super::ask::{Answered, Ask};
use super::places::{Places, Target, write};
use crate::embeddings::Embeddings;
use crate::kserve::datatype::Datatype;
use crate::kserve::message::{Request, Wanted};
use crate::kserve::reply::{Output, Reply};
use crate::kserve::sentences::{Bounds, sentences};
use crate::kserve::tensor::{Tensor, int32};
use crate::line::{Copies, Sentence};
use crate::queueing::registry::Lease;

/// The inputs `ids` and `lengths`, and the output.
///
/// # Errors
/// Others, or of another type.
pub fn parts(mut request: Request) -> Sound<(Tensor, Option<Tensor>, Wanted)> {
    let ids = request.input("ids").ok_or_else(|| Error::invalid("inputs", "ids", "none of that name"))?;
    let lengths = request.input("lengths");
    [Some(&ids), lengths.as_ref()].into_iter().flatten().try_for_each(|tensor| tensor.must_be(&[Datatype::Int32]))?;
    if let Some(lengths) = lengths.as_ref().filter(|lengths| lengths.shape.len() != 1) {
        return Err(Error::invalid("input \"lengths\": shape", "[n]", format_args!("{:?}", lengths.shape)));
    }
    let wanted = request.output("embedding").unwrap_or_else(|| Wanted { name: "embedding".into(), delivery: request.delivery.clone() });
    request.end()?;
    Ok((ids, lengths, wanted))
}

/// Answers with one vector a sentence: the bits that `/v1/embeddings` gives for the same ids.
///
/// # Errors
/// A request that is not sound, or that is not let in; a device that fails.
pub async fn embed(ask: Ask, embeddings: &Embeddings, lease: Option<Lease<Copies>>) -> Result<Answered, Fault> {
    let Ask { app, tenant, account, deadline, model, request, held } = ask;
    let id = request.id.clone();
    let (ids, lengths, mut wanted) = parts(request)?;
    let mut places = Places::new(&app, tenant.number);
    let tokens = int32(&places.host(&ids).await?);
    let lengths = match &lengths {
        Some(lengths) => Some(int32(&places.host(lengths).await?)),
        None => None,
    };
    let bounds = Bounds { inputs: app.config.limits.inputs, tokens: embeddings.text().max_tokens(), vocabulary: embeddings.vocabulary };
    let rows = sentences(&ids.shape, &tokens, lengths.as_deref(), bounds)?;
    let shape = [rows.len() as u64, embeddings.width as u64];
    let target = places.target(&mut wanted.delivery, shape[0] * shape[1] * 4)?;
    if matches!(target, Target::Region(_)) {
        let message = "output \"embedding\": expected JSON, binary data or shared memory, found a region: those are for op.attention";
        return Err(Fault::invalid("invalid_value", message));
    }
    let count: usize = rows.iter().map(Vec::len).sum();
    let meter = app.meter(tenant);
    meter.as_ref().map_or(Ok(()), |meter| meter.prompt(count))?;
    let sentences = rows.into_iter().map(|ids| Sentence { ids, adapter: lease.clone(), spent: Arc::clone(account.spent()) }).collect();
    let (answer, answered) = oneshot::channel();
    let entered = embeddings.enter(tenant, sentences, deadline, Box::new(move |result| drop(answer.send(result))));
    let waiter = entered.inspect_err(|_| meter.iter().for_each(|meter| meter.back(count)))?;
    let vectors = answered.await.map_err(|_| Fault::internal())??;
    drop(waiter);
    app.shared.metrics.tokens(count, 0);
    account.has(count, 0);
    let mut bytes: Vec<u8> = vectors.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    if let Target::Shared(shared, offset) = target {
        write(&app, shared, offset, std::mem::take(&mut bytes)).await?;
    }
    let output = Output { name: wanted.name, datatype: Datatype::Fp32, shape: shape.to_vec(), delivery: wanted.delivery, bytes };
    let parameters = lease.iter().map(|lease| ("adapter_generation", lease.content.clone())).collect();
    let reply = Reply { model, id, parameters, outputs: vec![output] };
    Ok(Answered { reply, held: Arc::new((held, places.held)) })
}
