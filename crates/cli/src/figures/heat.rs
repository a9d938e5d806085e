//! How is a grid of numbers drawn?

use inertiakv_eval::figure::Heat;
use plotters::coord::Shift;
use plotters::prelude::{Color, DrawingArea, DrawingBackend, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, FontTransform, RGBColor, WHITE};

use super::series::{Failure, below_title, font, width_of};
use super::{compact, shade};

/// A cell this wide has room for its number.
const NUMBER: f64 = 24.0;
/// A row of labels this high is legible.
const LEGIBLE: f64 = 13.0;

pub(super) fn heat<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: Option<&str>,
    unit: &str,
    heat: &Heat,
) -> Result<(), Failure<B>> {
    let area = below_title(area, title)?;
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width as i32, height as i32);
    let longest = |labels: &[String]| labels.iter().map(|label| width_of(label)).max().unwrap_or(0);
    let left = longest(&heat.rows).min(width / 2) + 14;
    let room = f64::from(width - left - 14) / heat.columns.len().max(1) as f64;
    let upright = f64::from(longest(&heat.columns)) > room;
    let bottom = if upright {
        longest(&heat.columns).min(height / 3) + 12
    } else {
        24
    };
    let top = 26;
    let cell_height = f64::from(height - top - bottom) / heat.rows.len().max(1) as f64;
    let x = |column: usize| left + (room * column as f64) as i32;
    let y = |row: usize| top + (cell_height * row as f64) as i32;
    let scale = format!(
        "{unit}: white {}, darkest {}",
        compact(heat.range.0),
        compact(heat.range.1)
    );
    area.draw(&Text::new(scale, (left, 6), font(13)))?;
    // Where labels would touch, only some of them are written.
    let skip = |size: f64| (LEGIBLE / size.max(0.1)).ceil().max(1.0) as usize;
    for (row, label) in heat.rows.iter().enumerate().step_by(skip(cell_height)) {
        let style = font(13).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(
            label.clone(),
            (left - 6, i32::midpoint(y(row), y(row + 1))),
            style,
        ))?;
    }
    for (column, label) in heat.columns.iter().enumerate().step_by(skip(room)) {
        let middle = i32::midpoint(x(column), x(column + 1));
        let (style, place) = if upright {
            let upright = font(13).transform(FontTransform::Rotate270);
            (
                upright.pos(Pos::new(HPos::Right, VPos::Center)),
                (middle, height - bottom + 6),
            )
        } else {
            (
                font(13).pos(Pos::new(HPos::Center, VPos::Top)),
                (middle, height - bottom + 6),
            )
        };
        area.draw(&Text::new(label.clone(), place, style))?;
    }
    for (row, values) in heat.values.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let corners = [(x(column), y(row)), (x(column + 1), y(row + 1))];
            let Some(value) = *value else {
                let crossed = vec![corners[0], corners[1]];
                area.draw(&PathElement::new(crossed, BLACK.mix(0.25)))?;
                continue;
            };
            let share = heat.share(value);
            let (red, green, blue) = shade(share);
            area.draw(&Rectangle::new(corners, RGBColor(red, green, blue).filled()))?;
            if room >= NUMBER && cell_height >= LEGIBLE {
                let ink = if share > 0.5 { WHITE } else { BLACK };
                let style = font(12).color(&ink).pos(Pos::new(HPos::Center, VPos::Center));
                let middle = (
                    i32::midpoint(x(column), x(column + 1)),
                    i32::midpoint(y(row), y(row + 1)),
                );
                area.draw(&Text::new(compact(value), middle, style))?;
            }
        }
    }
    let frame = [(x(0), y(0)), (x(heat.columns.len()), y(heat.rows.len()))];
    area.draw(&Rectangle::new(frame, BLACK.mix(0.4)))
}
