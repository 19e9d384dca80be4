//! Queries of attention.

use std::any::Any;
use std::sync::Arc;

use super::super::fault::Fault;
use super::ask::{Answered, Ask};
use super::places::{Places, Target, done, write};
use crate::kserve::attention::{Blocks, Grid, Query};
use crate::kserve::datatype::Datatype;
use crate::kserve::message::{Delivery, Wanted};
use crate::kserve::reply::{Output, Reply};
use crate::operations::Operations;
use crate::operations::task::{Attend, Blocks as Sources, Job, Task};

/// How much longer numbers are in JSON than in memory.
const IN_JSON: u64 = 4;

fn sizes(grid: Grid) -> [u32; 4] {
    [grid.block, grid.q_blocks, grid.kv_blocks, grid.patterns]
}

/// Answers a query.
///
/// # Errors
/// A query that is not sound, or that is not let in; a device that refuses it, or fails.
pub async fn attend(ask: Ask, operations: &Operations) -> Result<Answered, Fault> {
    let Ask { app, tenant, account, deadline, model, request, held } = ask;
    let id = request.id.clone();
    let Query { op, tensors, blocks, shape, mut o, checksum, bytes } = Query::read(request)?;
    let mut places = Places::new(&app, tenant.number);
    let [q, k, v] = &tensors;
    let tensors = [places.source(q).await?, places.source(k).await?, places.source(v).await?];
    let blocks = match blocks {
        Blocks::All => Sources::All,
        Blocks::Map(map, grid) => Sources::Map(places.source(&map).await?, sizes(grid)),
        Blocks::Rows(rows, columns, grid) => Sources::Rows(places.source(&rows).await?, places.source(&columns).await?, sizes(grid)),
    };
    let target = match &mut o {
        Some(wanted) => Some(places.target(&mut wanted.delivery, bytes)?),
        None => None,
    };
    if checksum.as_ref().is_some_and(|wanted| matches!(wanted.delivery, Delivery::Region(_))) {
        return Err(Fault::invalid("invalid_value", "output \"checksum\": expected JSON or binary data, found a region"));
    }
    let output = match &target {
        Some(Target::Region(part)) => Some(part.clone()),
        _ => None,
    };
    let most = app.config.limits.body_bytes as u64;
    if output.is_none() && bytes > most {
        let message = format!("output \"o\": expected at most {most} bytes, found {bytes}; more has to go to a region");
        return Err(Fault::invalid("invalid_value", message));
    }
    let wants_bytes = matches!(target, Some(Target::Answer | Target::Shared(..)));
    if wants_bytes {
        let written = o.as_ref().is_some_and(|wanted| wanted.delivery == Delivery::Json);
        places.take(if written { bytes * IN_JSON } else { bytes })?;
    }
    let datatype = Datatype::from(op.dtype);
    // What the tensors lie in stays until the device has done with it, whatever becomes of the caller.
    let held: Arc<dyn Any + Send + Sync> = Arc::new((held, std::mem::take(&mut places.held)));
    let attend = Attend { op, tensors, blocks, output, bytes, wants_bytes, wants_checksum: checksum.is_some() };
    let task = Task { job: Job::Attend(Box::new(attend)), held: Some(Arc::clone(&held)), spent: Arc::clone(account.spent()) };
    let mut answer = done(operations, tenant, deadline, task).await?;
    if let Some(Target::Shared(shared, offset)) = target {
        write(&app, shared, offset, std::mem::take(&mut answer.bytes)).await?;
    }
    let bytes = answer.bytes;
    let o = o.map(|Wanted { name, delivery }| Output { name, datatype, shape, delivery, bytes });
    let digest = answer.checksum.unwrap_or_default().to_le_bytes().to_vec();
    let checksum = checksum.map(|Wanted { name, delivery }| Output { name, datatype: Datatype::Uint64, shape: vec![1], delivery, bytes: digest });
    let reply = Reply { model, id, parameters: Vec::new(), outputs: o.into_iter().chain(checksum).collect() };
    Ok(Answered { reply, held })
}
