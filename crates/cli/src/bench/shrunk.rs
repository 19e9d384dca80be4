//! What pictures of shrunk models show: perplexities against times, from what `trifuse eval` wrote, and times by rank, from what `trifuse profile`
//! wrote and from the ledger of a hunt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::hunt::Line;
use super::ranks::{factors, whole};
use super::shape::{Point, Shape, Suite};
use super::stored::MEDIANS;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::read::read_file;
use trifuse::shrink::profile::{Profile, Times};

/// What `trifuse eval` calls the fields of its report.
const FORMAT: &str = "trifuse.llm-eval/1";
/// The longest report of it, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Perplexities that a picture has room for.
const PERPLEXITIES: std::ops::RangeInclusive<f64> = 1.0..=1e9;

/// A report of `trifuse eval --json`, as far as it is needed.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Evaluated {
    pub format: String,
    pub device: Device,
    pub dtype: DType,
    pub ppl: Vec<Text>,
    pub speed: Vec<Speed>,
}

/// The device of a report.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Device {
    pub name: String,
}

/// A text's score by a model.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Text {
    pub model: String,
    pub text: String,
    pub perplexity: f64,
    pub perplexity_ci95: [f64; 2],
}

/// A model's speed with so many requests at once.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Speed {
    pub model: String,
    pub batch: u32,
    pub prompt: u32,
    pub prefill_seconds: f64,
    pub step_ms_p50: f64,
}

impl Evaluated {
    /// Reads what `trifuse eval --json` wrote.
    ///
    /// # Errors
    /// No file, or something else; numbers that no run gives.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| Error::input(path, format!("expected a report of `trifuse eval --suite all --json` ({FORMAT}): {why}"));
        let found: Self = serde_json::from_slice(&read_file(path, MAX_BYTES)?).map_err(|error| wrong(&error))?;
        let perplexities = found.ppl.iter().flat_map(|text| [text.perplexity].into_iter().chain(text.perplexity_ci95));
        let times = found.speed.iter().flat_map(|speed| [speed.prefill_seconds, 1e-3 * speed.step_ms_p50]);
        if found.format != FORMAT {
            return Err(wrong(&format!("found {:?}", found.format)));
        }
        let odd = perplexities.map(|value| (value, PERPLEXITIES)).chain(times.map(|value| (value, MEDIANS))).find(|(value, range)| !range.contains(value));
        match odd {
            Some((value, range)) => Err(wrong(&format!("expected {:e} to {:e}, found {value:e}", range.start(), range.end()))),
            None => Ok(found),
        }
    }
}

/// Models on one text, by one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// The last part of the text's name.
    pub text: String,
    /// What the time is of.
    pub axis: String,
    /// The models.
    pub marks: Vec<Mark>,
}

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The last part of the model's name; with the type, where there are several.
    pub model: String,
    /// Its time.
    pub seconds: f64,
    /// Its perplexity, and the interval of 95 %.
    pub perplexity: [f64; 3],
}

