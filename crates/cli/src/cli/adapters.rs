//! The adapters of a run: a bundle, or PEFT folders as they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::encode::{EncodeOptions, encode};
use trifuse::adapters::encoded::{Population, Rung};
use trifuse::adapters::engine::{AdapterId, AdapterSource, ForModel};
use trifuse::adapters::peft::{LoraAdapter, adapter_folders};
use trifuse::backends::AnyDevice;
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
    /// Attaches what lies at `paths`; with `more`, adapters of any of the model's projections can be added later. An adapter that cannot be used is
    /// left out, and its lines say why.
    ///
    /// # Errors
    /// Paths that hold no adapters; a bundle among other things; no device memory.
    pub fn attach(encoder: &mut Encoder<AnyDevice>, model: &Path, paths: &[PathBuf], more: bool) -> Result<Self> {
        let Found { mut source, refused, notes } = Found::at(paths, model, &|path, shape| encoder.config().fits(path, shape))?;
        if more {
            let config = encoder.config();
            source = Some(Box::new(ForModel::new(source, (0..config.layers).flat_map(|layer| config.projections(layer)))));
        }
        match source {
            None => Ok(Self { refused, ..Self::default() }),
            Some(source) => {
                encoder.attach(source)?;
                Ok(Self { notes, ..Self::named(encoder, refused)? })
            }
        }
    }

    fn named(encoder: &Encoder<AnyDevice>, mut refused: BTreeMap<String, String>) -> Result<Self> {
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

/// Adapters that were found and fit a model, and why others do not.
pub struct Found {
    /// Where they are read from; `None` where there are none.
    pub source: Option<Box<dyn AdapterSource>>,
    pub refused: BTreeMap<String, String>,
    /// What is to be known of those that fit.
    pub notes: Vec<String>,
}

/// Whether a model has a projection of that path and `[d_out, d_in]`, or why not.
type Fits<'a> = &'a dyn Fn(&str, [u64; 2]) -> Result<()>;

impl Found {
    /// What lies at `paths`: a bundle, or adapter folders, which are taken as they are.
    ///
    /// # Errors
    /// Paths that hold no adapters; a bundle among other things; two adapters of one name.
    pub fn at(paths: &[PathBuf], model: &Path, fits: Fits<'_>) -> Result<Self> {
        match paths {
            [] => Ok(Self { source: None, refused: BTreeMap::new(), notes: Vec::new() }),
            [path] if path.is_file() => Self::bundle(path, fits),
            _ => Self::folders(model, paths, fits),
        }
    }

    fn bundle(path: &Path, fits: Fits<'_>) -> Result<Self> {
        let bundle = Bundle::open(path)?;
        let fault = bundle.projections().find_map(|(projection, shared)| fits(projection, [shared.d_out as u64, shared.d_in as u64]).err());
        Ok(match fault {
            // One bundle has one shape for all: none of its adapters fits.
            Some(error) => Self { source: None, refused: bundle.adapters().map(|name| (name.to_owned(), error.to_string())).collect(), notes: Vec::new() },
            None => Self { source: Some(Box::new(bundle)), refused: BTreeMap::new(), notes: Vec::new() },
        })
    }

    fn folders(model: &Path, paths: &[PathBuf], fits: Fits<'_>) -> Result<Self> {
        let (mut usable, mut refused) = (Vec::new(), BTreeMap::new());
        for path in paths {
            for found in adapter_folders(path)? {
                let name = found.name.clone();
                match found.open().and_then(|adapter| fitting(adapter, fits)) {
                    Ok(adapter) if usable.iter().any(|other: &LoraAdapter| other.name == adapter.name) => {
                        return Err(Error::invalid("adapters", "adapters of different names", format!("{name:?} twice")));
                    }
                    Ok(adapter) => usable.push(adapter),
                    Err(error) => drop(refused.insert(name, error.to_string())),
                }
            }
        }
        if usable.is_empty() {
            return Ok(Self { source: None, refused, notes: Vec::new() });
        }
        let (usable, population) = encodable(usable, &mut refused)?;
        Ok(Self { source: Some(Box::new(population)), refused, notes: notes(&usable, model) })
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
fn fitting(adapter: LoraAdapter, fits: Fits<'_>) -> Result<LoraAdapter> {
    for (path, lora) in &adapter.modules {
        fits(path, [lora.b.rows as u64, lora.a.cols as u64])?;
    }
    Ok(adapter)
}
