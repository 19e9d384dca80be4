//! Pictures of stored reports, as SVG: text is left to the viewer's own fonts, so none is needed here.

mod align;
mod density;
mod latency;
mod length;
mod roofline;

use std::path::PathBuf;

use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use trifuse::bench::stored::{Peers, Stored};
use trifuse::{Error, Result};

/// What drawing gives.
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
/// Where it is drawn.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours that people of every sort of sight tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
const GREY: RGBColor = RGBColor(120, 120, 120);
const GRID: RGBColor = RGBColor(232, 232, 232);

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Every picture that these reports hold something for: the file's name and its text.
///
/// # Errors
/// Reports of different devices: one picture shows one.
pub fn all(reports: &[Stored], peers: &[Peers]) -> Result<Vec<(PathBuf, String)>> {
    if let Some([first, other]) = reports.windows(2).find(|pair| pair[0].device.name != pair[1].device.name).map(|pair| [&pair[0], &pair[1]]) {
        return Err(Error::invalid("reports", format!("one device, {}", first.device.name), format!("{} too", other.device.name)));
    }
    let mut pictures = Vec::new();
    pictures.extend(roofline::picture(reports)?.map(|text| ("roofline.svg".into(), text)));
    pictures.extend(length::picture(reports, peers)?.map(|text| ("attention-length.svg".into(), text)));
    for report in reports {
        pictures.extend(align::picture(report, peers)?.map(|text| (format!("align-{}.svg", report.dtype()).into(), text)));
        pictures.extend(density::picture(report)?.map(|text| (format!("{}-density.svg", report.suite).into(), text)));
        pictures.extend(latency::picture(report)?.map(|text| (format!("{}-latency.svg", report.suite).into(), text)));
    }
    // Two reports of one suite and type have two pictures.
    for number in 1..pictures.len() {
        let again = pictures[..number].iter().filter(|(name, _): &&(PathBuf, String)| *name == pictures[number].0).count();
        if again > 0 {
            let stem = pictures[number].0.with_extension("");
            pictures[number].0 = format!("{}-{}.svg", stem.display(), again + 1).into();
        }
    }
    Ok(pictures)
}

/// Who measured, for the line below a title.
fn device(report: &Stored) -> String {
    format!("{} ({}), trifuse {}, {}", report.device.name, report.backend, report.environment.version, report.dtype())
}

/// Draws on a white sheet with a title.
fn sheet(size: (u32, u32), title: &str, below: &str, draw: impl FnOnce(&Area) -> Drawn) -> Result<String> {
    let mut text = String::new();
    let drawn = || -> Drawn {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw_text(title, &("sans-serif", 22).into_text_style(&root), (24, 16))?;
        root.draw_text(below, &("sans-serif", 13).into_text_style(&root).color(&GREY), (24, 44))?;
        draw(&root.margin(66, 10, 10, 16))?;
        root.present()
    };
    drawn_or_told(drawn)?;
    Ok(text)
}

fn drawn_or_told(draw: impl FnOnce() -> Drawn) -> Result<()> {
    draw().map_err(|error| Error::invalid("picture", "one that can be drawn", error))
}

/// Names what was drawn, in a corner of the chart.
fn legend<'a, 'b: 'a, C: CoordTranslate>(chart: &mut ChartContext<'a, SVGBackend<'b>, C>, corner: SeriesLabelPosition) -> Drawn {
    let labels = &mut chart.configure_series_labels();
    labels.position(corner).background_style(WHITE.mix(0.9)).border_style(GRID).label_font(("sans-serif", 13)).draw()
}

/// The unit for values up to `most`: its factor and its prefix.
fn prefix(most: f64) -> (f64, &'static str) {
    [(1e12, "T"), (1e9, "G"), (1e6, "M")].into_iter().find(|(factor, _)| most >= *factor).unwrap_or((1e3, "k"))
}

/// The unit for times up to `most` seconds.
fn time_unit(most: f64) -> (f64, &'static str) {
    match most {
        1.0.. => (1.0, "s"),
        1e-3.. => (1e-3, "ms"),
        _ => (1e-6, "µs"),
    }
}

/// A number with three figures that count.
fn short(value: f64) -> String {
    let digits = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 4) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_figures() {
        assert_eq!([0.0, 0.5, 1.0, 12.34, 718.2, 4096.0].map(short), ["0", "0.5", "1", "12.3", "718", "4096"]);
    }
}
