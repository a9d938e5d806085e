//! How are bars and lines drawn?

use inertiakv_eval::figure::Lines;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Color, DrawingArea, DrawingBackend, IntoSegmentedCoord, PathElement, Polygon, Rectangle, SegmentValue, Text,
};
use plotters::style::{BLACK, FontTransform, IntoFont, RGBColor, ShapeStyle, TextStyle};

use super::{COLOURS, FONT, compact};

pub(super) type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;
type Area<B> = DrawingArea<B, Shift>;
type Pixel = (i32, i32);

const LABEL_SIZE: i32 = 14;
/// Height of a line of the legend.
const LINE: i32 = 20;
/// Width of a legend's sample.
const SAMPLE: i32 = 34;
/// An area this wide has room for a legend at its side.
const WIDE_ENOUGH: i32 = 700;

/// Pixels that a text takes, about.
pub(super) fn width_of(text: &str) -> i32 {
    text.chars().count() as i32 * LABEL_SIZE * 6 / 10
}

pub(super) fn font(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().into()
}

fn size<B: DrawingBackend>(area: &Area<B>) -> Pixel {
    let (width, height) = area.dim_in_pixel();
    (width as i32, height as i32)
}

/// Draws the title and gives the area below it.
pub(super) fn below_title<B: DrawingBackend>(area: &Area<B>, title: Option<&str>) -> Result<Area<B>, Failure<B>> {
    let Some(title) = title else {
        return Ok(area.clone());
    };
    // A long title gets smaller before it is cut.
    let fitting = size(area).0 * 10 / 6 / (title.chars().count() as i32).max(1);
    area.draw(&Text::new(title.to_owned(), (14, 10), font(fitting.clamp(10, 19))))?;
    Ok(area.split_vertically(34).1)
}

