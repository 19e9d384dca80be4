//! Times of a projection in two factors by their rank: ours, and a peer's where the ledger of a hunt has them.

use std::collections::BTreeSet;
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use trifuse::Result;
use trifuse::shrink::profile::Profile;
use trifuse_cli::bench::hunt::Line;
use trifuse_cli::bench::shrunk::{ByRank, Series, by_rank};

use super::sheet::{Area, Drawn, GRID, colour, sheet, short, time_unit};

/// Panels that one picture has room for.
const MOST: usize = 12;
/// Pixels that an entry of the legend takes.
const ENTRY: i32 = 250;
/// Ranks that have room beside each other, each with its name.
const NAMED: usize = 8;
/// How far apart times of one rank are then drawn, as a share of a rank's room.
const APART: f64 = 0.22;

/// Where ranks stand: a few beside each other, since two that differ by one may differ in time most; many as far apart as they are.
struct Axis {
    ranks: Vec<u64>,
    named: bool,
}

/// The axis as the chart asks for it: along `line`, with labels at these places.
struct Labelled {
    line: RangedCoordf64,
    labels: Vec<f64>,
}

impl Ranged for Labelled {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.line.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        self.line.range()
    }
}

impl Axis {
    fn of(panel: &ByRank) -> Self {
        let ranks: BTreeSet<u64> = panel.series.values().flatten().map(|point| point.0).collect();
        Self { named: ranks.len() <= NAMED, ranks: ranks.into_iter().collect() }
    }

    /// Both ends, with room beside the outermost ranks.
    fn ends(&self) -> [f64; 2] {
        if self.named {
            return [-0.5, self.ranks.len() as f64 - 0.5];
        }
        let [least, most] = [self.ranks.first(), self.ranks.last()].map(|rank| rank.copied().unwrap_or(0) as f64);
        let room = ((most - least) * 0.03).max(1.0);
        [least - room, most + room]
    }

    /// Where labels stand.
    fn labels(&self) -> Vec<f64> {
        let [low, high] = self.ends();
        if self.named { (0..self.ranks.len()).map(|place| place as f64).collect() } else { RangedCoordf64::from(low..high).key_points(7usize) }
    }

    fn label(&self, at: f64) -> String {
        let rank = self.ranks.get(at.round() as usize).filter(|_| self.named);
        rank.map_or_else(|| format!("{at:.0}"), u64::to_string)
    }

    /// The place of a rank's time, of the series of that number among so many.
    fn place(&self, rank: u64, number: usize, of: usize) -> f64 {
        match self.ranks.binary_search(&rank) {
            Ok(place) if self.named => place as f64 + APART * (number as f64 - (of as f64 - 1.0) / 2.0),
            _ => rank as f64,
        }
    }
}

/// The picture; nothing where the profile holds no rank.
pub fn picture(profile: &Profile, lines: &[Line]) -> Result<Option<String>> {
    let all: Vec<ByRank> = by_rank(profile, lines).into_iter().filter(|panel| !panel.series.is_empty()).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let panels = &all[..all.len().min(MOST)];
    let keys: BTreeSet<Series> = panels.iter().flat_map(|panel| panel.series.keys()).copied().collect();
    let (columns, rows) = (panels.len().min(3), panels.len().div_ceil(3));
    let more = if all.len() > MOST { format!("; the first {MOST} of {} panels", all.len()) } else { String::new() };
    let below = format!("{}, {}; dashed: the whole matrix{more}", profile.device, profile.dtype);
    let size = ((60 + 400 * columns as u32).max(60 + ENTRY as u32 * keys.len() as u32), 115 + 280 * rows as u32);
    sheet(size, "Time by rank: the two products of a projection", &below, |area| {
        let (top, rest) = area.split_vertically(22);
        for (place, &series) in (0..).zip(&keys) {
            top.draw(&Circle::new((14 + place * ENTRY, 8), 4, colour(series as usize).filled()))?;
            top.draw_text(series.name(), &("sans-serif", 12).into_text_style(&top), (24 + place * ENTRY, 4))?;
        }
        let areas = rest.split_evenly((rows, columns));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| draw(area, panel))
    })
    .map(Some)
}

fn draw(area: &Area, panel: &ByRank) -> Drawn {
    let axis = Axis::of(panel);
    let [low, high] = axis.ends();
    let times = panel.series.values().flatten().map(|point| point.1).chain(panel.whole.values().copied());
    let longest = times.fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let [d_out, d_in] = panel.shape;
    let rows = if panel.rows == 1 { "1 row".to_owned() } else { format!("{} rows", panel.rows) };
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{d_in} to {d_out}, {rows}"), ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(Labelled { line: (low..high).into(), labels: axis.labels() }, 0.0..longest / factor * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .y_labels(6)
        .x_desc("rank")
        .y_desc(unit)
        .x_label_formatter(&|&at| axis.label(at))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (&series, &seconds) in &panel.whole {
        let ends = [low, high].map(|at| (at, seconds / factor));
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, colour(series as usize).stroke_width(1)))?;
    }
    let radius = if axis.named { 4 } else { 2 };
    for (number, (&series, points)) in panel.series.iter().enumerate() {
        let places = points.iter().map(|&(rank, seconds)| (axis.place(rank, number, panel.series.len()), seconds / factor));
        // Points, and no line: between two ranks there may be a step.
        chart.draw_series(places.map(|at| Circle::new(at, radius, colour(series as usize).filled())))?;
    }
    Ok(())
}
