//! The speed of attention against the length of its sequence, ours and the peers'.

use std::collections::BTreeMap;

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::stored::{Entry, Peers, Stored};

use super::sheet::{Area, Drawn, GRID, colour, device, legend, prefix, sheet, short};

/// What one line shows: ours first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// A peer's name; none of ours.
    peer: Option<String>,
    form: Form,
}

/// What sequences of several lengths have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Form {
    sizes: String,
    causal: bool,
}

impl Line {
    fn label(&self) -> String {
        format!("{}, {}{}", self.peer.as_deref().unwrap_or("trifuse"), self.form.sizes, if self.form.causal { ", causal" } else { "" })
    }

    /// Whether the other has the same colour: it differs by the mask alone, which the stroke shows.
    fn same_colour(&self, other: &Self) -> bool {
        self.peer == other.peer && self.form.sizes == other.form.sizes
    }
}

/// Lengths and rates by line.
type Lines = BTreeMap<Line, Vec<(u64, f64)>>;

pub fn picture(reports: &[Stored], peers: &[Peers]) -> Result<Option<String>> {
    let Some(report) = reports.iter().find(|report| report.suite == "attention") else { return Ok(None) };
    let mut lines = Lines::new();
    for entry in &report.results {
        let Some(measured) = entry.measured.as_ref().filter(|measured| measured.rates.executed_flops >= 1.0) else { continue };
        let Some((form, length)) = form(entry) else { continue };
        let mut put = |peer: Option<String>, rate: f64| lines.entry(Line { peer, form: form.clone() }).or_default().push((length, rate));
        put(None, measured.rates.executed_flops);
        for peer in peers.iter().flat_map(|peers| peers.of(report, entry)) {
            if let Some(times) = &peer.cold {
                put(Some(peer.peer.clone()), measured.cost.executed_flops / times.median);
            }
        }
    }
    lines.retain(|_, points| points.len() >= 3);
    lines.values_mut().for_each(|points| points.sort_by_key(|point| point.0));
    if lines.keys().all(|line| line.peer.is_some()) {
        return Ok(None);
    }
    let title = "Attention, prefill: executed operations against the length, cold caches";
    sheet((960, 600), title, &device(report), |area| draw(area, &lines)).map(Some)
}

/// The form of a prefill, and its length; nothing of what is no prefill.
fn form(entry: &Entry) -> Option<(Form, u64)> {
    let size = |field| entry.size(field);
    let dense = entry.op == "attention" && entry.more.get("blocks").is_none_or(|blocks| blocks.is_null());
    let length = size("kv_len").filter(|length| dense && *length > 0 && size("q_len") == Some(*length))?;
    let causal = entry.more.get("causal").is_some_and(|causal| causal == true);
    let sizes = format!("b{} h{}/{} d{}", size("batch")?, size("heads")?, size("kv_heads")?, size("head_dim")?);
    Some((Form { sizes, causal }, length))
}

fn draw(area: &Area, lines: &Lines) -> Drawn {
    let every = || lines.values().flatten();
    let (least, most) = every().fold((u64::MAX, 0), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let (factor, unit) = prefix(every().map(|point| point.1).fold(0.0, f64::max));
    let top = every().map(|point| point.1).fold(0.0, f64::max) / factor * 1.1;
    let lengths = (least as f64 / 1.2..most as f64 * 1.2).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(area).x_label_area_size(46).y_label_area_size(70).build_cartesian_2d(lengths, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("tokens of a sequence")
        .y_desc(format!("{unit}FLOP/s"))
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .draw()?;
    let point = |&(length, rate): &(u64, f64)| (length as f64, rate / factor);
    let mut number = 0;
    let mut before: Option<&Line> = None;
    for (line, points) in lines {
        number += usize::from(before.replace(line).is_some_and(|before| !before.same_colour(line)));
        let (colour, width) = (colour(number), if line.peer.is_none() { 3 } else { 2 });
        let stroke = colour.stroke_width(width);
        let drawn = match line.form.causal {
            true => chart.draw_series(DashedLineSeries::new(points.iter().map(point), 6, 4, stroke))?,
            false => chart.draw_series(LineSeries::new(points.iter().map(point), stroke))?,
        };
        let gap = if line.form.causal { 2 } else { 0 };
        let half = move |from: i32, to: i32| PathElement::new([(from, 0), (to, 0)], stroke);
        drawn.label(line.label()).legend(move |at| EmptyElement::at(at) + half(0, 10 - gap) + half(10 + gap, 20));
        if line.peer.is_none() {
            chart.draw_series(points.iter().map(|at| Circle::new(point(at), 4, colour.filled())))?;
        }
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}