pub(super) fn bars<B: DrawingBackend>(
    area: &Area<B>,
    title: Option<&str>,
    unit: &str,
    parts: &[String],
    bars: &[(String, Vec<f64>)],
) -> Result<(), Failure<B>> {
    let area = below_title(area, title)?;
    let entries: Vec<&str> = if parts.len() > 1 {
        parts.iter().map(String::as_str).collect()
    } else {
        Vec::new()
    };
    let (area, legend) = split_for_legend(&area, &entries);
    let totals = bars.iter().map(|(_, parts)| parts.iter().sum::<f64>());
    let highest = totals.clone().fold(0.0, f64::max);
    let lowest = totals.fold(0.0, f64::min);
    let span = if highest > lowest { highest - lowest } else { 1.0 };
    let count = bars.len().max(1);
    let room = size(&area).0 - 100;
    let longest = bars.iter().map(|(label, _)| width_of(label)).max().unwrap_or(0);
    // Labels that would run into each other stand upright.
    let upright = longest > room / count as i32;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(if upright { longest.min(200) + 10 } else { 34 })
        .y_label_area_size(64)
        .build_cartesian_2d(
            (0..count).into_segmented(),
            (lowest - span * if lowest < 0.0 { 0.12 } else { 0.0 })..(highest + span * 0.12),
        )?;
    let label = |segment: &SegmentValue<usize>| match segment {
        SegmentValue::CenterOf(index) => bars.get(*index).map_or_else(String::new, |(label, _)| label.clone()),
        _ => String::new(),
    };
    let labels = if upright {
        font(LABEL_SIZE).transform(FontTransform::Rotate270)
    } else {
        font(LABEL_SIZE)
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(BLACK.mix(0.06))
        .x_labels(count)
        .x_label_formatter(&label)
        .x_label_style(labels)
        .y_desc(unit)
        .y_label_style(font(LABEL_SIZE))
        .draw()?;
    let margin = (room / count as i32 / 6) as u32;
    for part in 0..parts.len() {
        let colour = COLOURS[part % COLOURS.len()];
        let boxes = bars.iter().enumerate().map(|(index, (_, parts))| {
            let below: f64 = parts[..part].iter().sum();
            let corners = [
                (SegmentValue::Exact(index), below),
                (SegmentValue::Exact(index + 1), below + parts[part]),
            ];
            let mut bar = Rectangle::new(corners, colour.mix(0.9).filled());
            bar.set_margin(0, 0, margin, margin);
            bar
        });
        chart.draw_series(boxes)?;
        // Every part that is thick enough carries its number.
        let numbers = bars.iter().enumerate().filter_map(|(index, (_, values))| {
            let below: f64 = values[..part].iter().sum();
            let is_thick = parts.len() > 1 && values[part] > span * 0.05;
            let place = (SegmentValue::CenterOf(index), below + values[part] / 2.0);
            let white = font(12).color(&plotters::style::WHITE);
            is_thick.then(|| Text::new(compact(values[part]), place, white))
        });
        chart.draw_series(numbers)?;
    }
    let totals = bars.iter().enumerate().map(|(index, (_, parts))| {
        let total: f64 = parts.iter().sum();
        let place = total.max(0.0) + span * 0.06;
        Text::new(compact(total), (SegmentValue::CenterOf(index), place), font(LABEL_SIZE))
    });
    chart.draw_series(totals)?;
    draw_legend(&legend, &entries, |legend, index, (x, y)| {
        let colour = COLOURS[index % COLOURS.len()];
        legend.draw(&Rectangle::new(
            [(x, y - 6), (x + SAMPLE - 8, y + 6)],
            colour.mix(0.9).filled(),
        ))
    })
}

pub(super) fn lines<B: DrawingBackend>(
    area: &Area<B>,
    title: Option<&str>,
    unit: &str,
    lines: &Lines,
) -> Result<(), Failure<B>> {
    let area = below_title(area, title)?;
    let entries: Vec<&str> = lines.series.iter().map(|(label, _)| label.as_str()).collect();
    let (area, legend) = split_for_legend(&area, &entries);
    let across = |x: f64| if lines.logarithmic { x.log10() } else { x };
    let points = || lines.series.iter().flat_map(|(_, points)| points);
    let xs = padded(points().map(|point| across(point.0)));
    let ys = padded(points().map(|point| point.1).chain([0.0]));
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(60)
        .build_cartesian_2d(xs.0..xs.1, ys.0..ys.1)?;
    let label = |x: &f64| compact(if lines.logarithmic { 10f64.powf(*x) } else { *x });
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.06))
        .x_labels((size(&area).0 / 90).max(2) as usize)
        .x_label_formatter(&label)
        .y_label_formatter(&|y| compact(*y))
        .x_desc(&lines.axis)
        .y_desc(unit)
        .label_style(font(LABEL_SIZE))
        .draw()?;
    for (index, (_, points)) in lines.series.iter().enumerate() {
        let pixels: Vec<Pixel> = points
            .iter()
            .map(|&(x, y)| pixel(&chart, &area, (across(x), y)))
            .collect();
        draw_sample(&area, index, &pixels, &pixels)?;
    }
    draw_legend(&legend, &entries, |legend, index, (x, y)| {
        let ends = [(x, y), (x + SAMPLE - 8, y)];
        draw_sample(legend, index, &ends, &[(x + (SAMPLE - 8) / 2, y)])
    })
}

