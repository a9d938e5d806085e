//! How does a table fit into a terminal?

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

/// A space on either side of every cell.
const PADDING: usize = 2;

/// The lines of a table. Words and numbers are never broken: where a width is too little for them, every row becomes
/// lines of its own, each with a name of the header.
pub(super) fn lines(header: &[&str], rows: &[Vec<String>], numbers: &[usize], width: Option<usize>) -> Vec<String> {
    let least: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
            let whole = numbers.contains(&column);
            let needed = cells.map(|cell| if whole { length(cell) } else { longest_word(cell) });
            needed.fold(longest_word(header[column]), usize::max) + PADDING
        })
        .collect();
    if width.is_some_and(|width| least.iter().sum::<usize>() > width) {
        return records(header, rows);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.try_into().unwrap_or(u16::MAX));
        let constraints = least.iter().map(|&least| least.try_into().unwrap_or(u16::MAX));
        table.set_constraints(constraints.map(|least| ColumnConstraint::LowerBoundary(Width::Fixed(least))));
    }
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // The first column needs no space before it, and nothing is gained by space at the end of a line.
    let text = table.to_string();
    let line = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    text.lines().map(line).collect()
}

/// Rows one below the other; what is empty is left out.
fn records(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let name_width = header.iter().map(|name| length(name)).max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in rows {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let cells = header.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        lines.extend(cells.map(|(name, cell)| format!("{name:name_width$}  {cell}")));
    }
    lines
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(length).max().unwrap_or(0)
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::lines;

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![
            row([
                "inertia:ratio=0.75",
                "ranks by the running mean of attention",
                "113.8 MiB",
            ]),
            row(["full", "", "1,164.0 MiB"]),
        ]
    }

    const HEADER: [&str; 3] = ["method", "what it does", "memory"];

    #[test]
    fn words_and_numbers_stay_whole_at_every_width() {
        let whole = ["inertia:ratio=0.75", "113.8 MiB", "1,164.0 MiB", "attention"];
        for width in (10..120).map(Some).chain([None]) {
            let lines = lines(&HEADER, &rows(), &[2], width);
            let text = lines.join("\n");
            for word in whole {
                assert!(text.contains(word), "{width:?} breaks `{word}`:\n{text}");
            }
            if lines[0].starts_with("method ") && lines[0].ends_with("memory") {
                let longest = lines.iter().map(|line| line.chars().count()).max();
                assert!(longest <= Some(width.unwrap_or(120)), "{width:?} is exceeded:\n{text}");
            }
        }
    }

    #[test]
    fn a_narrow_terminal_gets_rows_one_below_the_other() {
        let expected = [
            "method        inertia:ratio=0.75",
            "what it does  ranks by the running mean of attention",
            "memory        113.8 MiB",
            "",
            "method        full",
            "memory        1,164.0 MiB",
        ];
        assert_eq!(lines(&HEADER, &rows(), &[2], Some(30)), expected);
    }
}
