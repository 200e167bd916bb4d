//! Plots as SVG: curves over a common axis, one panel beside the other.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that can be told apart, also by those who do not see red and green.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];

const SIZE: (u32, u32) = (1100, 460);
const TEXT: (&str, u32) = ("sans-serif", 15);

/// One curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What the legend calls it.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Curves over one pair of axes.
#[derive(Clone, Debug)]
pub struct Curves {
    /// Above the panel.
    pub title: String,
    /// What the axes count.
    pub axes: [String; 2],
    /// The curves.
    pub curves: Vec<Curve>,
    /// A level that is marked.
    pub level: Option<f64>,
}

/// Bars, each with a name.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above the panel.
    pub title: String,
    /// What the axes count.
    pub axes: [String; 2],
    /// Name and height; without a height there is a gap.
    pub bars: Vec<(String, Option<f64>)>,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes curves and, right of them, bars.
///
/// # Errors
/// If the file cannot be written: its name and why.
pub fn write(path: &Path, curves: &Curves, bars: &Bars) -> Result<(), String> {
    let draw = || -> Outcome {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (left, right) = area.split_horizontally(SIZE.0 * 6 / 10);
        draw_curves(&left, curves)?;
        draw_bars(&right, bars)?;
        Ok(area.present()?)
    };
    draw().map_err(|error| format!("{}: {error}", path.display()))
}

/// The end of an axis: somewhat beyond the largest value.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    let largest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    if largest > 0.0 { largest * 1.08 } else { 1.0 }
}

fn draw_curves(panel: &Panel<'_>, curves: &Curves) -> Outcome {
    let points = || curves.curves.iter().flat_map(|curve| &curve.points);
    let (right, top) = (end(points().map(|p| p.0)), end(points().map(|p| p.1).chain(curves.level)));
    let mut chart = ChartBuilder::on(panel)
        .caption(&curves.title, TEXT)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let [x, y] = &curves.axes;
    chart.configure_mesh().light_line_style(WHITE).x_desc(x).y_desc(y).label_style(TEXT).draw()?;
    if let Some(level) = curves.level {
        chart.draw_series(DashedLineSeries::new([(0.0, level), (right, level)], 6, 4, BLACK.into()))?;
    }
    for (curve, colour) in curves.curves.iter().zip(COLOURS.iter().cycle()) {
        let line =
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)))?;
        line.label(&curve.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        chart.draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::LowerRight).label_font(TEXT);
    Ok(legend.background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw()?)
}

/// How bars and their names lie: more than a few are narrow, and what is written at them stands upright.
struct Manner {
    /// Pixels below the axis.
    below: u32,
    /// Pixels between a bar and the next, halved.
    apart: u32,
    text: FontTransform,
    /// From the middle of a bar's upper end to where its height is written.
    above: (i32, i32),
}

impl Manner {
    fn of(bars: usize) -> Self {
        match bars {
            0..=8 => Self { below: 40, apart: 9, text: FontTransform::None, above: (-12, -18) },
            _ => Self { below: 140, apart: 2, text: FontTransform::Rotate270, above: (-8, -4) },
        }
    }
}

fn draw_bars(panel: &Panel<'_>, bars: &Bars) -> Outcome {
    let (count, top) = (bars.bars.len(), end(bars.bars.iter().filter_map(|bar| bar.1)));
    let Manner { below, apart, text, above } = Manner::of(count);
    let style = TextStyle::from(TEXT.into_font().transform(text));
    // The end of a name that is turned is to stand at the axis, which only texts of our own do.
    let (turned, top) = if below > 40 { (true, 1.1 * top) } else { (false, top) };
    let mut chart = ChartBuilder::on(panel)
        .caption(&bars.title, TEXT)
        .margin(12)
        .x_label_area_size(below)
        .y_label_area_size(70)
        .build_cartesian_2d((0..count.max(1) - 1).into_segmented(), 0.0..top)?;
    let name = |place: &SegmentValue<usize>| match place {
        SegmentValue::CenterOf(place) if !turned => {
            bars.bars.get(*place).map_or(String::new(), |bar| bar.0.clone())
        }
        _ => String::new(),
    };
    let [x, y] = &bars.axes;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(WHITE).x_label_formatter(&name).x_labels(count.max(1));
    mesh.x_desc(x).y_desc(y).label_style(TEXT).draw()?;
    for ((place, (name, height)), colour) in bars.bars.iter().enumerate().zip(COLOURS.iter().cycle()) {
        if turned {
            let style = style.clone().pos(Pos::new(HPos::Right, VPos::Center));
            let name = Text::new(name.clone(), (0, 8), style);
            chart.draw_series([EmptyElement::at((SegmentValue::CenterOf(place), 0.0)) + name])?;
        }
        let Some(height) = *height else { continue };
        let corners = [(SegmentValue::Exact(place), 0.0), (SegmentValue::Exact(place + 1), height)];
        let mut bar = Rectangle::new(corners, colour.mix(0.8).filled());
        bar.set_margin(0, 0, apart, apart);
        chart.draw_series([bar])?;
        let digits = if height < 10.0 { 2 } else { 0 };
        let number = Text::new(format!("{height:.digits$}"), above, style.clone());
        chart.draw_series([EmptyElement::at((SegmentValue::CenterOf(place), height)) + number])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_what_it_shows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        let axes = ["seconds".to_owned(), "accuracy".to_owned()];
        let curve = |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.to_vec() };
        let curves = vec![curve("1 part", &[(0.0, 0.1), (9.0, 0.6)]), curve("none", &[])];
        let curves = Curves { title: "Accuracy".into(), axes: axes.clone(), curves, level: Some(0.5) };
        let bars = vec![("1".to_owned(), Some(9.0)), ("2".to_owned(), None)];
        write(&path, &curves, &Bars { title: "Time".into(), axes, bars }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["<svg", "1 part", "none", "Accuracy", "Time", "seconds", "</svg>"] {
            assert!(text.contains(word), "no {word}");
        }
        let missing = folder.path().join("no/such/folder.svg");
        let empty =
            || Curves { title: String::new(), axes: Default::default(), curves: Vec::new(), level: None };
        let bars = Bars { title: String::new(), axes: Default::default(), bars: Vec::new() };
        assert!(write(&missing, &empty(), &bars).is_err_and(|message| message.contains("folder.svg")));
    }
}