/// A pixel of the area that a chart was made on.
fn pixel<B: DrawingBackend>(
    chart: &ChartContext<'_, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    area: &Area<B>,
    point: (f64, f64),
) -> Pixel {
    let (x, y) = chart.backend_coord(&point);
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

/// From the least to the greatest value and a little more on both sides.
fn padded(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let greatest = values.fold(f64::NEG_INFINITY, f64::max);
    if least > greatest {
        return (0.0, 1.0);
    }
    let padding = ((greatest - least) * 0.06).max(1e-6 + greatest.abs() * 1e-3);
    let low = if least == 0.0 { 0.0 } else { least - padding };
    (low, greatest + padding)
}

/// A line in the manner of the series with this number, and its markers.
fn draw_sample<B: DrawingBackend>(
    area: &Area<B>,
    index: usize,
    path: &[Pixel],
    marked: &[Pixel],
) -> Result<(), Failure<B>> {
    let colour = COLOURS[index % COLOURS.len()];
    let stroke = colour.stroke_width(2);
    if path.len() > 1 {
        // Every pattern with every marker before one comes again with the same.
        match index / COLOURS.len() % 4 {
            0 => area.draw(&PathElement::new(path.to_vec(), stroke))?,
            1 => area.draw(&DashedPathElement::new(path.to_vec(), 9, 5, stroke))?,
            2 => area.draw(&DashedPathElement::new(path.to_vec(), 3, 4, stroke))?,
            _ => area.draw(&DashedPathElement::new(path.to_vec(), 16, 6, stroke))?,
        }
    }
    marked
        .iter()
        .try_for_each(|&place| draw_marker(area, index, place, colour))
}

/// One of seven shapes, filled for the first seven series and hollow for the next.
fn draw_marker<B: DrawingBackend>(
    area: &Area<B>,
    index: usize,
    (x, y): Pixel,
    colour: RGBColor,
) -> Result<(), Failure<B>> {
    let at = |offsets: &[Pixel]| -> Vec<Pixel> { offsets.iter().map(|(dx, dy)| (x + dx, y + dy)).collect() };
    let stroke: ShapeStyle = colour.stroke_width(2);
    let strokes: [&[Pixel]; 2] = match index % 7 {
        5 => [&[(-5, -5), (5, 5)], &[(-5, 5), (5, -5)]],
        6 => [&[(-6, 0), (6, 0)], &[(0, -6), (0, 6)]],
        shape => {
            let outline: &[Pixel] = match shape {
                0 => &[(-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2)],
                1 => &[(-5, -5), (5, -5), (5, 5), (-5, 5)],
                2 => &[(0, -6), (6, 5), (-6, 5)],
                3 => &[(0, -7), (7, 0), (0, 7), (-7, 0)],
                _ => &[(0, 6), (6, -5), (-6, -5)],
            };
            let hollow = index / 7 % 2 == 1;
            let fill = if hollow { plotters::style::WHITE } else { colour };
            area.draw(&Polygon::new(at(outline), fill.filled()))?;
            let closed = [at(outline), at(&outline[..1])].concat();
            return area.draw(&PathElement::new(closed, stroke));
        }
    };
    strokes
        .iter()
        .try_for_each(|path| area.draw(&PathElement::new(at(path), stroke)))
}

/// The area for the chart and that for its legend: at the side where there is room, below where not.
fn split_for_legend<B: DrawingBackend>(area: &Area<B>, entries: &[&str]) -> (Area<B>, Area<B>) {
    let (width, height) = size(area);
    let widest = entry_width(entries);
    if entries.is_empty() {
        area.split_vertically(height)
    } else if width >= WIDE_ENOUGH {
        area.split_horizontally(width - widest.min(width / 3) - 12)
    } else {
        let rows = entries.len().div_ceil((width / widest).max(1) as usize) as i32;
        area.split_vertically(height - (rows * LINE + 8).min(height / 2))
    }
}

fn entry_width(entries: &[&str]) -> i32 {
    SAMPLE + 12 + entries.iter().map(|entry| width_of(entry)).max().unwrap_or(0)
}

/// Draws the entries in as many columns as fit; `sample` draws what stands before an entry.
fn draw_legend<B: DrawingBackend>(
    area: &Area<B>,
    entries: &[&str],
    sample: impl Fn(&Area<B>, usize, Pixel) -> Result<(), Failure<B>>,
) -> Result<(), Failure<B>> {
    let (width, height) = size(area);
    let widest = entry_width(entries);
    let columns = (width / widest).max(1) as usize;
    let rows = entries.len().div_ceil(columns) as i32;
    // Lines move together before one is lost.
    let line = LINE.min((height - 8) / rows.max(1));
    for (index, entry) in entries.iter().enumerate() {
        let (row, column) = ((index / columns) as i32, (index % columns) as i32);
        let (x, y) = (8 + column * widest, 10 + line / 2 + row * line);
        sample(area, index, (x, y))?;
        area.draw(&Text::new(
            (*entry).to_owned(),
            (x + SAMPLE, y - LABEL_SIZE / 2),
            font(LABEL_SIZE.min(line)),
        ))?;
    }
    Ok(())
}
