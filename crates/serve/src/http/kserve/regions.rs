//! `/v2/trifuse/regions`: memory of the device that queries name, so that their tensors are sent once.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::answer;
use super::super::app::App;
use super::super::body::{read_any, room};
use super::super::caller::Caller;
use super::super::fault::Fault;
use super::places::done;
use crate::operations::Operations;
use crate::operations::regions::{Part, Region, Regions};
use crate::operations::task::{Job, Task};

/// The query of a path: whole numbers by names.
struct Numbers(Vec<(String, u64)>);

impl Numbers {
    fn read(uri: &Uri, names: &[&str]) -> Result<Self, Fault> {
        let mut found: Vec<(String, u64)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let number = pair.split_once('=').and_then(|(name, value)| Some((name, value.parse::<u64>().ok()?)));
            let known = number.filter(|(name, _)| names.contains(name) && !found.iter().any(|(known, _)| known == name));
            let (name, number) = known.ok_or_else(|| Fault::expected("query", &format!("{} with whole numbers, each once", names.join(", ")), "another"))?;
            found.push((name.to_owned(), number));
        }
        Ok(Self(found))
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, number)| *number)
    }
}

fn operations(app: &App) -> Result<&Operations, Fault> {
    app.operations.as_ref().ok_or_else(|| Fault::no_route("/v2/trifuse/regions"))
}

fn card(name: &str, bytes: u64) -> Value {
    json!({"name": name, "byte_size": bytes})
}

fn found(operations: &Operations, caller: &Caller, name: &str) -> Result<Arc<Region>, Fault> {
    operations.regions.get(caller.tenant.number, name).ok_or_else(|| Fault::no_region(name))
}

fn part(region: &Arc<Region>, offset: u64, bytes: u64) -> Result<Part, Fault> {
    let found = format!("{bytes} bytes from {offset}");
    Part::of(region, offset, bytes).ok_or_else(|| Fault::expected("offset", &format!("a part of the {} bytes of the region", region.bytes()), found))
}

/// The caller's regions, and what all regions take.
///
/// # Errors
/// There are no regions here.
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Fault> {
    let regions = &operations(&app)?.regions;
    let cards: Vec<Value> = regions.list(caller.tenant.number).iter().map(|(name, bytes)| card(name, *bytes)).collect();
    answer(&json!({"regions": cards, "used_byte_size": regions.used(), "max_byte_size": regions.most()}))
}

/// A region's description.
///
/// # Errors
/// There is no such region.
pub async fn one(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Result<Response, Fault> {
    answer(&card(&name, found(operations(&app)?, &caller, &name)?.bytes()))
}

/// A region's bytes; with `offset` and `byte_size` a part of them.
///
/// # Errors
/// There is no such region, or not as much of it; more than an answer may have.
pub async fn bytes(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>, uri: Uri) -> Result<Response, Fault> {
    let operations = operations(&app)?;
    let numbers = Numbers::read(&uri, &["offset", "byte_size"])?;
    let region = found(operations, &caller, &name)?;
    let offset = numbers.get("offset").unwrap_or(0);
    let part = part(&region, offset, numbers.get("byte_size").unwrap_or(region.bytes().saturating_sub(offset)))?;
    let most = app.config.limits.region_bytes;
    let size = usize::try_from(part.bytes).ok().filter(|size| *size <= most);
    let size = size.ok_or_else(|| Fault::expected("byte_size", &format!("at most {most} at once"), part.bytes))?;
    let held: Arc<dyn std::any::Any + Send + Sync> = Arc::new(room(&app, size)?);
    let task = Task { job: Job::Read(part), held: Some(Arc::clone(&held)), spent: Arc::clone(caller.account.spent()) };
    let read = done(operations, caller.tenant, caller.deadline(&app.shared), task).await?;
    let mut response = Response::new(Body::from(read.bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}

/// Makes a region of the body's bytes, or of `byte_size` bytes, with zeros behind the body's; one of that name is replaced, and stays for
/// queries that have begun with it. With `offset` the body goes into the region that is there.
///
/// # Errors
/// A name that is none; no room; no such region, or not as much of it.
pub async fn put(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>, request: Request<Body>) -> Result<Response, Fault> {
    let operations = operations(&app)?;
    let (parts, body) = request.into_parts();
    let deadline = caller.deadline(&app.shared);
    let numbers = Numbers::read(&parts.uri, &["offset", "byte_size"])?;
    if !Regions::is_name(&name) {
        return Err(Fault::expected("name", "1 to 128 letters, digits, dots, lines and dashes", "another"));
    }
    if app.shm.get(caller.tenant.number, &name).is_some() {
        return Err(Fault::taken("name", format!("the name {name:?} is shared memory's; unregister that first")));
    }
    let held = read_any(&app, &parts.headers, body, app.config.limits.region_bytes, &["application/octet-stream"]).await?;
    let bytes = held.bytes.clone();
    let sent = bytes.len() as u64;
    let held: Option<Arc<dyn std::any::Any + Send + Sync>> = Some(Arc::new(held));
    let spent = Arc::clone(caller.account.spent());
    let size = match (numbers.get("offset"), numbers.get("byte_size")) {
        (Some(offset), None) => {
            let region = found(operations, &caller, &name)?;
            let task = Task { job: Job::Write(part(&region, offset, sent)?, bytes), held, spent };
            done(operations, caller.tenant, deadline, task).await?;
            return answer(&card(&name, region.bytes()));
        }
        (Some(_), Some(_)) => return Err(Fault::expected("query", "offset or byte_size", "both")),
        (None, size) => size.unwrap_or(sent),
    };
    if size < sent.max(1) {
        return Err(Fault::expected("byte_size", &format!("at least {}, as the body has", sent.max(1)), size));
    }
    let region = operations.regions.reserve(size).map_err(Fault::no_room)?;
    let task = Task { job: Job::Fill(Arc::clone(&region), bytes), held, spent };
    done(operations, caller.tenant, deadline, task).await?;
    operations.regions.name(caller.tenant.number, &name, region);
    answer(&card(&name, size))
}

/// Takes a region's name away; its memory stays for queries that have begun with it.
///
/// # Errors
/// There is no such region.
pub async fn delete(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Result<Response, Fault> {
    match operations(&app)?.regions.remove(caller.tenant.number, &name) {
        true => answer(&json!({"name": name, "deleted": true})),
        false => Err(Fault::no_region(&name)),
    }
}
