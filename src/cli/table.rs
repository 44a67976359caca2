//! Formats tables with aligned columns, percentages, and numbers of bytes.

use std::fmt;

use super::visible;

/// Rows of cells; the first row has the names of the columns. Control characters in cells are printed as escapes.
pub(super) struct Table(pub(super) Vec<Vec<String>>);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GAP: &str = "  ";
        let rows = self.0.iter();
        let rows = rows.map(|row| row.iter().map(|cell| visible::line(cell)).collect());
        let rows: Vec<Vec<String>> = rows.collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        for row in &rows {
            let cells = row.iter().enumerate();
            let cells: Vec<_> = cells
                .map(|(column, cell)| format!("{cell:<width$}", width = width(column)))
                .collect();
            writeln!(f, "{}", cells.join(GAP).trim_end())?;
        }
        Ok(())
    }
}

/// The names of columns.
pub(super) fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A table of rows, each with the name of its pod. Without names it has no column for them.
pub(super) fn of_pods(columns: &[&str], rows: Vec<(Option<&str>, Vec<String>)>) -> Table {
    let has_pods = rows.iter().any(|(pod, _)| pod.is_some());
    let with = |pod: &str, cells: Vec<String>| -> Vec<String> {
        let pod = has_pods.then(|| pod.to_owned());
        pod.into_iter().chain(cells).collect()
    };
    let columns = with("POD", header(columns));
    let rows = rows.into_iter();
    let rows = rows.map(|(pod, cells)| with(pod.unwrap_or_default(), cells));
    Table([columns].into_iter().chain(rows).collect())
}

/// Formats a part of a sum in percent, with up to two decimal places.
pub(super) fn percent(part: u32, all: impl Iterator<Item = u32>) -> String {
    let sum: u64 = all.map(u64::from).sum();
    let percent = f64::from(part) * 100.0 / sum.max(1) as f64;
    of_number(percent)
}

/// Formats a percentage, with up to two decimal places.
pub(super) fn of_number(percent: f64) -> String {
    let text = format!("{percent:.2}");
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a number of bytes in the largest unit of which there is one.
pub(super) fn bytes(number: f64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.into_iter().find(|(_, size)| number >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", number / size),
        None => format!("{number:.0} B"),
    }
}

/// Formats a value before and after a change, or once if both are equal.
pub(super) fn transition(before: &str, after: &str) -> String {
    if before == after {
        return before.to_owned();
    }
    format!("{before} -> {after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_columns_without_trailing_space() {
        let table = Table(vec![
            header(&["RELEASE", "READY"]),
            header(&["a", "10"]),
            header(&["release-2", "3"]),
        ]);
        assert_eq!(
            table.to_string(),
            "RELEASE    READY\na          10\nrelease-2  3\n"
        );
    }

    #[test]
    fn cells_stay_on_their_line() {
        let table = Table(vec![header(&["PATH", "N"]), header(&["/\u{1b}[2J\n", "1"])]);
        assert_eq!(
            table.to_string(),
            "PATH              N\n/\\u001b[2J\\u000a  1\n"
        );
    }

    #[test]
    fn pods_have_a_column_if_there_are_some() {
        let table = |pods: [Option<&str>; 2]| {
            let rows = pods.into_iter().zip(["1", "2"]);
            let rows = rows.map(|(pod, number)| (pod, header(&[number])));
            of_pods(&["NUMBER"], rows.collect()).to_string()
        };
        assert_eq!(table([None, None]), "NUMBER\n1\n2\n");
        let expected = "POD     NUMBER\nedge-1  1\nedge-2  2\n";
        assert_eq!(table([Some("edge-1"), Some("edge-2")]), expected);
    }

    #[test]
    fn formats_percentages_without_trailing_zeros() {
        let all = || [1, 2, 0].into_iter();
        assert_eq!(percent(1, all()), "33.33%");
        assert_eq!(percent(0, all()), "0%");
        assert_eq!(percent(10, [10].into_iter()), "100%");
        assert_eq!(percent(0, [0].into_iter()), "0%");
    }

    #[test]
    fn formats_bytes_in_the_largest_unit() {
        let texts = [0.0, 999.0, 1e3, 1.5e6, 2e12].map(bytes);
        assert_eq!(texts, ["0 B", "999 B", "1.0 kB", "1.5 MB", "2000.0 GB"]);
    }
}
