//! A request for an answer, however it came.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::super::app::App;
use super::super::body::Held;
use super::super::caller::Caller;
use crate::account::Account;
use crate::kserve::message::Request;
use crate::kserve::reply::Reply;
use crate::queueing::queues::Tenant;

/// A request for an answer, with all that giving it needs.
pub struct Ask {
    /// The server.
    pub app: Arc<App>,
    /// Who asks.
    pub tenant: Tenant,
    /// What is known of the request.
    pub account: Account,
    /// When the request must have reached the device.
    pub deadline: Option<Duration>,
    /// The model's name, as it was asked for.
    pub model: String,
    /// The request.
    pub request: Request,
    /// The request's body.
    pub held: Held,
}

/// An answer, and the room for bodies that it takes until it is written.
pub struct Answered {
    /// The answer.
    pub reply: Reply,
    /// The room.
    pub held: Arc<dyn Any + Send + Sync>,
}

impl Ask {
    /// The request of a caller that came at `began`. It must reach the device as soon as the caller and the request itself say.
    pub fn new(app: &Arc<App>, caller: Caller, began: Duration, model: &str, request: Request, held: Held) -> Self {
        let timeout = [caller.timeout, request.timeout.map(Duration::from_micros)].into_iter().flatten().min();
        let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
        caller.account.asks(model);
        Self { app: Arc::clone(app), tenant: caller.tenant, account: caller.account, deadline, model: model.to_owned(), request, held }
    }
}
