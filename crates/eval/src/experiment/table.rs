//! How does a table of measurements stand beside the paper's?

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Rows of measurements and, in the same columns, what the paper reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// What a row is.
    pub corner: String,
    /// Headers of the numbers.
    pub columns: Vec<String>,
    /// Ours first.
    pub rows: Vec<TableRow>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableRow {
    /// The model, as whoever measured calls it.
    pub model: String,
    /// Whose numbers these are.
    pub source: Source,
    /// The row's name.
    pub label: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// Who measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// This run.
    Run,
    /// The paper.
    Paper,
}

/// What stands in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number with the decimals that are worth showing, and its bounds if there are any.
    Estimate {
        /// The number.
        value: f64,
        /// 95 % bounds.
        bounds: Option<(f64, f64)>,
        /// Decimals to show.
        decimals: usize,
    },
    /// A number as the paper prints it.
    Number(f64),
    /// Words.
    Text(String),
    /// Not measured.
    Nothing,
}

impl Cell {
    /// A number without bounds.
    #[must_use]
    pub fn plain(value: f64, decimals: usize) -> Self {
        Self::Estimate {
            value,
            bounds: None,
            decimals,
        }
    }

    /// A measure that may be undefined.
    #[must_use]
    pub fn of(value: Option<f64>, decimals: usize) -> Self {
        value.map_or(Self::Nothing, |value| Self::plain(value, decimals))
    }

    /// The number in it, if it holds one.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Estimate { value, .. } | Self::Number(value) => Some(*value),
            Self::Text(_) | Self::Nothing => None,
        }
    }

    /// As people read it: `75.60`, `75.60 [70.10, 81.00]`, `–`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Estimate {
                value,
                bounds,
                decimals,
            } => {
                let bounds = bounds.map(|(low, high)| format!(" [{low:.decimals$}, {high:.decimals$}]"));
                format!("{value:.decimals$}{}", bounds.unwrap_or_default())
            }
            Self::Number(value) => value.to_string(),
            Self::Text(text) => text.clone(),
            Self::Nothing => "–".to_owned(),
        }
    }
}

impl Table {
    /// The header and all rows as texts.
    #[must_use]
    pub fn texts(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut header = vec!["Model".to_owned(), self.corner.clone()];
        header.extend(self.columns.iter().cloned());
        let row = |row: &TableRow| {
            let model = match row.source {
                Source::Run => row.model.clone(),
                Source::Paper if row.model.is_empty() => "paper".to_owned(),
                Source::Paper => format!("{} (paper)", row.model),
            };
            [model, row.label.clone()]
                .into_iter()
                .chain(row.cells.iter().map(Cell::text))
                .collect()
        };
        (header, self.rows.iter().map(row).collect())
    }

    /// The table in Markdown, its title above and its notes below.
    #[must_use]
    pub fn markdown(&self) -> String {
        let (header, rows) = self.texts();
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("## {}\n\n{}", self.title, line(&header));
        let rules: Vec<&str> = (0..header.len())
            .map(|column| if column < 2 { "---" } else { "---:" })
            .collect();
        let _ = writeln!(text, "| {} |", rules.join(" | "));
        for row in &rows {
            text += &line(row);
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// One line per row: model, source, row, then a number per column, with two more for its bounds where a column has any.
    #[must_use]
    pub fn csv(&self) -> String {
        let has_bounds = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
            cells
                .into_iter()
                .any(|cell| matches!(cell, Cell::Estimate { bounds: Some(_), .. }))
        };
        let mut header = vec!["model".to_owned(), "source".to_owned(), self.corner.clone()];
        for (index, column) in self.columns.iter().enumerate() {
            header.push(column.clone());
            if has_bounds(index) {
                header.extend([format!("{column} low"), format!("{column} high")]);
            }
        }
        let mut text = line(&header);
        for row in &self.rows {
            let source = match row.source {
                Source::Run => "run",
                Source::Paper => "paper",
            };
            let mut cells = vec![row.model.clone(), source.to_owned(), row.label.clone()];
            for (index, cell) in row.cells.iter().enumerate() {
                cells.push(match cell {
                    Cell::Text(text) => text.clone(),
                    cell => cell.value().map_or_else(String::new, |value| value.to_string()),
                });
                if has_bounds(index) {
                    let bounds = match cell {
                        Cell::Estimate { bounds, .. } => *bounds,
                        _ => None,
                    };
                    let side = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
                    cells.extend([side(bounds.map(|b| b.0)), side(bounds.map(|b| b.1))]);
                }
            }
            text += &line(&cells);
        }
        text
    }
}

/// A line of CSV.
fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{Cell, Source, Table, TableRow};

    fn table() -> Table {
        Table {
            title: "T".to_owned(),
            corner: "Benchmark".to_owned(),
            columns: vec!["Full".to_owned(), "a, b".to_owned()],
            rows: vec![
                TableRow {
                    model: "m".to_owned(),
                    source: Source::Run,
                    label: "RULER".to_owned(),
                    cells: vec![
                        Cell::Estimate {
                            value: 75.5,
                            bounds: Some((70.0, 80.25)),
                            decimals: 1,
                        },
                        Cell::Nothing,
                    ],
                },
                TableRow {
                    model: "Llama".to_owned(),
                    source: Source::Paper,
                    label: "RULER".to_owned(),
                    cells: vec![Cell::Number(94.59), Cell::Text("x|y".to_owned())],
                },
            ],
            notes: vec!["A note.".to_owned()],
        }
    }

    #[test]
    fn people_read_markdown() {
        assert_eq!(
            table().markdown(),
            "## T\n\n| Model | Benchmark | Full | a, b |\n| --- | --- | ---: | ---: |\n| m | RULER | 75.5 [70.0, 80.2] | – |\n\
             | Llama (paper) | RULER | 94.59 | x\\|y |\n\nA note.\n"
        );
    }

    #[test]
    fn programs_read_csv() {
        assert_eq!(
            table().csv(),
            "model,source,Benchmark,Full,Full low,Full high,\"a, b\"\nm,run,RULER,75.5,70,80.25,\nLlama,paper,RULER,94.59,,,x|y\n"
        );
    }
}
