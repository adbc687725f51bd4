//! Tables, durations and sizes, as people read them. Pure.

use std::fmt::Write;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A column: its title, and how far it may be shortened where the line is too short; 0 for not at all.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub align: Align,
    pub shortest: usize,
}

/// Returns rows under their titles, each line not longer than `width`.
pub fn table(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let mut widths: Vec<usize> = columns.iter().map(|column| length(column.title)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(length(cell));
        }
    }
    shrink(&mut widths, columns, width);
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((column, cell), width) in columns.iter().zip(row).zip(&widths) {
            let cell = shortened(cell, *width);
            let gap = " ".repeat(width - length(&cell));
            let _ = match column.align {
                Align::Left => write!(line, "{cell}{gap}  "),
                Align::Right => write!(line, "{gap}{cell}  "),
            };
        }
        let line: String = line.trim_end().chars().take(width).collect();
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Takes from the longest column that may be shortened, one by one.
fn shrink(widths: &mut [usize], columns: &[Column], width: usize) {
    loop {
        let whole = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        if whole <= width {
            return;
        }
        let candidates = widths.iter().zip(columns).enumerate();
        let can = candidates
            .filter(|(_, (width, column))| column.shortest > 0 && **width > column.shortest);
        let Some((index, _)) = can.max_by_key(|(_, (width, _))| **width) else { return };
        widths[index] -= 1;
    }
}

/// Returns lines as text, none of them longer than `width`.
pub fn lines(lines: impl IntoIterator<Item = impl AsRef<str>>, width: usize) -> String {
    let lines = lines.into_iter().map(|line| shortened(line.as_ref(), width) + "\n");
    lines.collect()
}

/// Returns text that is not longer than `width`; `…` stands for what was left out.
pub fn shortened(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + if width > 0 { "…" } else { "" }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Returns bytes as text for a terminal: what could move its cursor is replaced.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}

/// `0.4s`, `12s`, `3m05s`, `2h15m`, `4d03h`.
pub fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..10 => format!("{seconds}.{}s", milliseconds % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `812K`, `3.4M`, `12G`.
pub fn size(bytes: u64) -> String {
    let mut unit = 1024;
    for name in ["K", "M", "G"] {
        if bytes < unit * 1024 || name == "G" {
            let whole = bytes / unit;
            let tenth = bytes % unit * 10 / unit;
            let exact = whole < 10 && name != "K";
            return if exact { format!("{whole}.{tenth}{name}") } else { format!("{whole}{name}") };
        }
        unit *= 1024;
    }
    String::new()
}

/// A moment in UTC, from milliseconds since the epoch: `2026-03-01 12:30:00Z`.
pub fn moment(milliseconds: i64) -> String {
    let seconds = milliseconds.div_euclid(1000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// The date so many days after 1970-01-01. Counted from a first of March: then leap days come last, and an era of
/// 400 years has always as many days.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let leaps = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] = [
        Column { title: "NAME", align: Align::Left, shortest: 3 },
        Column { title: "N", align: Align::Right, shortest: 0 },
    ];

    fn rows() -> Vec<Vec<String>> {
        vec![vec!["a long name".into(), "1".into()], vec!["b".into(), "100".into()]]
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let expected = "NAME           N\na long name    1\nb            100\n";
        assert_eq!(table(&COLUMNS, &rows(), 80), expected);
    }

    #[test]
    fn no_line_is_longer_than_it_may_be() {
        assert_eq!(table(&COLUMNS, &rows(), 10), "NAME     N\na lo…    1\nb      100\n");
        for width in 0..20 {
            for line in table(&COLUMNS, &rows(), width).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn durations_and_sizes_are_short() {
        let durations = [0, 430, 9_999, 59_000, 185_000, 8_100_000, 356_400_000].map(duration);
        assert_eq!(durations, ["0.0s", "0.4s", "9.9s", "59s", "3m05s", "2h15m", "4d03h"]);
        let sizes = [0, 831_488, 3_565_158, 104_857_600, 5_368_709_120, 1 << 45].map(size);
        assert_eq!(sizes, ["0K", "812K", "3.3M", "100M", "5.0G", "32768G"]);
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00:00Z");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(moment(1_794_989_723_693), "2026-11-18 08:15:23Z");
        assert_eq!(moment(-1), "1969-12-31 23:59:59Z");
    }

    #[test]
    fn what_could_move_a_cursor_is_not_printed() {
        assert_eq!(printable(b"a\x1b[2Jb\n\xff"), "a?[2Jb?\u{fffd}");
    }
}
