//! An adapter's folder, or a population of them: every key and tensor used, ignored or refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use trifuse::adapters::peft::{Finding, FindingKind, Inspection, Verdict, adapter_folders};
use trifuse::{DType, Error, Result};

use crate::cli::Outcome;
use crate::cli::output::{Output, Page, Report, Tone, bytes};

/// The result.
#[derive(Debug, Serialize)]
struct Folders<'a> {
    kind: &'static str,
    path: &'a Path,
    /// Whether every adapter can be used.
    usable: bool,
    adapters: Vec<Adapter>,
    /// Whether people see what is ignored too; programs get all.
    #[serde(skip)]
    all: bool,
}

/// One adapter's folder.
#[derive(Debug, Serialize)]
struct Adapter {
    name: String,
    folder: PathBuf,
    usable: bool,
    /// Modules with a sound pair of factors.
    modules: usize,
    /// Every rank among them.
    ranks: BTreeSet<usize>,
    /// Every element type among them.
    dtypes: Vec<DType>,
    /// Bytes of the factors.
    bytes: u64,
    /// Why it cannot be used; empty where it can.
    faults: Vec<String>,
    findings: Vec<Finding>,
}

/// Looks into every folder; ends with "bad input" where one cannot be used.
pub fn run(path: &Path, all: bool, output: &Output) -> Result<Outcome> {
    let adapters: Vec<Adapter> = adapter_folders(path)?.into_iter().map(|found| Adapter::new(found.inspect())).collect();
    let usable = adapters.iter().all(|adapter| adapter.usable);
    output.report(&Folders { kind: "adapters", path, usable, adapters, all })?;
    Ok(if usable { Outcome::Right } else { Outcome::BadInput })
}

impl Adapter {
    fn new(found: Inspection) -> Self {
        let mut dtypes: Vec<DType> = Vec::new();
        for lora in found.modules.values() {
            if !dtypes.contains(&lora.dtype) {
                dtypes.push(lora.dtype);
            }
        }
        Self {
            name: found.name,
            folder: found.folder,
            usable: found.faults.is_empty(),
            modules: found.modules.len(),
            ranks: found.modules.values().map(|lora| lora.rank()).collect(),
            dtypes,
            bytes: found.modules.values().map(|lora| lora.bytes()).sum(),
            faults: found.faults.iter().map(Error::to_string).collect(),
            findings: found.findings,
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    fn verdict(&self, page: &Page) -> String {
        if self.usable { page.tone(Tone::Good, "usable") } else { page.tone(Tone::Bad, "refused") }
    }

    fn list(values: impl Iterator<Item = impl ToString>) -> String {
        values.map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The verdict, and the keys and tensors that it rests on, or all.
    fn details(&self, page: &mut Page, all: bool) -> std::fmt::Result {
        let (used, ignored, refused) = (self.count(Verdict::Used), self.count(Verdict::Ignored), self.count(Verdict::Refused));
        let modules = match self.modules {
            0 => "no sound module".into(),
            count => format!("{count} modules of rank {} in {}, {}", Self::list(self.ranks.iter()), Self::list(self.dtypes.iter()), bytes(self.bytes)),
        };
        let [folder, verdict] = [self.folder.display().to_string(), self.verdict(page)];
        page.line(format_args!("{folder}: {verdict}; {modules}; {used} keys and tensors used, {ignored} ignored, {refused} refused"))?;
        let told = |finding: &&Finding| all || finding.verdict != Verdict::Ignored || finding.is_unknown_key();
        let rows: Vec<Vec<String>> = self.findings.iter().filter(told).map(|finding| row(page, finding)).collect();
        let hidden = self.findings.len() - rows.len();
        if !rows.is_empty() {
            page.table(&["verdict", "key or tensor", "value or shape", "why"], &[], rows)?;
        }
        if hidden > 0 { page.line(format_args!("{hidden} keys and tensors that it means the same without: --all")) } else { Ok(()) }
    }
}

fn row(page: &Page, finding: &Finding) -> Vec<String> {
    let verdict = match finding.verdict {
        Verdict::Used => page.tone(Tone::Good, "used"),
        Verdict::Ignored => page.tone(Tone::Faint, "ignored"),
        Verdict::Refused => page.tone(Tone::Bad, "refused"),
    };
    let name = match finding.kind {
        FindingKind::Key => format!("key {}", finding.name),
        FindingKind::Tensor => finding.name.clone(),
    };
    vec![verdict, name, finding.content.clone(), finding.reason.clone()]
}

impl Report for Folders<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        if let [adapter] = self.adapters.as_slice() {
            adapter.details(page, self.all)?;
        } else {
            let head = ["adapter", "", "modules", "rank", "type", "bytes", "used", "ignored", "refused"];
            let rows = self.adapters.iter().map(|adapter| {
                let counts = [Verdict::Used, Verdict::Ignored, Verdict::Refused].map(|verdict| adapter.count(verdict).to_string());
                let mut row = vec![
                    adapter.name.clone(),
                    adapter.verdict(page),
                    adapter.modules.to_string(),
                    Adapter::list(adapter.ranks.iter()),
                    Adapter::list(adapter.dtypes.iter()),
                    bytes(adapter.bytes),
                ];
                row.extend(counts);
                row
            });
            let rows: Vec<_> = rows.collect();
            page.table(&head, &[2, 5, 6, 7, 8], rows)?;
            let total = self.adapters.iter().map(|adapter| adapter.bytes).sum();
            page.line(format_args!("{} adapters, {}; every key and tensor of one: give its folder; of all: --json", self.adapters.len(), bytes(total)))?;
        }
        for fault in self.adapters.iter().flat_map(|adapter| &adapter.faults) {
            page.line(format_args!("{} {fault}", page.tone(Tone::Bad, "refused:")))?;
        }
        Ok(())
    }
}
