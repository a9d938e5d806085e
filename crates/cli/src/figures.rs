//! What do figures look like? Each is drawn as SVG and as PNG.
//!
//! A figure can be read without colour: series differ in marker and dashes, cells carry their number or a shade of one hue.

mod heat;
mod series;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, Result, anyhow};
use inertiakv_eval::figure::{Figure, Kind};
use plotters::coord::Shift;
use plotters::prelude::{BitMapBackend, DrawingArea, DrawingBackend, IntoDrawingArea, RGBColor, SVGBackend, WHITE};
use plotters::style::{FontStyle, register_font};

use crate::format::counted;
use crate::printer::Printer;

/// Of a figure in a file, and in a page that is wide.
pub(crate) const WIDE: (u32, u32) = (900, 540);
/// In a page on a telephone.
pub(crate) const NARROW: (u32, u32) = (360, 440);

const FONT: &str = "sans-serif";
/// Told apart also by those who do not see red and green.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xB8, 0x6E, 0x00),
    RGBColor(0x00, 0x7A, 0x59),
    RGBColor(0xA0, 0x3C, 0x7A),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x2B, 0x7F, 0xB5),
];

/// A map of many rows is a tall file.
fn size_in_file(figure: &Figure) -> (u32, u32) {
    let rows = match &figure.kind {
        Kind::Heat(heat) => heat.rows.len() as u32,
        Kind::Bars { .. } | Kind::Lines(_) => 0,
    };
    (WIDE.0, WIDE.1.max(rows * 16 + 220))
}

/// Writes `<name>.svg` and `<name>.png`.
fn write(figure: &Figure, folder: &Path) -> Result<[PathBuf; 2]> {
    let paths = ["svg", "png"].map(|kind| folder.join(format!("{}.{kind}", figure.name)));
    let named = |error: anyhow::Error| error.context(format!("cannot draw into {}", folder.display()));
    let drawing = svg(figure, size_in_file(figure), true).map_err(named)?;
    std::fs::write(&paths[0], drawing).map_err(|error| named(error.into()))?;
    write_png(figure, &paths[1]).map_err(named)?;
    Ok(paths)
}

/// The figure as SVG; the title is left out where it stands beside the figure.
pub(crate) fn svg(figure: &Figure, size: (u32, u32), titled: bool) -> Result<String> {
    let mut svg = String::new();
    draw(
        figure,
        &SVGBackend::with_string(&mut svg, size).into_drawing_area(),
        titled,
    )?;
    Ok(svg)
}

fn write_png(figure: &Figure, path: &Path) -> Result<()> {
    let size = size_in_file(figure);
    let (width, height) = size;
    let mut pixels = vec![0; 3 * (width * height) as usize];
    draw(
        figure,
        &BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(),
        true,
    )?;
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    Ok(writer.finish()?)
}

fn draw<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>, titled: bool) -> Result<()> {
    use_own_font();
    area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    let title = titled.then_some(figure.title.as_str());
    match &figure.kind {
        Kind::Bars { parts, bars } => series::bars(area, title, &figure.unit, parts, bars),
        Kind::Lines(lines) => series::lines(area, title, &figure.unit, lines),
        Kind::Heat(heat) => heat::heat(area, title, &figure.unit, heat),
    }
    .map_err(|error| anyhow!("{error}"))?;
    area.present().map_err(|error| anyhow!("{error}"))
}

/// The shade of a share: white to dark blue, ever darker, so that it needs no colour.
pub(crate) fn shade(share: f64) -> (u8, u8, u8) {
    let mix = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    (mix(255.0, 8.0), mix(255.0, 48.0), mix(255.0, 107.0))
}

/// The folder for figures; what is wrong with it shows before minutes of work.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}; choose another", folder.display()))
}

/// Writes figures into a folder and says how many.
pub(crate) fn write_all(folder: &Path, figures: &[Figure], printer: &Printer) -> Result<()> {
    make_folder(folder)?;
    for figure in figures {
        write(figure, folder)?;
    }
    printer.note(&format!(
        "drew {} as SVG and PNG in {}",
        counted(figures.len(), "figure"),
        folder.display()
    ));
    Ok(())
}

/// A number as an axis shows it: `0.25`, `12`, `4k`, `1.5M`.
pub(crate) fn compact(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

/// Figures look alike on every machine, also where no font is installed.
fn use_own_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Refused only for bytes that are no font.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
}

#[cfg(test)]
mod tests {
    use super::{NARROW, WIDE, compact, shade, svg, write};
    use inertiakv_eval::figure::{Figure, Heat, Kind, Lines};

    fn figure(kind: Kind) -> Figure {
        Figure {
            name: "f".to_owned(),
            title: "Title".to_owned(),
            unit: "score".to_owned(),
            kind,
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -0.0, 0.25, 12.0, 12.34, 300.0, 4096.0, 16_000.0, 1.5e6, 2e9].map(compact);
        assert_eq!(
            shown,
            ["0", "0", "0.25", "12", "12.3", "300", "4096", "16k", "1.5M", "2G"]
        );
    }

    #[test]
    fn every_kind_is_drawn_at_both_sizes() {
        let series: Vec<_> = (0..16)
            .map(|n| (format!("method {n}"), vec![(10.0, f64::from(n)), (1000.0, 50.0)]))
            .collect();
        let heat = Heat {
            rows: vec!["a".to_owned(), "b".to_owned()],
            columns: vec!["x".to_owned()],
            values: vec![vec![Some(42.0)], vec![None]],
            range: (0.0, 100.0),
        };
        let kinds = [
            Kind::Bars {
                parts: vec!["p".to_owned(), "q".to_owned()],
                bars: vec![("bar".to_owned(), vec![1.0, 2.0])],
            },
            Kind::Lines(Lines {
                axis: "tokens".to_owned(),
                logarithmic: true,
                series,
            }),
            Kind::Heat(heat),
        ];
        for kind in kinds {
            let figure = figure(kind);
            for size in [WIDE, NARROW] {
                let drawn = svg(&figure, size, true).unwrap();
                assert!(drawn.starts_with("<svg") && drawn.contains("Title"), "{drawn}");
                assert!(!svg(&figure, size, false).unwrap().contains("Title"));
            }
            let folder = tempfile::tempdir().unwrap();
            let [_, png] = write(&figure, folder.path()).unwrap();
            assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn a_figure_of_nothing_is_an_empty_frame() {
        for kind in [
            Kind::Bars {
                parts: Vec::new(),
                bars: Vec::new(),
            },
            Kind::Lines(Lines {
                axis: String::new(),
                logarithmic: false,
                series: Vec::new(),
            }),
            Kind::Heat(Heat {
                rows: Vec::new(),
                columns: Vec::new(),
                values: Vec::new(),
                range: (0.0, 0.0),
            }),
        ] {
            assert!(svg(&figure(kind), WIDE, true).unwrap().contains("Title"));
        }
    }

    #[test]
    fn darker_is_more() {
        let luminance = |share| {
            let (red, green, blue) = shade(share);
            f64::from(red) + f64::from(green) + f64::from(blue)
        };
        assert!(luminance(0.0) > luminance(0.3) && luminance(0.3) > luminance(1.0));
    }
}
