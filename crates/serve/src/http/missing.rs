//! Names that lead to no model, or to one that another route asks.

use super::app::App;
use super::fault::Fault;
use crate::queueing::registry::NotThere;

/// Names told at most.
const TOLD: usize = 10;

/// The names that are there, for who asked for another.
pub fn not_there(app: &App) -> NotThere {
    let mut names = Vec::new();
    if let Some(embeddings) = &app.embeddings {
        let registry = embeddings.registry();
        names.push(registry.base().to_owned());
        names.extend(registry.adapters().map(|own| own.alias.clone()));
    }
    if let Some(generator) = &app.generator {
        let registry = generator.keeper().names();
        names.push(registry.base().to_owned());
        names.extend(registry.adapters().map(|own| own.alias.clone()));
    }
    let more = names.len().saturating_sub(TOLD);
    names.truncate(TOLD);
    NotThere { names, more }
}

/// Vectors are asked of a name that no model has which embeds; there are these, or no such model. Who holds the names of one that embeds may ask.
pub fn no_vectors(app: &App, param: &str, name: &str, there: Option<&NotThere>) -> Fault {
    let writes = app.generator.as_ref().is_some_and(|generator| generator.keeper().names().lease(name).is_ok());
    match there {
        _ if writes => Fault::other_kind(param, name, "writes text, and gives no vectors", "/v1/completions or /v1/chat/completions"),
        Some(there) => Fault::no_model(param, name, there),
        None => Fault::no_model(param, name, &not_there(app)),
    }
}

/// Text is asked of a name that no model has which writes; there are these, or no such model. Who holds the names of one that writes may ask.
pub fn no_text(app: &App, name: &str, there: Option<&NotThere>) -> Fault {
    let embeds = app.embeddings.as_ref().is_some_and(|embeddings| embeddings.registry().lease(name).is_ok());
    match there {
        _ if embeds => Fault::other_kind("model", name, "gives vectors, and writes no text", "/v1/embeddings"),
        Some(there) => Fault::no_model("model", name, there),
        None => Fault::no_model("model", name, &not_there(app)),
    }
}
