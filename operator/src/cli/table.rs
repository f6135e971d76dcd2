//! Tables for a terminal: columns padded to their widest cell, except the last one.

/// The table with a head.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<&[String]> = rows.iter().map(<[String; N]>::as_slice).collect();
    lines(&head, &rows)
}

/// The table without the columns that contain only `empty`.
pub fn table_without<const N: usize>(head: [&str; N], rows: &[[String; N]], empty: &str) -> String {
    let filled: [bool; N] = std::array::from_fn(|column| {
        rows.iter().filter_map(|cells| cells.get(column)).any(|cell| cell != empty)
    });
    let kept = |cells: &[String; N]| -> Vec<String> {
        cells.iter().zip(filled).filter(|(_, kept)| *kept).map(|(cell, _)| cell.clone()).collect()
    };
    let head: Vec<&str> =
        head.into_iter().zip(filled).filter(|(_, kept)| *kept).map(|(cell, _)| cell).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(kept).collect();
    lines(&head, &rows.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn lines(head: &[&str], rows: &[&[String]]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let all: Vec<&[String]> =
        std::iter::once(head.as_slice()).chain(rows.iter().copied()).collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &&[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}