/// The last part of a path.
fn last(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// An axis of time: what it says, the requests at once, and the seconds of a measurement.
type TimeAxis = (String, u32, fn(&Speed) -> f64);

/// For each text, the models against the time of a step with the fewest requests at once, and against that of reading the prompts of the most.
/// Models without a time or a perplexity are left out.
pub fn quality(reports: &[Evaluated]) -> Vec<Quality> {
    let mut texts: Vec<&str> = Vec::new();
    for text in reports.iter().flat_map(|report| &report.ppl) {
        if !texts.contains(&text.text.as_str()) {
            texts.push(&text.text);
        }
    }
    let several = reports.windows(2).any(|pair| pair[0].dtype != pair[1].dtype);
    let batches = || reports.iter().flat_map(|report| &report.speed).map(|speed| speed.batch);
    let (Some(least), Some(most)) = (batches().min(), batches().max()) else { return Vec::new() };
    let prompt = reports.iter().flat_map(|report| &report.speed).map(|speed| speed.prompt).max().unwrap_or(0);
    let axes: [TimeAxis; 2] = [
        (format!("a step of {least} at once"), least, |speed| 1e-3 * speed.step_ms_p50),
        (format!("{most} prompts of {prompt} tokens"), most, |speed| speed.prefill_seconds),
    ];
    let mut panels = Vec::new();
    for text in texts {
        for (axis, batch, of) in &axes {
            let mut marks = Vec::new();
            for report in reports {
                for scored in report.ppl.iter().filter(|scored| scored.text == text) {
                    let [low, high] = scored.perplexity_ci95;
                    let speed = report.speed.iter().find(|speed| speed.model == scored.model && speed.batch == *batch && speed.prompt == prompt);
                    let name = last(&scored.model);
                    let model = if several { format!("{name}, {}", report.dtype) } else { name };
                    marks.extend(speed.map(|speed| Mark { model, seconds: of(speed), perplexity: [scored.perplexity, low, high] }));
                }
            }
            if !marks.is_empty() {
                panels.push(Quality { text: last(text), axis: axis.clone(), marks });
            }
        }
    }
    panels
}

/// A projection's times by the rank of its factors, for one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ByRank {
    /// The projection, `[d_out, d_in]`.
    pub shape: [u64; 2],
    /// Rows of x.
    pub rows: u64,
    /// What is drawn: rank and seconds of both products.
    pub series: BTreeMap<Series, Vec<(u64, f64)>>,
    /// Seconds of the whole matrix.
    pub whole: BTreeMap<Series, f64>,
}

/// Who took a time, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Ours in the profile: the two products again and again, ranks as they lie in memory.
    Profile,
    /// Ours in the hunt: each product by itself, cold caches.
    Ours,
    /// The fastest peer in the hunt, in the same way.
    Peer,
}

impl Series {
    /// The name in a legend.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Profile => "trifuse, one after another",
            Self::Ours => "trifuse, cold caches",
            Self::Peer => "best peer, cold caches",
        }
    }
}

/// The projections, ranks and rows of which a ledger holds both factors, as profiles without a time: one for each device and type. A rank makes its
/// projection smaller. Shapes that were drawn, or measured near another, are no factors.
pub fn factored(lines: &[Line]) -> Vec<Profile> {
    let mut scopes: BTreeMap<(String, &str), BTreeSet<[u64; 3]>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.point.suite == Suite::Linear && line.point.captured && line.drawn.is_none() && line.near.is_none()) {
        if let Shape::Linear { tokens, d_out, d_in, delta: None, layers: 1, .. } = line.point.shape {
            let device = format!("{}: {}", line.scope.backend, line.scope.device);
            scopes.entry((device, line.point.dtype.name())).or_default().insert([tokens, d_out, d_in]);
        }
    }
    let mut profiles = Vec::new();
    for ((device, dtype), products) in scopes {
        let (mut all_rows, mut shapes) = (BTreeSet::new(), BTreeMap::<[u64; 2], BTreeSet<u64>>::new());
        for &[rows, d_out, d_in] in &products {
            let smaller = |rank: u64| u128::from(rank) * (u128::from(d_out) + u128::from(d_in)) < u128::from(d_out) * u128::from(d_in);
            let firsts = products.range([rows, 0, 0]..=[rows, d_out, 0]).filter(|product| product[2] == d_in && smaller(product[1]));
            for &[_, rank, _] in firsts.filter(|product| products.contains(&[rows, d_out, product[1]])) {
                all_rows.insert(rows);
                shapes.entry([d_out, d_in]).or_default().insert(rank);
            }
        }
        let times =
            |(shape, ranks): ([u64; 2], BTreeSet<u64>)| Times { shape, whole: Vec::new(), ranks: ranks.into_iter().map(|rank| (rank, Vec::new())).collect() };
        let shapes: Vec<Times> = shapes.into_iter().map(times).collect();
        if !shapes.is_empty() {
            profiles.push(Profile { format: String::new(), device, dtype: dtype.to_owned(), rows: all_rows.into_iter().collect(), shapes });
        }
    }
    profiles
}

