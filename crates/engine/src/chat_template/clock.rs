//! Today's date for templates that mention it.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The first of January 1970 was a Thursday.
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// The current time (UTC) in the notation of C's `strftime`, as far as templates use it; what is not known is left as
/// it is.
pub(super) fn format_now(format: &str) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    format_time(format, now)
}

fn format_time(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text += &rest[..at];
        rest = &rest[at..];
        let (used, value) = match rest.get(1..2) {
            Some("Y") => (2, year.to_string()),
            Some("y") => (2, format!("{:02}", year % 100)),
            Some("m") => (2, format!("{month:02}")),
            Some("d") => (2, format!("{day:02}")),
            Some("e") => (2, format!("{day:2}")),
            Some("B") => (2, month_name.to_owned()),
            Some("b") => (2, month_name[..3].to_owned()),
            Some("A") => (2, weekday.to_owned()),
            Some("a") => (2, weekday[..3].to_owned()),
            Some("H") => (2, format!("{:02}", second / 3600)),
            Some("M") => (2, format!("{:02}", second / 60 % 60)),
            Some("S") => (2, format!("{:02}", second % 60)),
            Some("%") => (2, "%".to_owned()),
            Some("-") if rest[2..].starts_with('d') => (3, day.to_string()),
            Some("-") if rest[2..].starts_with('m') => (3, month.to_string()),
            _ => (1, "%".to_owned()),
        };
        text += &value;
        rest = &rest[used..];
    }
    text + rest
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years are counted from March, so
/// that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_PER_CYCLE: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (cycle, day_of_cycle) = (days / DAYS_PER_CYCLE, days % DAYS_PER_CYCLE);
    let leap_days_before = day_of_cycle / 1_460 - day_of_cycle / 36_524 + day_of_cycle / 146_096;
    let year_of_cycle = (day_of_cycle - leap_days_before) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01 Thu"),
            (951_782_400, "2000-02-29 Tue"),
            (951_868_800, "2000-03-01 Wed"),
            (1_735_603_199, "2024-12-30 Mon"),
            (4_107_542_399, "2100-02-28 Sun"),
            (4_107_542_400, "2100-03-01 Mon"),
        ] {
            assert_eq!(format_time("%Y-%m-%d %a", seconds), expected);
        }
    }

    #[test]
    fn the_notations_of_templates_are_known() {
        let text = format_time("%d %b %Y|%A, %B %-d|%H:%M:%S|%e %y %%|%Q %", 1_704_243_909);
        assert_eq!(text, "03 Jan 2024|Wednesday, January 3|01:05:09| 3 24 %|%Q %");
    }
}
