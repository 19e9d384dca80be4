//! `devices`: every backend, its devices or what it lacks, and the one that `auto` takes.

use serde::Serialize;
use trifuse::backends::{self, Choice, Found};
use trifuse::device::{Caps, Kind};
use trifuse::{Error, Result};

use super::Outcome;
use super::output::{Output, Page, Report, Tone, bytes};

/// The result.
#[derive(Debug, Serialize)]
struct Devices {
    /// What `--backend` asked for, and what that means here; nothing where no such device is there.
    chosen: Option<Chosen>,
    /// Why nothing could be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Every backend of the crate, best first.
    backends: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Chosen {
    backend: &'static str,
    device: usize,
    why: String,
}

#[derive(Debug, Serialize)]
struct Entry {
    name: &'static str,
    available: bool,
    /// Why it has no device, and what to install.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    devices: Vec<Caps>,
}

/// Looks, prints, and ends with "no such backend" where the chosen one is not there.
pub fn run(choice: &Choice, output: &Output) -> Result<Outcome> {
    let entries: Vec<Entry> = backends::find().into_iter().map(entry).collect();
    let (chosen, missing) = match choose(choice, &entries) {
        Ok(chosen) => (Some(chosen), None),
        Err(reason) => (None, Some(reason)),
    };
    let outcome = if chosen.is_some() { Outcome::Right } else { Outcome::NoBackend };
    output.report(&Devices { chosen, missing, backends: entries })?;
    Ok(outcome)
}

fn entry(Found { backend, devices }: Found) -> Entry {
    match devices {
        Ok(devices) if devices.is_empty() => Entry { name: backend, available: false, reason: Some("it found no device".into()), devices },
        Ok(devices) => Entry { name: backend, available: true, reason: None, devices },
        Err(error) => Entry { name: backend, available: false, reason: Some(reason(error)), devices: Vec::new() },
    }
}

/// Why, without the backend's name again, which stands beside it.
fn reason(error: Error) -> String {
    match error {
        Error::NoBackend { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// The device that the choice means on this machine, or why there is none.
fn choose(choice: &Choice, entries: &[Entry]) -> Result<Chosen, String> {
    let (backend, device, why) = choice.resolve().map_err(reason)?;
    let Some(entry) = entries.iter().find(|entry| entry.name == backend) else { return Err(format!("{backend} is not in the list of backends")) };
    match (device < entry.devices.len(), &entry.reason) {
        (true, _) => Ok(Chosen { backend, device, why }),
        (false, Some(reason)) => Err(reason.clone()),
        (false, None) => Err(format!("there is no {backend}:{device}: devices are numbered from 0 to {}", entry.devices.len() - 1)),
    }
}

impl Report for Devices {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let head = ["backend", "device", "kind", "memory", "one buffer", "units", "f16", "subgroup", "driver"];
        let mut rows = Vec::new();
        for entry in &self.backends {
            for (index, caps) in entry.devices.iter().enumerate() {
                rows.push(row(page, entry.name, index, caps));
            }
        }
        if !rows.is_empty() {
            page.table(&head, &[3, 4, 5, 7], rows)?;
        }
        for entry in &self.backends {
            if let Some(reason) = &entry.reason {
                page.line(format_args!("{} {reason}", page.tone(Tone::Warning, format_args!("no {}:", entry.name))))?;
            }
        }
        match (&self.chosen, &self.missing) {
            (Some(Chosen { backend, device, why }), _) => {
                page.line(format_args!("{} {backend}:{device}: {why}", page.tone(Tone::Good, "chosen:")))?;
            }
            (None, Some(reason)) => page.line(format_args!("{} {reason}", page.tone(Tone::Bad, "nothing to run on:")))?,
            (None, None) => {}
        }
        Ok(())
    }
}

fn row(page: &Page, backend: &str, index: usize, caps: &Caps) -> Vec<String> {
    let kind = match caps.kind {
        Kind::Cpu if backend != "cpu" => page.tone(Tone::Warning, "software"),
        Kind::Cpu => "processor".into(),
        Kind::Integrated => "integrated GPU".into(),
        Kind::Discrete => "GPU".into(),
        Kind::Other => "other".into(),
    };
    let name = match caps.cuda_arch {
        Some(arch) => format!("{} (sm_{arch})", caps.name),
        None => caps.name.clone(),
    };
    vec![
        format!("{backend}:{index}"),
        name,
        kind,
        caps.memory_bytes.map_or_else(|| "?".into(), bytes),
        bytes(caps.max_buffer_bytes),
        if caps.multiprocessors == 0 { "?".into() } else { caps.multiprocessors.to_string() },
        if caps.f16 { "yes".into() } else { "no".into() },
        caps.subgroup.map_or_else(|| "none".into(), |lanes| lanes.to_string()),
        caps.driver.clone(),
    ]
}
