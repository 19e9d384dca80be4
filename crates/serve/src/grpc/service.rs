//! What is the same for all methods: ids of requests, keys, deadlines, the end of the server, and faults that nobody foresaw.

use std::pin::pin;
use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode};
use bytes::Bytes;
use hyper::body::Incoming;

use super::answer::{Answer, Sending};
use super::framing::read;
use super::method::Method;
use super::status::Status;
use super::timeout::timeout;
use crate::account::{Account, Answer as Answered};
use crate::http::activity::Answering;
use crate::http::app::{About, App, Phase};
use crate::http::caller::{Caller, REQUEST_ID, request_id};
use crate::http::caught::{Caught, Panicked};
use crate::http::fault::Fault;

/// The type of messages.
const KIND: &str = "application/grpc";
/// How messages may be compressed.
const ENCODINGS: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// How the metrics name what is no method.
const OTHER: &str = "other";

/// Answers a request.
pub async fn answer(app: &Arc<App>, request: Request<Incoming>, sending: &Sending, answering: Answering) -> Response<Answer> {
    let began = app.shared.clock.now();
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_grpc = kind.strip_prefix(KIND).is_some_and(|rest| rest.is_empty() || rest.starts_with(';') || rest == "+proto" || rest.starts_with("+proto;"));
    if request.method() != Verb::POST || !is_grpc {
        // What asks by another protocol is answered by the one beneath.
        let status = if is_grpc { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::UNSUPPORTED_MEDIA_TYPE };
        let mut response = Response::new(Answer::new(Bytes::new(), None, sending, answering));
        *response.status_mut() = status;
        return response;
    }
    let id = request_id(app, request.headers());
    let method = Method::of(request.uri().path());
    let account = match method {
        Some((path, method)) if method.is_guarded() => app.account(request.headers(), || about(path)),
        _ => Account::default(),
    };
    let result = match Caught(pin!(call(app, method.map(|(_, method)| method), request, account.clone()))).await {
        Ok(result) => result,
        Err(Panicked) => Err(Fault::internal().into()),
    };
    let mut response = match &result {
        Ok(message) => {
            let mut trailers = HeaderMap::new();
            Status::ok().write(&mut trailers);
            Response::new(Answer::new(message.clone(), Some(trailers), sending, answering))
        }
        Err(status) => {
            app.shared.metrics.refused(status.kind);
            account.failed(status.kind);
            let mut response = Response::new(Answer::new(Bytes::new(), None, sending, answering));
            status.write(response.headers_mut());
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(KIND));
    headers.insert(ENCODINGS, HeaderValue::from_static("identity"));
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    let code = result.map_or_else(|status| status.code, |_| Status::ok().code);
    account.answered(Answered::Grpc(code as u8));
    app.shared.metrics.called(method.map_or(OTHER, |(path, _)| path), code.name(), app.shared.clock.now() - began);
    response
}

/// What a call is called in traces.
fn about(path: &str) -> About {
    let name = path.trim_start_matches('/');
    let (service, method) = name.split_once('/').unwrap_or((name, ""));
    let labels = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)];
    About { name: name.to_owned(), labels: labels.map(|(label, value)| (label, value.to_owned())).to_vec() }
}

/// The message that answers a request.
async fn call(app: &Arc<App>, method: Option<Method>, request: Request<Incoming>, account: Account) -> Result<Bytes, Status> {
    let began = app.shared.clock.now();
    let Some(method) = method else {
        let path: String = request.uri().path().chars().take(200).collect();
        return Err(Status::unimplemented(format!("there is no method {path:?} here")));
    };
    let (parts, body) = request.into_parts();
    let time = timeout(&parts.headers)?;
    let mut caller = Caller::default();
    if method.is_guarded() {
        if app.phase() == Phase::Draining {
            return Err(Fault::draining().into());
        }
        caller = Caller::of(&app.keys(), &parts.headers, account)?;
        if method == Method::ModelInfer {
            app.meter(caller.tenant).map_or(Ok(()), |meter| meter.request())?;
        }
    }
    caller.timeout = [caller.timeout, time].into_iter().flatten().min();
    let answer = async {
        let held = read(app, body, method.most(app)).await?;
        method.answer(app, caller, began, held).await
    };
    match time {
        // What waits for the device is given up there with the caller.
        Some(time) => tokio::time::timeout(time, answer).await.unwrap_or_else(|_| Err(Status::late())),
        None => answer.await,
    }
}
