//! The tables of docs/security.md and docs/versions.md: the tests that prove their rows exist, and so do the constants and
//! settings of bounds.

use std::collections::BTreeSet;

use crate::{files_below, read, root};

/// Returns the cells of the rows of the tables whose header ends with these columns.
pub(crate) fn rows<'a>(page: &'a str, columns: &str) -> Vec<Vec<&'a str>> {
    let tables = page.split(columns).skip(1);
    let lines = tables.flat_map(|table| {
        let lines = table.lines().skip(2);
        lines.take_while(|line| line.starts_with('|'))
    });
    let cells = |line: &'a str| line.trim_matches(['|', ' ']).split(" | ").collect();
    lines.map(cells).collect()
}

/// Returns the texts in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Reports whether code has a test of this name.
pub(crate) fn has_test(code: &str, name: &str) -> bool {
    let before = code.split_once(&format!("fn {name}("));
    let attributes = before.and_then(|(before, _)| before.rsplit("\n\n").next());
    attributes.is_some_and(|it| it.contains("#[test]") || it.contains("#[tokio::test"))
}

#[test]
fn pages_name_tests_that_exist() {
    let pages = ["docs/security.md", "docs/versions.md"].map(read);
    let rows = pages.iter().flat_map(|page| rows(page, "| proof |"));
    let mut count = 0;
    for row in rows {
        let proofs: Vec<_> = quoted(row[row.len() - 1]).collect();
        assert!(!proofs.is_empty() || row.ends_with(&["none"]), "{row:?}");
        for proof in proofs {
            let (file, test) = proof.split_once("::").unwrap_or((proof, ""));
            // Some proofs are all tests of a file or a folder.
            let exists = test.is_empty() && root(file).exists();
            assert!(exists || has_test(&read(file), test), "no test {proof}");
            count += 1;
        }
    }
    assert!(count > 100, "{count} proofs");
}

#[test]
fn page_names_constants_and_settings_that_exist() {
    let (page, settings) = (read("docs/security.md"), read("docs/settings.md"));
    let code: String = files_below("src", "rs").iter().map(|it| read(it)).collect();
    let constants = code.split("const ").skip(1);
    let constants: BTreeSet<&str> = constants.filter_map(|it| it.split(':').next()).collect();
    let rows = rows(&page, "| limited by | proof |");
    assert!(rows.len() > 50, "{} rows", rows.len());
    for name in rows.iter().flat_map(|row| quoted(row[row.len() - 2])) {
        let is_constant = name.chars().all(|it| it.is_ascii_uppercase() || it == '_');
        let exists = match name.starts_with("--") {
            true => settings.contains(&format!("`{name}")),
            false => !is_constant || constants.contains(name),
        };
        assert!(exists, "no constant or setting {name}");
    }
}
