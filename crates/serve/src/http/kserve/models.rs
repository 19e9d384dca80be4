//! `GET /v2/models/{model}[/versions/{version}][/ready|/stats]`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::answer;
use super::super::app::App;
use super::super::fault::Fault;
use super::named::{Named, named, names};
use crate::kserve::reply::VERSION;
use crate::kserve::target::{Action, Target};
use crate::stats::{Count, Counts};

/// What is asked of a model, other than an answer; of all models where the path is `stats`.
///
/// # Errors
/// There is no such model; it is not ready where that is asked.
pub async fn get(State(app): State<Arc<App>>, Path(path): Path<String>) -> Result<Response, Fault> {
    if path == "stats" {
        let all: Vec<Value> = names(&app).iter().map(|name| stats(name, app.stats.of(name))).collect();
        return answer(&json!({"model_stats": all}));
    }
    let target = Target::read(&path);
    let named = named(&app, &target)?;
    match target.action {
        Action::Metadata => answer(&card(target.model, description(&named))),
        Action::Stats => answer(&json!({"model_stats": [stats(target.model, app.stats.of(target.model))]})),
        Action::Ready => {
            named.is_open()?;
            answer(&json!({"name": target.model, "ready": true}))
        }
        Action::Infer => Err(Fault::only("POST")),
    }
}

/// An input or an output: its name, its type, and its dimensions, -1 where any will do.
pub type Told = (&'static str, &'static str, Vec<i64>);

/// What a model is.
pub struct Described {
    /// What computes it.
    pub platform: &'static str,
    /// Its inputs.
    pub inputs: Vec<Told>,
    /// Its outputs.
    pub outputs: Vec<Told>,
    /// The generation of the adapter, of one that is an adapter.
    pub generation: Option<String>,
}

/// What a model is.
pub fn description(named: &Named<'_>) -> Described {
    match named {
        Named::Embeds(embeddings, lease) => Described {
            platform: "trifuse_encoder",
            inputs: vec![("ids", "INT32", vec![-1, -1]), ("lengths", "INT32", vec![-1])],
            outputs: vec![("embedding", "FP32", vec![-1, embeddings.width as i64])],
            generation: lease.as_ref().map(|lease| lease.content.clone()),
        },
        // The protocol has one type a tensor; FP32 and BF16 are taken as well, as documentation says.
        Named::Attends(_) => Described {
            platform: "trifuse_operation",
            inputs: vec![
                ("q", "FP16", vec![-1; 4]),
                ("k", "FP16", vec![-1; 4]),
                ("v", "FP16", vec![-1; 4]),
                ("block_map", "UINT8", vec![-1; 3]),
                ("row_ptr", "INT32", vec![-1; 2]),
                ("col_idx", "INT32", vec![-1]),
            ],
            outputs: vec![("o", "FP16", vec![-1; 4]), ("checksum", "UINT64", vec![1])],
            generation: None,
        },
    }
}

fn card(name: &str, described: Described) -> Value {
    let tensors = |tensors: Vec<Told>| -> Vec<Value> {
        tensors.into_iter().map(|(name, datatype, shape)| json!({"name": name, "datatype": datatype, "shape": shape})).collect()
    };
    let Described { platform, inputs, outputs, generation } = described;
    let mut told = json!({"name": name, "versions": [VERSION], "platform": platform, "inputs": tensors(inputs), "outputs": tensors(outputs)});
    if let Some(generation) = generation {
        told["parameters"] = json!({"adapter_generation": generation});
    }
    told
}

fn stats(name: &str, counts: Counts) -> Value {
    let of = |Count { count, ns }: Count| json!({"count": count, "ns": ns});
    json!({"name": name, "version": VERSION, "last_inference": counts.last_ms, "inference_count": counts.success.count,
        "inference_stats": {"success": of(counts.success), "fail": of(counts.fail), "queue": of(counts.queue), "compute_infer": of(counts.compute)}})
}
