//! What all pictures share: the sheet, its colours, and how numbers are written on it.

use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use trifuse::{Error, Result};
use trifuse_cli::bench::stored::Stored;

/// What drawing gives.
pub type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
/// The area on which a picture is drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours that people of every sort of sight tell apart (Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
pub(super) const GREY: RGBColor = RGBColor(120, 120, 120);
pub const GRID: RGBColor = RGBColor(232, 232, 232);

pub fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Who measured, for the line below a title.
pub(super) fn device(report: &Stored) -> String {
    format!("{} ({}), trifuse {}, {}", report.device.name, report.backend, report.environment.version, report.dtype())
}

/// Draws on a white sheet with a title.
pub fn sheet(size: (u32, u32), title: &str, below: &str, draw: impl FnOnce(&Area) -> Drawn) -> Result<String> {
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
    // A report's names may hold what XML cannot.
    text.retain(|c| !c.is_control() || c == '\n' || c == '\t');
    Ok(text)
}

fn drawn_or_told(draw: impl FnOnce() -> Drawn) -> Result<()> {
    draw().map_err(|error| Error::invalid("picture", "one that can be drawn", error))
}

/// Names what was drawn, in a corner of the chart.
pub fn legend<'a, 'b: 'a, C: CoordTranslate>(chart: &mut ChartContext<'a, SVGBackend<'b>, C>, corner: SeriesLabelPosition) -> Drawn {
    let labels = &mut chart.configure_series_labels();
    labels.position(corner).background_style(WHITE.mix(0.9)).border_style(GRID).label_font(("sans-serif", 13)).draw()
}

/// The unit for values up to `most`: its factor and its prefix.
pub(super) fn prefix(most: f64) -> (f64, &'static str) {
    [(1e12, "T"), (1e9, "G"), (1e6, "M")].into_iter().find(|(factor, _)| most >= *factor).unwrap_or((1e3, "k"))
}

/// The unit for times up to `most` seconds.
pub fn time_unit(most: f64) -> (f64, &'static str) {
    match most {
        1.0.. => (1.0, "s"),
        1e-3.. => (1e-3, "ms"),
        _ => (1e-6, "µs"),
    }
}

/// A number with three figures that count.
pub fn short(value: f64) -> String {
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
