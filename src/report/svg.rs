//! Curves and bars as SVG, to stand within a page.

use std::fmt::Write;

/// Colours that can be told apart, also by those who do not see red and green (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#787878", "#000000"];
const SIZE: [f64; 2] = [520.0, 300.0];
/// Left, top, right, below: where the axes are.
const MARGIN: [f64; 4] = [62.0, 12.0, 12.0, 42.0];
/// More points than this are no more than a smear.
const MOST_POINTS: usize = 600;

/// One curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What the legend calls it.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<[f64; 2]>,
}

/// Text as it may stand in a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The colour of the n-th run.
pub fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A number with at most four digits that say something.
pub fn number(value: f64) -> String {
    let digits = |places: usize| {
        let text = format!("{value:.places$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-4..1e7).contains(&size) => format!("{value:.2e}"),
        size if size >= 1000.0 => digits(0),
        size if size >= 1.0 => digits(3 - (size.log10() as usize).min(3)),
        _ => digits(5),
    }
}

/// Steps of 1, 2 or 5 times a power of ten.
fn ticks([low, high]: [f64; 2]) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(power);
    let first = (low / step).ceil() as i64;
    (first..first + 12).map(|n| n as f64 * step).take_while(|tick| *tick <= high + step * 1e-6).collect()
}

/// The least and the most, a little apart if they are one.
fn bounds(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let [low, high] = values
        .filter(|value| value.is_finite())
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)]);
    match high - low {
        range if range > 0.0 => Some([low, high]),
        0.0 => Some([low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0)]),
        _ => None,
    }
}

/// Means of neighbours, so that no more points are left than can be seen.
fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let each = points.len().div_ceil(MOST_POINTS).max(1);
    let mean = |part: &[[f64; 2]], axis: usize| part.iter().map(|p| p[axis]).sum::<f64>() / part.len() as f64;
    points.chunks(each).map(|part| [mean(part, 0), mean(part, 1)]).collect()
}

