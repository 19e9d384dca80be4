//! `GET /v2/models/{model}[/versions/{version}][/ready|/stats]`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::super::app::App;
use super::super::embeddings::json as answer;
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
        Action::Metadata => answer(&description(target.model, &named)),
        Action::Stats => answer(&json!({"model_stats": [stats(target.model, app.stats.of(target.model))]})),
        Action::Ready => {
            named.is_open()?;
            answer(&json!({"name": target.model, "ready": true}))
        }
        Action::Infer => Err(Fault::only("POST")),
    }
}

fn tensor(name: &str, datatype: &str, shape: &[i64]) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape})
}

fn description(name: &str, named: &Named<'_>) -> Value {
    let (platform, inputs, outputs) = match named {
        Named::Embeds(embeddings, _) => (
            "trifuse_encoder",
            vec![tensor("ids", "INT32", &[-1, -1]), tensor("lengths", "INT32", &[-1])],
            vec![tensor("embedding", "FP32", &[-1, embeddings.width as i64])],
        ),
        // The protocol has one type a tensor; FP32 and BF16 are taken as well, as documentation says.
        Named::Attends(_) => (
            "trifuse_operation",
            vec![
                tensor("q", "FP16", &[-1, -1, -1, -1]),
                tensor("k", "FP16", &[-1, -1, -1, -1]),
                tensor("v", "FP16", &[-1, -1, -1, -1]),
                tensor("block_map", "UINT8", &[-1, -1, -1]),
                tensor("row_ptr", "INT32", &[-1, -1]),
                tensor("col_idx", "INT32", &[-1]),
            ],
            vec![tensor("o", "FP16", &[-1, -1, -1, -1]), tensor("checksum", "UINT64", &[1])],
        ),
    };
    let mut told = json!({"name": name, "versions": [VERSION], "platform": platform, "inputs": inputs, "outputs": outputs});
    if let Named::Embeds(_, Some(lease)) = named {
        told["parameters"] = json!({"adapter_generation": lease.content});
    }
    told
}

fn stats(name: &str, counts: Counts) -> Value {
    let of = |Count { count, ns }: Count| json!({"count": count, "ns": ns});
    json!({"name": name, "version": VERSION, "last_inference": counts.last_ms, "inference_count": counts.success.count,
        "inference_stats": {"success": of(counts.success), "fail": of(counts.fail)}})
}
