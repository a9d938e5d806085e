//! How are numbers written for people?

/// Bytes as MiB: `12.3 MiB`.
pub(crate) fn mebibytes(bytes: usize) -> String {
    let value = bytes as f64 / (1 << 20) as f64;
    let places = if value < 10.0 { 2 } else { 1 };
    format!("{value:.places$} MiB")
}

/// A file size in decimal megabytes, as download pages show it: `98 MB`.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

/// A whole number with commas: `12,345`.
pub(crate) fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with what it counts: `1 entry`, `1,234 entries`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let number = match number {
        1 => return format!("1 {noun}"),
        _ => count(number),
    };
    match noun.strip_suffix('y') {
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

/// Seconds for people: `45 s`, `12 min`, `3.5 h`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// A rate: `123 tok/s`, `1.2 tok/s`.
pub(crate) fn rate(tokens_per_second: f64) -> String {
    format!("{} tok/s", speed(tokens_per_second))
}

/// Tokens per second without the unit: `123`, `1.2`.
pub(crate) fn speed(tokens_per_second: f64) -> String {
    let places = usize::from(tokens_per_second < 100.0);
    format!("{tokens_per_second:.places$}")
}

/// A share as a percentage: `12.5 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::{count, counted, duration, mebibytes, megabytes, percent, rate};

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(counted(0, "token"), "0 tokens");
        assert_eq!(counted(1, "entry"), "1 entry");
        assert_eq!(counted(2_000, "entry"), "2,000 entries");
        assert_eq!(mebibytes(1 << 20), "1.00 MiB");
        assert_eq!(mebibytes(150 << 20), "150.0 MiB");
        assert_eq!(megabytes(98_362_432), "98 MB");
        assert_eq!([4.2, 720.0, 12_600.0].map(duration), ["4 s", "12 min", "3.5 h"]);
        assert_eq!(rate(12.34), "12.3 tok/s");
        assert_eq!(rate(123.4), "123 tok/s");
        assert_eq!(percent(0.125), "12.5 %");
    }
}