/// Curves over common axes; nothing if there is nothing to see.
pub fn curves(title: &str, axes: [&str; 2], curves: &[Curve]) -> Option<String> {
    let thin: Vec<Vec<[f64; 2]>> = curves.iter().map(|curve| thinned(&curve.points)).collect();
    let of = |axis: usize| bounds(thin.iter().flatten().map(|point| point[axis]));
    let (across, up) = (of(0)?, of(1)?);
    let [left, top, right, below] = MARGIN;
    let x = |value: f64| left + (value - across[0]) / (across[1] - across[0]) * (SIZE[0] - left - right);
    let y = |value: f64| SIZE[1] - below - (value - up[0]) / (up[1] - up[0]) * (SIZE[1] - top - below);
    let mut svg = begin(title, SIZE[1]);
    let (end, floor) = (SIZE[0] - right, SIZE[1] - below);
    for tick in ticks(up) {
        let (at, text) = (y(tick), number(tick));
        let _ = write!(svg, r##"<line x1="{left}" y1="{at:.1}" x2="{end}" y2="{at:.1}" stroke="#ddd"/>"##);
        let _ =
            write!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{text}</text>"#, left - 6.0, at + 4.0);
    }
    for tick in ticks(across) {
        let (at, text) = (x(tick), number(tick));
        let _ = write!(
            svg,
            r##"<line x1="{at:.1}" y1="{floor}" x2="{at:.1}" y2="{}" stroke="#666"/>"##,
            floor + 4.0
        );
        let _ = write!(svg, r#"<text x="{at:.1}" y="{}" text-anchor="middle">{text}</text>"#, floor + 17.0);
    }
    let _ = write!(svg, r##"<line x1="{left}" y1="{floor}" x2="{end}" y2="{floor}" stroke="#666"/>"##);
    for (index, points) in thin.iter().enumerate() {
        let points = points.iter().filter(|point| point.iter().all(|value| value.is_finite()));
        let points: Vec<String> = points.map(|[a, b]| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let (points, colour, name) = (points.join(" "), colour(index), escape(&curves[index].name));
        let _ = write!(
            svg,
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"><title>{name}</title></polyline>"#
        );
    }
    let middle = f64::midpoint(left, end);
    let _ = write!(
        svg,
        r#"<text x="{middle}" y="{}" text-anchor="middle">{}</text>"#,
        SIZE[1] - 6.0,
        escape(axes[0])
    );
    let half = floor / 2.0;
    let _ = write!(
        svg,
        r#"<text x="13" y="{half}" text-anchor="middle" transform="rotate(-90 13 {half})">{}</text></svg>"#,
        escape(axes[1])
    );
    Some(svg)
}

/// A bar for each of `rows`, made of parts; `names` are those of the parts, in the order of their colours.
pub fn bars(title: &str, names: &[&str], rows: &[(String, Vec<f64>)]) -> String {
    let (line, left) = (26.0, 170.0);
    let most = rows.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(1e-12, f64::max);
    let mut svg = begin(title, line * rows.len() as f64 + 8.0);
    for (row, (name, parts)) in rows.iter().enumerate() {
        let top = line * row as f64 + 4.0;
        let middle = top + 13.0;
        let _ =
            write!(svg, r#"<text x="{}" y="{middle}" text-anchor="end">{}</text>"#, left - 8.0, escape(name));
        let whole: f64 = parts.iter().sum();
        let mut at = left;
        for (index, part) in parts.iter().enumerate() {
            let wide = part / most * (SIZE[0] - left - 80.0);
            let (text, share) = (escape(names[index]), 100.0 * part / whole.max(1e-12));
            let _ = write!(
                svg,
                r#"<rect x="{at:.2}" y="{top}" width="{wide:.2}" height="18" fill="{}"><title>{text}: {} s, {share:.1} %</title></rect>"#,
                colour(index),
                number(*part)
            );
            at += wide;
        }
        let _ = write!(svg, r#"<text x="{:.1}" y="{middle}">{} s</text>"#, at + 6.0, number(whole));
    }
    svg + "</svg>"
}

fn begin(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {height}" role="img" aria-label="{title}" font-family="sans-serif" font-size="12" fill="#333"><title>{title}</title>"##,
        SIZE[0]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_ticks_are_round() {
        let all = [0.0, 0.988, 12.3456, 1234.5, 60_000.0, 2.5e8, 3e-6, 10.0].map(number);
        assert_eq!(all, ["0", "0.988", "12.35", "1234", "60000", "2.50e8", "3.00e-6", "10"]);
        assert_eq!(ticks([0.0, 10.0]), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert!(ticks([0.93, 0.97]).iter().all(|tick| (0.93..=0.9701).contains(tick)));
    }

    #[test]
    fn a_curve_stays_within_its_picture_whatever_its_values() {
        for values in [vec![1.0], vec![5.0; 4], vec![-3.0, 1e9, 2.0], (0..5000).map(f64::from).collect()] {
            let points: Vec<[f64; 2]> = values.iter().enumerate().map(|(i, v)| [i as f64, *v]).collect();
            let svg = curves("t", ["a", "b"], &[Curve { name: "c".to_owned(), points }]).expect("a picture");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let line = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a line");
            for point in line.split(' ') {
                let (x, y) = point.split_once(',').expect("two numbers");
                let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
                assert!((0.0..=SIZE[0]).contains(&x) && (0.0..=SIZE[1]).contains(&y), "{point}");
            }
            assert!(line.split(' ').count() <= MOST_POINTS);
        }
        assert!(curves("t", ["a", "b"], &[]).is_none());
    }

    #[test]
    fn what_is_no_text_of_ours_is_escaped() {
        let rows = [("<b>&\"".to_owned(), vec![1.0])];
        let svg = bars("t", &["x<y"], &rows);
        assert!(
            svg.contains("&lt;b&gt;&amp;&quot;") && svg.contains("x&lt;y") && !svg.contains("<b>"),
            "{svg}"
        );
    }
}
