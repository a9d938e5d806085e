//! What does a folder of results look like, as one page that needs no network?

use std::fmt::Write;

use anyhow::Result;
use inertiakv_eval::figure::{Figure, Heat, Kind};
use inertiakv_eval::report::{Row, View};

use crate::figures::{NARROW, WIDE, compact, shade, svg};
use crate::format::{mebibytes, percent};

const STYLE: &str = include_str!("report/report.css");

/// The whole page: style and figures are in it.
pub(crate) fn html(name: &str, views: &[View]) -> Result<String> {
    let mut page = String::new();
    let name = escaped(name);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{name}: InertiaKV results</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
    )?;
    if views.len() > 1 {
        let links = views
            .iter()
            .enumerate()
            .map(|(index, view)| format!("<a href=\"#model-{index}\">{}</a>", escaped(&view.model)));
        writeln!(page, "<nav>{}</nav>", links.collect::<Vec<_>>().join(" · "))?;
    }
    for (index, view) in views.iter().enumerate() {
        model(&mut page, index, view)?;
    }
    page.push_str(
        "<footer>Scores are percent, over the examples that all methods have run; a failed example counts 0. Differences are \
         in points against the first method, with their paired bootstrap 95 % interval over examples within tasks. A cell is \
         the darker the higher its number.</footer>\n</body>\n</html>\n",
    );
    Ok(page)
}

fn model(page: &mut String, index: usize, view: &View) -> Result<()> {
    writeln!(
        page,
        "<section id=\"model-{index}\">\n<h2>{}</h2>",
        escaped(&view.model)
    )?;
    if view.rows.iter().any(|row| row.summary.examples > 0) {
        summary(page, &view.rows)?;
    } else if !view.rows.is_empty() {
        page.push_str("<p>The methods have no example in common yet.</p>\n");
    }
    for drawing in &view.figures {
        figure(page, drawing)?;
    }
    if !view.failures.is_empty() {
        let items = view
            .failures
            .iter()
            .map(|failure| format!("<li>{}</li>", escaped(failure)));
        writeln!(
            page,
            "<details><summary>{} failed</summary><ul>{}</ul></details>",
            view.failures.len(),
            items.collect::<String>()
        )?;
    }
    page.push_str("</section>\n");
    Ok(())
}

fn summary(page: &mut String, rows: &[Row]) -> Result<()> {
    page.push_str(
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"summary\">\n<thead><tr><th scope=\"col\">method</th>",
    );
    for column in [
        "mean",
        "difference",
        "95 % interval",
        "win/tie/loss",
        "examples",
        "failed",
        "kept",
        "KV",
        "ms/token",
    ] {
        write!(page, "<th scope=\"col\">{column}</th>")?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let summary = &row.summary;
        let none = || "–".to_owned();
        let interval = summary.difference.as_ref();
        let bounds = interval.and_then(|interval| interval.bounds);
        let cells = [
            summary.mean.map_or_else(none, |mean| format!("{mean:.1}")),
            interval.map_or_else(none, |interval| format!("{:+.1}", interval.mean)),
            bounds.map_or_else(none, |(low, high)| format!("{low:+.1} to {high:+.1}")),
            summary
                .outcomes
                .map_or_else(none, |o| format!("{}/{}/{}", o.wins, o.ties, o.losses)),
            summary.examples.to_string(),
            summary.failed.to_string(),
            row.cost.map_or_else(none, |cost| percent(cost.kept)),
            row.cost.map_or_else(none, |cost| mebibytes(cost.kv_bytes as usize)),
            row.cost
                .and_then(|cost| cost.milliseconds_per_token)
                .map_or_else(none, |time| format!("{time:.1}")),
        ];
        writeln!(
            page,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            breakable(&summary.method),
            cells.join("</td><td>")
        )?;
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

fn figure(page: &mut String, figure: &Figure) -> Result<()> {
    writeln!(page, "<figure><figcaption>{}</figcaption>", escaped(&figure.title))?;
    if let Kind::Heat(heat) = &figure.kind {
        heat_table(page, figure, heat)?;
    } else {
        for (class, size) in [("wide", WIDE), ("narrow", NARROW)] {
            let label = escaped(&format!("{}: {}", figure.title, figure.unit));
            writeln!(
                page,
                "<div class=\"{class}\" role=\"img\" aria-label=\"{label}\">{}</div>",
                svg(figure, size, false)?
            )?;
        }
        numbers(page, figure)?;
    }
    page.push_str("</figure>\n");
    Ok(())
}

/// A heat map is a table: it scrolls, and can be selected and read aloud.
fn heat_table(page: &mut String, figure: &Figure, heat: &Heat) -> Result<()> {
    // Numbers of a fine map would only be noise.
    let fine = heat.columns.len() > 30;
    writeln!(
        page,
        "<p>{}: white {}, darkest {}</p>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"heat{}\">",
        escaped(&figure.unit),
        compact(heat.range.0),
        compact(heat.range.1),
        if fine { " fine" } else { "" }
    )?;
    page.push_str("<thead><tr><th></th>");
    for (index, column) in heat.columns.iter().enumerate() {
        let label = if fine && index % 8 != 0 { "" } else { column };
        write!(page, "<th scope=\"col\"><span>{}</span></th>", breakable(label))?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for (row, values) in heat.rows.iter().zip(&heat.values) {
        write!(page, "<tr><th scope=\"row\">{}</th>", breakable(row))?;
        for value in values {
            let Some(value) = value else {
                page.push_str("<td class=\"none\">–</td>");
                continue;
            };
            let share = heat.share(*value);
            let (red, green, blue) = shade(share);
            let ink = if share > 0.5 { "#fff" } else { "#000" };
            let number = format!("{value:.0}");
            let (title, text) = if fine {
                (format!(" title=\"{number}\""), "")
            } else {
                (String::new(), number.as_str())
            };
            write!(
                page,
                "<td{title} style=\"background:rgb({red},{green},{blue});color:{ink}\">{text}</td>"
            )?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

/// The numbers behind a drawing.
fn numbers(page: &mut String, figure: &Figure) -> Result<()> {
    let Kind::Lines(lines) = &figure.kind else {
        return Ok(());
    };
    write!(
        page,
        "<details><summary>numbers</summary><div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th></th>\
         <th scope=\"col\">{}</th><th scope=\"col\">{}</th></tr></thead><tbody>",
        escaped(&lines.axis),
        escaped(&figure.unit)
    )?;
    for (label, points) in &lines.series {
        for (x, y) in points {
            write!(
                page,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{y:.1}</td></tr>",
                escaped(label),
                compact(*x)
            )?;
        }
    }
    page.push_str("</tbody></table></div></details>\n");
    Ok(())
}

/// A name, with places where it may go on in the next line.
fn breakable(name: &str) -> String {
    [":", ",", "_", "+"]
        .iter()
        .fold(escaped(name), |text, mark| text.replace(mark, &format!("{mark}<wbr>")))
}

/// A text that cannot be taken for markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
