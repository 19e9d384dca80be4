//! Adapters that are loaded when a request first names them.

use std::sync::Arc;

use super::adapters::{model, put};
use super::app::App;
use super::fault::Fault;
use crate::keeper::Wish;

/// How often a name is loaded for one request, where others take its place before the request has it.
const TRIES: usize = 8;

/// The name of an adapter without that of its model.
fn alias<'a>(own: &str, name: &'a str) -> &'a str {
    name.strip_prefix(own).and_then(|rest| rest.strip_prefix(':')).unwrap_or(name)
}

/// What `lease` gives, once the adapters of the model `own` that `names` name are there: those below the adapter root are loaded, where the server loads what is
/// asked for.
///
/// # Errors
/// Those of `lease`; an adapter that cannot be loaded; no room for it beside others that are in use.
pub async fn leased<T>(app: &Arc<App>, own: &str, names: impl FnOnce() -> Vec<String>, lease: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let (Some(most), Some(root)) = (app.config.on_demand, &app.config.adapter_root) else { return lease() };
    let mut wanted: Vec<String> = names().iter().map(|name| alias(own, name).to_owned()).filter(|name| name != own).collect();
    wanted.sort_unstable();
    wanted.dedup();
    for _ in 0..TRIES {
        for name in &wanted {
            let there = model(app, Some(own))?.has(name);
            if there {
                app.demand.asked(own, name);
            } else if root.has(name) {
                let wish = Wish { alias: name.clone(), ..Wish::default() };
                match put(app, own.to_owned(), wish, (name.clone(), name.clone()), None, &wanted).await {
                    Err(fault) if fault.code != "name_taken" => return Err(fault.renamed("lora_path", "model")),
                    // Another request was sooner.
                    _ => {}
                }
            }
        }
        match lease() {
            // What was there had to go before the request had it.
            Err(fault) if fault.code == "model_not_found" && wanted.iter().any(|name| root.has(name)) => {}
            done => return done,
        }
    }
    Err(Fault::crowded(most))
}
