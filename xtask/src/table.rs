//! Tables for people: columns aligned, text to the left and numbers to the right.

/// A table with a header line; the columns of `numbers` are aligned to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> String {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let lines = || std::iter::once(&header).chain(rows);
    let widths: Vec<usize> = (0..header.len())
        .map(|column| lines().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for cells in lines() {
        let line: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if numbers.contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A whole number with commas.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{grouped, table};

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["α".to_owned(), "1".to_owned()],
            vec!["beta".to_owned(), "1,000".to_owned()],
        ];
        assert_eq!(
            table(&["name", "n"], &rows, &[1]),
            "name      n\nα         1\nbeta  1,000\n"
        );
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