/// Times by rank: a panel for each projection and number of rows. Of the ledger's lines those of the profile's device and type count, and the
/// last one of a shape.
pub fn by_rank(profile: &Profile, lines: &[Line]) -> Vec<ByRank> {
    let mut known: BTreeMap<&str, &Line> = BTreeMap::new();
    for line in lines {
        if format!("{}: {}", line.scope.backend, line.scope.device) == profile.device && line.point.dtype.name() == profile.dtype {
            known.insert(&line.name, line);
        }
    }
    let dtype = [DType::F16, DType::BF16, DType::F32].into_iter().find(|dtype| dtype.name() == profile.dtype);
    let line = |shape: Shape| known.get(Point { suite: Suite::Linear, dtype: dtype?, captured: true, shape }.name().as_str()).copied();
    let mut panels = Vec::new();
    for times in &profile.shapes {
        for (place, &rows) in profile.rows.iter().enumerate() {
            let mut panel = ByRank { shape: times.shape, rows, series: BTreeMap::new(), whole: BTreeMap::new() };
            panel.whole.extend(times.whole.get(place).map(|&seconds| (Series::Profile, seconds)));
            let own = line(whole(times.shape, rows));
            panel.whole.extend(own.and_then(|line| Some((Series::Ours, line.ours?))));
            panel.whole.extend(own.and_then(|line| Some((Series::Peer, line.theirs?))));
            for (&rank, seconds) in &times.ranks {
                let mut put = |series, seconds: Option<f64>| panel.series.entry(series).or_default().extend(seconds.map(|seconds| (rank, seconds)));
                put(Series::Profile, seconds.get(place).copied());
                let both = factors(times.shape, rank, rows).map(&line);
                let sum = |of: fn(&Line) -> Option<f64>| both.iter().map(|line| of((*line)?)).sum::<Option<f64>>();
                put(Series::Ours, sum(|line| line.ours));
                put(Series::Peer, sum(|line| line.theirs));
            }
            panel.series.retain(|_, points| !points.is_empty());
            panels.push(panel);
        }
    }
    panels
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::hunt::{Against, Scope};
    use crate::bench::ranks::points;
    use serde_json::json;

    fn report(dtype: &str, models: &[(&str, f64, f64)]) -> serde_json::Value {
        let ppl: Vec<_> = models
            .iter()
            .flat_map(|(model, perplexity, _)| {
                ["wiki.txt", "c4.txt"].map(|text| {
                    json!({"model": model, "text": text, "perplexity": perplexity, "perplexity_ci95": [perplexity - 0.5, perplexity + 0.5], "seconds": 1})
                })
            })
            .collect();
        let speed: Vec<_> = models
            .iter()
            .flat_map(|(model, _, ms)| {
                [1, 16].map(|batch| json!({"model": model, "batch": batch, "prompt": 128, "answer": 8, "prefill_seconds": 0.5, "step_ms_p50": ms}))
            })
            .collect();
        json!({"schema_version": 1, "command": "eval", "format": FORMAT, "device": {"name": "A"}, "dtype": dtype, "ppl": ppl, "speed": speed})
    }

    fn read(value: &serde_json::Value) -> Result<Evaluated> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), value.to_string()).unwrap();
        Evaluated::read(file.path())
    }

    #[test]
    fn each_text_has_both_times_and_each_model_a_mark() {
        let half = read(&report("f16", &[("models/free-0.9", 25.0, 2.0), ("org/model", 20.0, 3.0)])).unwrap();
        let panels = quality(std::slice::from_ref(&half));
        let told: Vec<(&str, &str)> = panels.iter().map(|panel| (panel.text.as_str(), panel.axis.as_str())).collect();
        let [step, read_prompts] = ["a step of 1 at once", "16 prompts of 128 tokens"];
        assert_eq!(told, [("wiki.txt", step), ("wiki.txt", read_prompts), ("c4.txt", step), ("c4.txt", read_prompts)]);
        assert_eq!(panels[0].marks[0], Mark { model: "free-0.9".into(), seconds: 0.002, perplexity: [25.0, 24.5, 25.5] });
        let both = quality(&[half, read(&report("bf16", &[("models/free-0.9", 26.0, 2.5)])).unwrap()]);
        let names: Vec<&str> = both[0].marks.iter().map(|mark| mark.model.as_str()).collect();
        assert_eq!(names, ["free-0.9, f16", "model, f16", "free-0.9, bf16"]);
    }

    #[test]
    fn what_was_not_timed_is_left_out_and_odd_numbers_are_refused() {
        let mut value = report("f16", &[("a", 25.0, 2.0)]);
        value["speed"] = json!([]);
        assert!(quality(&[read(&value).unwrap()]).is_empty());
        for (place, odd) in [("/ppl/0/perplexity", json!(0.5)), ("/speed/0/step_ms_p50", json!(0)), ("/format", json!("other")), ("/ppl", json!(3))] {
            let mut value = report("f16", &[("a", 25.0, 2.0)]);
            *value.pointer_mut(place).unwrap() = odd;
            assert!(read(&value).unwrap_err().to_string().contains("expected a report of `trifuse eval"), "{place}");
        }
    }

    #[test]
    fn both_products_of_a_rank_are_found_in_the_ledger_of_the_same_device() {
        let profile: Profile = serde_json::from_value(json!({
            "format": "trifuse.profile/1", "device": "cuda: A", "dtype": "f16", "rows": [1, 16],
            "shapes": [{"shape": [64, 96], "whole": [1e-6, 2e-6], "ranks": {"15": [5e-7, 6e-7], "16": [4e-7, 5e-7]}}]
        }))
        .unwrap();
        let asked = points(&profile, DType::F16);
        assert_eq!(asked.len(), 2 * (1 + 2 * 2));
        let line = |point: &Point, device: &str, theirs| {
            let scope = Scope { backend: "cuda".into(), device: device.into(), revision: "1".into(), against: Against::Peers };
            Line { ours: Some(1e-7), theirs, ..Line::of(point.clone(), scope) }
        };
        let lines: Vec<Line> = asked.iter().map(|point| line(point, "A", Some(2e-7))).chain(asked.iter().map(|point| line(point, "B", Some(9.0)))).collect();
        let panels = by_rank(&profile, &lines);
        assert_eq!(panels.len(), 2);
        assert_eq!(panels[0].series[&Series::Profile], [(15, 5e-7), (16, 4e-7)]);
        assert_eq!((&panels[0].series[&Series::Ours], &panels[0].series[&Series::Peer]), (&vec![(15, 2e-7), (16, 2e-7)], &vec![(15, 4e-7), (16, 4e-7)]));
        assert_eq!(panels[1].whole[&Series::Peer], 2e-7);
        // The ledger alone tells of the same ranks, on each device, without the profile's times.
        let found = factored(&lines);
        assert_eq!(
            found.iter().map(|profile| (profile.device.as_str(), &profile.rows)).collect::<Vec<_>>(),
            [("cuda: A", &vec![1, 16]), ("cuda: B", &vec![1, 16])]
        );
        let alone = by_rank(&found[0], &lines);
        assert_eq!(alone[0].series.keys().copied().collect::<Vec<_>>(), [Series::Ours, Series::Peer]);
        assert_eq!(
            (&alone[0].series[&Series::Ours], &alone[1].whole),
            (&panels[0].series[&Series::Ours], &BTreeMap::from([(Series::Ours, 1e-7), (Series::Peer, 2e-7)]))
        );
        assert!(factored(&lines[..2]).is_empty(), "a factor alone is no rank");
        // Half of a rank is none.
        let panels = by_rank(&profile, &lines[..2]);
        assert!(!panels[0].series.contains_key(&Series::Peer) && panels[0].whole.contains_key(&Series::Peer), "{panels:?}");
    }
}
