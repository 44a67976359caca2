//! The pages about adding a kind: their tables list every file that names the example.

use std::collections::BTreeSet;

use crate::{files_below, read};

/// The code of a file without comments and the tests at its end.
fn code(path: &str) -> String {
    let text = read(path);
    let untested = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = untested
        .lines()
        .map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The files whose code has one of these words.
fn naming(words: &[&str]) -> BTreeSet<String> {
    let files = files_below("src", "rs").into_iter();
    let files = files.filter(|path| !path.contains("/tests") && !path.contains("fixtures"));
    // Migrations write objects, and need no further kinds.
    let files = files.filter(|path| !path.starts_with("src/migrate/"));
    files
        .filter(|path| {
            let code = code(path);
            words.iter().any(|word| code.contains(word))
        })
        .collect()
}

/// The files in the rows of a page's first table.
fn listed(page: &str) -> BTreeSet<String> {
    let text = read(page);
    let table = text.split("\n|---").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split(" | ").nth(1));
    let files = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    files.map(str::to_owned).collect()
}

fn check(page: &str, words: &[&str], elsewhere: &[&str]) {
    let mut expected = naming(words);
    for path in elsewhere {
        assert!(expected.remove(*path), "{path} does not name {words:?}");
    }
    assert_eq!(listed(page), expected, "{page}");
    let count = format!("{} files name it.", expected.len());
    assert!(read(page).contains(&count), "{page}: {count}");
}

#[test]
fn page_lists_the_places_of_a_filter() {
    let preflight_of_grpc_web = "src/translate/route/grpc_route.rs";
    check(
        "docs/adding-a-filter.md",
        &["Cors", "CORS\"", "mod cors"],
        &[preflight_of_grpc_web],
    );
}

#[test]
fn page_lists_the_places_of_a_route_kind() {
    let words = ["GrpcRoute", "GRPCRoute", "grpc_route"];
    check("docs/adding-a-route-kind.md", &words, &[]);
}
