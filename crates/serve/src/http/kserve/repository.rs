//! `POST /v2/repository/models/{model}/load` and `…/unload`: adapters of the model that embeds come and go, as models do at servers that have many.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Request;
use axum::response::Response;
use serde_json::json;

use super::super::adapters::{may, put, take};
use super::super::answer::answer;
use super::super::app::App;
use super::super::body::read_any;
use super::super::caller::Caller;
use super::super::fault::Fault;
use super::super::fields::Fields;
use crate::embeddings::Embeddings;
use crate::keeper::{Adapters, Wish};
use crate::kserve::attention::NAME as ATTENTION;

/// The longest body.
const MAX_BODY: usize = 1 << 16;

/// The parameters of a request, which may have no body.
fn parameters(body: &[u8]) -> Result<Fields, Fault> {
    let mut fields = Fields::read(if body.is_empty() { b"{}" } else { body })?;
    let parameters = Fields::within("parameters", fields.take("parameters").unwrap_or_else(|| json!({})))?;
    fields.end()?;
    Ok(parameters)
}

/// Loads the adapter below the server's adapter root that `lora_path` names, by default the model's own name; or unloads one.
///
/// # Errors
/// No such route; loading is off; a key without the right; what is served for as long as the server runs; what is no adapter of the model.
pub async fn change(State(app): State<Arc<App>>, caller: Caller, Path(path): Path<String>, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let no_route = || Fault::no_route(parts.uri.path());
    let (name, action) = path.rsplit_once('/').filter(|(_, action)| ["load", "unload"].contains(action)).ok_or_else(no_route)?;
    may(&app, &caller, parts.uri.path())?;
    let body = read_any(&app, &parts.headers, body, MAX_BODY, &["application/json"]).await?;
    let mut parameters = parameters(&body.bytes)?;
    let model: &dyn Adapters = app.embeddings.as_ref().map(Embeddings::adapters).ok_or_else(no_route)?;
    if name == model.base() || (name == ATTENTION && app.operations.is_some()) {
        return Err(Fault::taken("name", format!("{name:?} is no adapter: it is served for as long as the server runs")));
    }
    if action == "load" {
        let path = parameters.string("lora_path")?.unwrap_or_else(|| name.to_owned());
        let entry = parameters.string("entry")?.unwrap_or_else(|| name.to_owned());
        parameters.end()?;
        // Who loads what is there wants it anew.
        let wish = Wish { alias: name.to_owned(), replace: true, expected: None };
        put(&app, model.base().to_owned(), wish, (path, entry), None, &[name.to_owned()]).await?;
    } else {
        parameters.ignore("unload_dependents");
        parameters.end()?;
        take(&app, model, name, None).await?;
    }
    answer(&json!({}))
}
