//! The methods that are served, and what each of them answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::framing::framed;
use super::messages::{Empty, Health, HealthCheck, ModelMetadata, ModelName, Ready, ServerLive, ServerMetadata, TensorMetadata};
use super::reply;
use super::request::Named;
use super::status::Status;
use crate::http::app::App;
use crate::http::body::Held;
use crate::http::caller::Caller;
use crate::http::fault::Fault;
use crate::http::kserve::answer::answer;
use crate::http::kserve::ask::Ask;
use crate::http::kserve::models::{Described, description};
use crate::http::kserve::named::{asked, named};
use crate::http::kserve::server::{extensions, is_ready};
use crate::kserve::reply::VERSION;
use crate::kserve::target::{Action, Target};
use crate::queueing::registry::NotThere;

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Whether the server runs.
    ServerLive,
    /// Whether the server answers.
    ServerReady,
    /// Whether a model answers.
    ModelReady,
    /// What the server is.
    ServerMetadata,
    /// What a model is.
    ModelMetadata,
    /// An answer.
    ModelInfer,
    /// Whether the server answers, by the protocol of health checks.
    Check,
}

/// The service of the open inference protocol.
const SERVICE: &str = "inference.GRPCInferenceService";
/// Every method by its path.
const ALL: [(&str, Method); 7] = [
    ("/grpc.health.v1.Health/Check", Method::Check),
    ("/inference.GRPCInferenceService/ModelInfer", Method::ModelInfer),
    ("/inference.GRPCInferenceService/ModelMetadata", Method::ModelMetadata),
    ("/inference.GRPCInferenceService/ModelReady", Method::ModelReady),
    ("/inference.GRPCInferenceService/ServerLive", Method::ServerLive),
    ("/inference.GRPCInferenceService/ServerMetadata", Method::ServerMetadata),
    ("/inference.GRPCInferenceService/ServerReady", Method::ServerReady),
];
/// The longest message of a method that asks for no answer of a model.
const SMALL: usize = 64 << 10;

impl Method {
    /// The method of a path, and the path as metrics name it.
    pub fn of(path: &str) -> Option<(&'static str, Self)> {
        ALL.into_iter().find(|(known, _)| *known == path)
    }

    /// Whether it tells of models, so that keys guard it.
    pub fn is_guarded(self) -> bool {
        matches!(self, Self::ModelReady | Self::ModelMetadata | Self::ModelInfer)
    }

    /// The most bytes of its message.
    pub fn most(self, app: &App) -> usize {
        if self == Self::ModelInfer { app.config.limits.body_bytes } else { SMALL }
    }

    /// Answers a message that came at `began`.
    ///
    /// # Errors
    /// A message that is not sound; those of the model.
    pub async fn answer(self, app: &Arc<App>, caller: Caller, began: Duration, held: Held) -> Result<Bytes, Status> {
        match self {
            Self::ServerLive => framed(&read::<Empty, _>(&held, |_| ServerLive { live: true })?),
            Self::ServerReady => framed(&read::<Empty, _>(&held, |_| Ready { ready: is_ready(app).is_ok() })?),
            Self::Check => {
                let service = read::<HealthCheck, _>(&held, |check| check.service)?;
                if !service.is_empty() && service != SERVICE {
                    return Err(Fault::no_model("service", &service, &NotThere { names: vec![SERVICE.to_owned()], more: 0 }).into());
                }
                framed(&Health { status: if is_ready(app).is_ok() { 1 } else { 2 } })
            }
            Self::ServerMetadata => {
                let extensions = extensions(app).into_iter().map(str::to_owned).collect();
                let told = ServerMetadata { name: "trifuse".into(), version: env!("CARGO_PKG_VERSION").into(), extensions };
                framed(&read::<Empty, _>(&held, |_| told)?)
            }
            Self::ModelReady => {
                let ModelName { name, version } = read(&held, |name| name)?;
                let ready = named(app, &target(&name, &version))?.is_open().is_ok();
                framed(&Ready { ready })
            }
            Self::ModelMetadata => {
                let ModelName { name, version } = read(&held, |name| name)?;
                let described = description(&named(app, &target(&name, &version))?);
                framed(&metadata(name, described))
            }
            Self::ModelInfer => infer(app, caller, began, held).await,
        }
    }
}

fn read<M: Message + Default, T>(held: &Held, of: impl FnOnce(M) -> T) -> Result<T, Status> {
    let unsound = |error| Fault::expected("message", "one of this method", error);
    Ok(of(M::decode(held.bytes.clone()).map_err(unsound)?))
}

fn target<'a>(model: &'a str, version: &'a str) -> Target<'a> {
    Target { model, version: (!version.is_empty()).then_some(version), action: Action::Metadata }
}

fn metadata(name: String, described: Described) -> ModelMetadata {
    let tensors = |tensors: &[(&str, &str, Vec<i64>)]| {
        let one =
            |(name, datatype, shape): &(&str, &str, Vec<i64>)| TensorMetadata { name: (*name).into(), datatype: (*datatype).into(), shape: shape.clone() };
        tensors.iter().map(one).collect()
    };
    let Described { platform, inputs, outputs, generation } = described;
    let properties = generation.map(|generation| ("adapter_generation".to_owned(), generation)).into_iter().collect();
    ModelMetadata { name, versions: vec![VERSION.into()], platform: platform.into(), inputs: tensors(&inputs), outputs: tensors(&outputs), properties }
}

async fn infer(app: &Arc<App>, caller: Caller, began: Duration, held: Held) -> Result<Bytes, Status> {
    let message = held.bytes.clone();
    let Named { model, version, request } = if message.len() <= SMALL {
        Named::read(message).map_err(Fault::from)?
    } else {
        // More bytes are read beside the connections.
        app.aside(move || Named::read(message)).await?.map_err(Fault::from)?
    };
    let named = asked(app, &target(&model, version.as_deref().unwrap_or_default())).await?;
    let ask = Ask::new(app, caller, began, &model, request, held);
    answer(ask, named, began, |reply| Ok(framed(&reply::message(reply)))).await?
}
