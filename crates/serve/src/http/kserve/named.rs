//! What a name leads to: a model that embeds, one of its adapters, or an operation.

use std::sync::Arc;

use super::super::app::App;
use super::super::fault::Fault;
use super::super::leased::leased;
use crate::embeddings::Embeddings;
use crate::kserve::attention::NAME as ATTENTION;
use crate::kserve::reply::VERSION;
use crate::kserve::target::Target;
use crate::line::Copies;
use crate::operations::Operations;
use crate::queueing::registry::{Lease, Model, NotThere};

/// What is asked.
pub enum Named<'a> {
    /// A model that embeds, with an adapter where one is named.
    Embeds(&'a Embeddings, Option<Lease<Copies>>),
    /// Attention.
    Attends(&'a Operations),
}

impl Named<'_> {
    /// Whether it takes requests.
    ///
    /// # Errors
    /// It does not, and why.
    pub fn is_open(&self) -> Result<(), Fault> {
        match self {
            Self::Embeds(embeddings, _) => Ok(embeddings.is_open()?),
            Self::Attends(operations) => Ok(operations.is_open()?),
        }
    }
}

/// Names told at most where one is not there.
const TOLD: usize = 10;

/// Every name.
pub fn names(app: &App) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(embeddings) = &app.embeddings {
        let registry = embeddings.registry();
        names.push(registry.base().to_owned());
        names.extend(registry.adapters().map(|own| own.alias.clone()));
    }
    names.extend(app.operations.is_some().then(|| ATTENTION.to_owned()));
    names
}

/// What the target's name leads to, for who asks it: an adapter that is loaded when it is asked for is there then.
///
/// # Errors
/// Those of [`named`]; an adapter that cannot be loaded.
pub async fn asked<'a>(app: &'a Arc<App>, target: &Target<'_>) -> Result<Named<'a>, Fault> {
    let Some(embeddings) = app.embeddings.as_ref().filter(|_| target.model != ATTENTION) else { return named(app, target) };
    leased(app, embeddings.adapters().base(), || vec![target.model.to_owned()], || named(app, target)).await
}

/// What the target's name leads to.
///
/// # Errors
/// There is no such model, or no such version of it. The base never answers in an adapter's place.
pub fn named<'a>(app: &'a App, target: &Target<'_>) -> Result<Named<'a>, Fault> {
    let missing = |name: &str| {
        let mut names = names(app);
        let more = names.len().saturating_sub(TOLD);
        names.truncate(TOLD);
        Fault::no_model("model", name, &NotThere { names, more })
    };
    if let Some(version) = target.version.filter(|version| *version != VERSION) {
        return Err(Fault::no_model("version", version, &NotThere { names: vec![VERSION.to_owned()], more: 0 }));
    }
    match (&app.operations, &app.embeddings) {
        (Some(operations), _) if target.model == ATTENTION => Ok(Named::Attends(operations)),
        (_, Some(embeddings)) => {
            // The lock is given back here: the names of a fault take it again.
            let leased = embeddings.registry().lease(target.model);
            match leased {
                Ok(Model::Base) => Ok(Named::Embeds(embeddings, None)),
                Ok(Model::Adapter(lease)) => Ok(Named::Embeds(embeddings, Some(lease))),
                Err(_) => Err(missing(target.model)),
            }
        }
        _ => Err(missing(target.model)),
    }
}
