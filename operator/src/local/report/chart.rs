//! Line chart as inline SVG. Pure. Colors and text sizes are in style.css.
//!
//! `data-` attributes of the element hold the points, from which `readout.js` shows the value under
//! the pointer. The chart is complete without scripts.

use std::fmt::Write;

use super::axis::{Axis, Scale, label, reading};
use super::html::escape;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

/// Most points of a series; longer ones are thinned evenly.
const MAX_POINTS: usize = 800;

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// (step, value), by step. Values that the scale cannot show are omitted.
    pub points: Vec<(f64, f64)>,
}

/// A chart over steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Ends of the vertical axis; from the data if `None`.
    pub bounds: Option<(f64, f64)>,
    /// Scale of the vertical axis.
    pub scale: Scale,
    /// At most two.
    pub series: Vec<Series>,
}

/// Mapping of data to the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    steps: Axis,
    values: Axis,
}

impl Frame {
    fn x(&self, step: f64) -> f64 {
        LEFT + self.steps.share(step) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.values.share(value) * (HEIGHT - TOP - BOTTOM)
    }
}

impl Chart {
    /// Renders a `figure`; `None` if there is no value to show.
    pub fn render(&self) -> Option<String> {
        let series: Vec<Series> = self
            .series
            .iter()
            .map(|series| thinned(series, self.scale))
            .filter(|series| !series.points.is_empty())
            .collect();
        let frame = self.frame(&series)?;
        let mut out = String::new();
        let last: Vec<String> =
            series.iter().filter_map(|series| Some(reading(series.points.last()?.1))).collect();
        let _ = write!(
            out,
            "<figure>\n<figcaption><h2>{}</h2><output>{}</output><small>{}</small></figcaption>\n",
            escape(self.title),
            escape(&last.join(" · ")),
            escape(self.unit)
        );
        let _ = writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" {}>",
            escape(self.title),
            data(&series, &frame)
        );
        axes(&mut out, &frame);
        for (index, series) in series.iter().enumerate() {
            line(&mut out, &frame, index, &series.points);
        }
        out.push_str("<line class=\"cursor\" y1=\"10\" y2=\"176\"/>\n</svg>\n");
        if series.len() > 1 {
            out.push_str(&legend(&series));
        }
        out.push_str("</figure>\n");
        Some(out)
    }

    fn frame(&self, series: &[Series]) -> Option<Frame> {
        let all = || series.iter().flat_map(|series| series.points.iter());
        let (_, last) = extent(all().map(|point| point.0))?;
        let (low, high) = extent(all().map(|point| point.1))?;
        let values = match self.bounds {
            Some((floor, ceiling)) => Axis::between(floor.min(low), ceiling.max(high)),
            None => Axis::around(low, high, self.scale),
        };
        Some(Frame { steps: Axis::between(0.0, last), values })
    }
}

fn thinned(series: &Series, scale: Scale) -> Series {
    let shown: Vec<(f64, f64)> =
        series.points.iter().copied().filter(|point| scale.has(point.1)).collect();
    let stride = shown.len().div_ceil(MAX_POINTS).max(1);
    let last = shown.len().saturating_sub(1);
    let points = shown
        .into_iter()
        .enumerate()
        .filter(|(index, _)| index.is_multiple_of(stride) || *index == last)
        .map(|(_, point)| point)
        .collect();
    Series { name: series.name.clone(), points }
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |extent, value| {
        Some(
            extent.map_or((value, value), |(low, high): (f64, f64)| {
                (low.min(value), high.max(value))
            }),
        )
    })
}

fn axes(out: &mut String, frame: &Frame) {
    for value in frame.values.ticks(5) {
        let y = frame.y(value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ = writeln!(
            out,
            "<text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 3.5,
            label(value)
        );
    }
    for step in frame.steps.ticks(6).into_iter().filter(|step| step.fract() == 0.0) {
        let _ = writeln!(
            out,
            "<text class=\"tick mid\" x=\"{:.1}\" y=\"{}\">{}</text>",
            frame.x(step),
            HEIGHT - 6.0,
            label(step)
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"tick end\" x=\"{}\" y=\"{}\">step</text>",
        LEFT - 10.0,
        HEIGHT - 6.0
    );
}

fn line(out: &mut String, frame: &Frame, index: usize, points: &[(f64, f64)]) {
    let path: Vec<String> = points
        .iter()
        .map(|(step, value)| format!("{:.1},{:.1}", frame.x(*step), frame.y(*value)))
        .collect();
    let _ = writeln!(out, "<polyline class=\"line s{index}\" points=\"{}\"/>", path.join(" "));
    if let (true, Some((step, value))) = (points.len() <= 24, points.last()) {
        let dots = if points.len() > 1 { points } else { &[(*step, *value)] };
        for (step, value) in dots {
            let _ = writeln!(
                out,
                "<circle class=\"dot s{index}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\"/>",
                frame.x(*step),
                frame.y(*value)
            );
        }
    }
}

fn legend(series: &[Series]) -> String {
    let names = series.iter().enumerate().map(|(index, series)| {
        format!("<span class=\"key s{index}\">{}</span>", escape(&series.name))
    });
    format!("<p class=\"legend\">{}</p>\n", names.collect::<Vec<_>>().join(" "))
}

fn data(series: &[Series], frame: &Frame) -> String {
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let points: Vec<&[(f64, f64)]> = series.iter().map(|series| series.points.as_slice()).collect();
    format!(
        "data-last=\"{}\" data-left=\"{LEFT}\" data-right=\"{}\" data-names=\"{}\" \
            data-points=\"{}\"",
        frame.steps.ends().1,
        WIDTH - RIGHT,
        escape(&serde_json::to_string(&names).unwrap_or_default()),
        escape(&serde_json::to_string(&points).unwrap_or_default())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_values_and_empty_charts_are_omitted() {
        let chart = |points: &[(f64, f64)]| Chart {
            title: "Loss",
            unit: "",
            bounds: None,
            scale: Scale::Linear,
            series: vec![Series { name: "Loss".to_owned(), points: points.to_vec() }],
        };
        assert_eq!(chart(&[]).render(), None);
        assert_eq!(chart(&[(1.0, f64::NAN)]).render(), None);
        let drawn = chart(&[(1.0, 2.0), (2.0, f64::INFINITY), (3.0, 4.0)]).render().unwrap();
        assert!(drawn.contains("data-points=\"[[[1.0,2.0],[3.0,4.0]]]\""), "{drawn}");
        assert!(
            chart(&[(1.0, 2.0)])
                .render()
                .is_some_and(|drawn| !drawn.contains("NaN") && !drawn.contains("inf"))
        );
    }

    #[test]
    fn a_long_series_is_thinned_and_keeps_its_ends() {
        let long = Series {
            name: "x".to_owned(),
            points: (0..10_000).map(|step| (f64::from(step), 1.0)).collect(),
        };
        let points = thinned(&long, Scale::Linear).points;
        assert!(points.len() <= MAX_POINTS + 1);
        assert_eq!((points[0].0, points[points.len() - 1].0), (0.0, 9999.0));
    }
}
