//! The answer to a request, however it is written.

use std::sync::Arc;
use std::time::Duration;

use super::super::fault::Fault;
use super::ask::{Answered, Ask};
use super::named::Named;
use super::{attend, embed};
use crate::kserve::reply::Reply;

/// The answer of what the model's name leads to, as `write` writes it. It is counted as one of that model from `began` on.
///
/// # Errors
/// A request that is not sound for this model, or that is not let in; a device that fails; what `write` refuses.
pub async fn answer<T>(ask: Ask, named: Named<'_>, began: Duration, write: impl FnOnce(Reply) -> Result<T, Fault>) -> Result<T, Fault> {
    let (app, model, spent) = (Arc::clone(&ask.app), ask.model.clone(), Arc::clone(ask.account.spent()));
    let answered = match named {
        Named::Embeds(embeddings, lease) => embed::embed(ask, embeddings, lease).await,
        Named::Attends(operations) => attend::attend(ask, operations).await,
    };
    let result = answered.and_then(|Answered { reply, held }| {
        let written = write(reply);
        drop(held);
        written
    });
    app.stats.add(&model, result.is_ok(), app.shared.clock.now().saturating_sub(began), spent.times());
    result
}
