//! Parts of pages that tests generate. `UPDATE_DOCS=1` rewrites them.

use std::fs;
use std::path::Path;

/// Compares the part of a page between `<!-- name -->` and `<!-- /name -->` with `expected`, or replaces it.
pub(crate) fn check(page: &str, name: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (part, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{page} has no {end}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}{begin}{expected}{end}{after}");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{page}: {error}"));
        return;
    }
    assert!(
        part == expected,
        "{page} is old: UPDATE_DOCS=1 rewrites the part {name}\n\n{expected}"
    );
}
