//! The adapters of a run: a bundle, or PEFT folders as they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::encode::{EncodeOptions, encode};
use trifuse::adapters::encoded::{Population, Rung};
use trifuse::adapters::engine::AdapterId;
use trifuse::adapters::peft::{LoraAdapter, adapter_folders};
use trifuse::backend::Backend;
use trifuse::model::Encoder;
use trifuse::{Error, Result};

use crate::cli::compress::sources;
use crate::cli::warnings::bases;

/// Adapters by name: attached, or why not.
#[derive(Debug, Default)]
pub struct Adapters {
    attached: BTreeMap<String, AdapterId>,
    refused: BTreeMap<String, String>,
    /// What is to be known of those that are attached.
    notes: Vec<String>,
}

impl Adapters {
    /// Attaches what lies at `paths`. An adapter that cannot be used is left out, and its lines say why.
    ///
    /// # Errors
    /// Paths that hold no adapters; a bundle among other things; no device memory.
    pub fn attach<B: Backend>(encoder: &mut Encoder<B>, model: &Path, paths: &[PathBuf]) -> Result<Self> {
        match paths {
            [] => Ok(Self::default()),
            [path] if path.is_file() => Self::bundle(encoder, path),
            _ => Self::folders(encoder, model, paths),
        }
    }

    fn bundle<B: Backend>(encoder: &mut Encoder<B>, path: &Path) -> Result<Self> {
        let bundle = Bundle::open(path)?;
        let names: Vec<String> = bundle.adapters().map(str::to_owned).collect();
        for (projection, shared) in bundle.projections() {
            if let Err(error) = encoder.config().fits(projection, [shared.d_out as u64, shared.d_in as u64]) {
                // One bundle has one shape for all: none of its adapters fits.
                return Ok(Self { refused: names.into_iter().map(|name| (name, error.to_string())).collect(), ..Self::default() });
            }
        }
        encoder.attach(Box::new(bundle))?;
        Self::named(encoder, BTreeMap::new())
    }

    fn folders<B: Backend>(encoder: &mut Encoder<B>, model: &Path, paths: &[PathBuf]) -> Result<Self> {
        let (mut usable, mut refused) = (Vec::new(), BTreeMap::new());
        for path in paths {
            for found in adapter_folders(path)? {
                let name = found.name.clone();
                match found.open().and_then(|adapter| fitting(encoder, adapter)) {
                    Ok(adapter) if usable.iter().any(|other: &LoraAdapter| other.name == adapter.name) => {
                        return Err(Error::invalid("adapters", "adapters of different names", format!("{name:?} twice")));
                    }
                    Ok(adapter) => usable.push(adapter),
                    Err(error) => drop(refused.insert(name, error.to_string())),
                }
            }
        }
        if usable.is_empty() {
            return Ok(Self { refused, ..Self::default() });
        }
        let (usable, population) = encodable(usable, &mut refused)?;
        encoder.attach(Box::new(population))?;
        Ok(Self { notes: notes(&usable, model), ..Self::named(encoder, refused)? })
    }

    fn named<B: Backend>(encoder: &Encoder<B>, mut refused: BTreeMap<String, String>) -> Result<Self> {
        refused.extend(encoder.engine().into_iter().flat_map(|engine| engine.refused()).map(|(name, why)| (name.to_owned(), why.to_string())));
        let attached = encoder.engine().map(|engine| engine.adapters().map(|(name, id)| (name.to_owned(), id)).collect());
        Ok(Self { attached: attached.unwrap_or_default(), refused, notes: Vec::new() })
    }

    /// The adapter of that name, or why a line cannot have it.
    pub fn get(&self, name: &str) -> Result<AdapterId, String> {
        match (self.attached.get(name), self.refused.get(name)) {
            (Some(id), _) => Ok(*id),
            (None, Some(reason)) => Err(format!("adapter {name:?} cannot be used: {reason}")),
            (None, None) if self.attached.is_empty() && self.refused.is_empty() => {
                Err(format!("adapter: expected none, as no --adapters are given, found {name:?}"))
            }
            (None, None) => {
                let more = self.attached.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let some: Vec<&str> = self.attached.keys().take(NAMED).map(String::as_str).collect();
                Err(format!("adapter: expected one of {}{more}, found {}", some.join(", "), brief(name)))
            }
        }
    }

    /// What is to be known of those that are attached.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adapters that are attached, sorted by name.
    #[cfg(feature = "serve")]
    pub fn attached(&self) -> impl Iterator<Item = (&str, AdapterId)> {
        self.attached.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Adapters that are left out, and why.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &str)> {
        self.refused.iter().map(|(name, reason)| (name.as_str(), reason.as_str()))
    }
}

/// Names of adapters that the refusal of a line holds at most: a line must not cost the names of all, nor tell them.
const NAMED: usize = 5;

/// The name a line gave, cut where it is long: it is told once for each line.
fn brief(name: &str) -> String {
    match name.char_indices().nth(200) {
        Some((end, _)) => format!("{:?}…", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// The adapters that can be encoded, and what they are encoded as. One that cannot is `refused`, with the reason.
fn encodable(usable: Vec<LoraAdapter>, refused: &mut BTreeMap<String, String>) -> Result<(Vec<LoraAdapter>, Population)> {
    let plain = EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() };
    let encoded = |adapters: &[LoraAdapter]| encode(&sources(adapters), &plain, &|_, _| {});
    let fault = match encoded(&usable) {
        Ok(population) => return Ok((usable, population)),
        Err(fault) => fault,
    };
    // Whose fault it is shows where each is encoded alone.
    let (mut sound, mut found) = (Vec::new(), false);
    for adapter in usable {
        match encoded(std::slice::from_ref(&adapter)) {
            Ok(_) => sound.push(adapter),
            Err(error) => {
                found = true;
                refused.insert(adapter.name, error.to_string());
            }
        }
    }
    match (found, sound.is_empty()) {
        (false, _) => Err(fault),
        (true, true) => Ok((sound, Population { projections: BTreeMap::new(), adapters: BTreeMap::new() })),
        (true, false) => encoded(&sound).map(|population| (sound, population)),
    }
}

/// Base models that differ among the adapters, or from `model` where that is a name and no folder: shapes may agree where weights do not.
fn notes(adapters: &[LoraAdapter], model: &Path) -> Vec<String> {
    let named = || adapters.iter().map(|adapter| (adapter.name.as_str(), &adapter.config));
    let other = |base: &str| base.contains('/') && !Path::new(base).exists() && Path::new(base) != model;
    let foreign = named().filter_map(|(name, config)| Some((name, config["base_model_name_or_path"].as_str().filter(|base| other(base))?)));
    let foreign = foreign.filter(|_| !model.is_dir()).map(|(name, base)| format!("adapter {name} names the base model {base}, not {}", model.display()));
    bases(named()).into_iter().chain(foreign).collect()
}

/// The adapter, unless it is for another model.
fn fitting<B: Backend>(encoder: &Encoder<B>, adapter: LoraAdapter) -> Result<LoraAdapter> {
    for (path, lora) in &adapter.modules {
        encoder.config().fits(path, [lora.b.rows as u64, lora.a.cols as u64])?;
    }
    Ok(adapter)
}
