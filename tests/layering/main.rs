//! Holds the module map: who may import whom, which outside crates a module may name, how long a file may be and that
//! each says what it owns, and that tests do not judge by the clock; `UPDATE_DOCS=1` writes the picture of
//! docs/architecture.md. Reads the sources as text and leaves `#[cfg(test)]` modules alone; how long files are and what they
//! say goes for tests and benches too.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod circles;
mod clock;
#[path = "../harness/generated.rs"]
mod generated;
mod layers;
mod outside;
mod picture;

use std::fs;
use std::path::{Path, PathBuf};

use layers::{LAYERS, Layer};

/// Lines of a file, without the test module at its end.
const MAX_LINES: usize = 500;

/// Where the sources are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

struct Source {
    /// Path below `src`, without `.rs` and `/mod`.
    module: String,
    /// The text without comments, strings and test modules.
    code: String,
}

fn sources() -> Vec<Source> {
    files(Path::new(SOURCES))
        .iter()
        .filter_map(|path| {
            let below = path.strip_prefix(SOURCES).unwrap().with_extension("");
            let below = below.to_str().unwrap().to_owned();
            let module = below.strip_suffix("/mod").unwrap_or(&below).to_owned();
            let text = fs::read_to_string(path).unwrap();
            let is_test = module
                .split('/')
                .any(|part| part == "tests" || part == "fixtures");
            (!is_test).then(|| Source {
                code: code_of(&text),
                module,
            })
        })
        .collect()
}

/// The Rust files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.sort();
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // What cargo makes for a package of its own is not ours.
            if !path.ends_with("target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Everything that counts: no comments, no string literals, nothing below a `#[cfg(test)]` module.
fn code_of(text: &str) -> String {
    let untested = without_tests(text);
    let mut code = String::with_capacity(untested.len());
    let mut rest = untested.as_str();
    while let Some(character) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if character == '"' {
            rest = after_string(&rest[1..]);
            code.push_str("\"\"");
        } else if let Some(literal) = char_literal(rest) {
            rest = &rest[literal..];
        } else {
            code.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    code
}

fn after_string(rest: &str) -> &str {
    let mut escaped = false;
    for (at, character) in rest.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &rest[at + 1..],
            _ => {}
        }
    }
    ""
}

/// Length of a character literal, as opposed to a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let first = body.chars().next()?;
    let length = if first == '\\' {
        body[1..].find('\'').map(|end| end + 1)?
    } else {
        first.len_utf8()
    };
    body[length..].starts_with('\'').then_some(length + 2)
}

/// The lines outside `#[cfg(test)]` items. Relies on rustfmt: an item ends at the indentation at which it begins.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        for line in lines.by_ref() {
            let is_one_line = line.ends_with(';') && !line.trim_start().starts_with('#');
            if line == end
                || is_one_line
                    && line
                        .strip_prefix(indent)
                        .is_some_and(|rest| !rest.starts_with(' '))
            {
                break;
            }
        }
    }
    kept
}

/// The paths of ours that a file names: `crate::a::b`, also out of `use crate::{a, b::c};`.
fn imports(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let is_whole = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        if is_whole {
            expand(&code[at + "crate::".len()..], "", &mut paths);
        }
    }
    paths
}

/// Adds every path of a use tree that begins at `tree`, and returns what follows it.
fn expand<'a>(tree: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let tree = tree.trim_start();
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = expand(rest, prefix, paths).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                _ => return rest.trim_start_matches([',', ' ', '\n', '}']),
            }
        }
    }
    let length = tree
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*'))
        .unwrap_or(tree.len());
    let (name, rest) = tree.split_at(length);
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}::{name}")
    };
    match rest.strip_prefix("::") {
        Some(rest) if !name.is_empty() => expand(rest, &path, paths),
        _ => {
            if !name.is_empty() {
                paths.push(path);
            }
            rest
        }
    }
}

fn layer_of(module: &str) -> Option<&'static Layer> {
    LAYERS
        .iter()
        .filter(|layer| is_within(module, layer.module, "/"))
        .max_by_key(|layer| layer.module.len())
}

fn is_within(path: &str, prefix: &str, separator: &str) -> bool {
    prefix.is_empty()
        || path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(separator))
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let mut faults = Vec::new();
    for source in sources() {
        let Some(layer) = layer_of(&source.module) else {
            faults.push(format!(
                "src/{}.rs belongs to no layer of tests/layering/layers.rs",
                source.module
            ));
            continue;
        };
        for path in imports(&source.code) {
            let allowed = |import: &&str| is_within(&path, import, "::");
            if !layer.imports.iter().any(allowed) {
                faults.push(format!(
                    "src/{}.rs must not import crate::{path}",
                    source.module
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn imports_have_no_circles() {
    let files = circles::between_files(&sources());
    let mut faults: Vec<String> = Vec::new();
    for (folder, imports) in circles::between_folders(&files) {
        let is_folder = |name: &String| {
            let inside = format!("{}/", format!("{folder}/{name}").trim_start_matches('/'));
            files.keys().any(|file| file.starts_with(&inside))
        };
        let found = circles::circles(&imports).into_iter();
        faults.extend(
            found
                .filter(|circle| circle.iter().any(is_folder))
                .map(|circle| format!("circle in src/{folder}: {}", circle.join(" "))),
        );
    }
    let found = circles::circles(&files);
    let accepted = |first: &str| circles::ACCEPTED.iter().any(|(known, _)| *known == first);
    for circle in found.iter().filter(|circle| !accepted(&circle[0])) {
        faults.push(format!("circle of files: {}", circle.join(" ")));
    }
    for (first, _) in circles::ACCEPTED {
        if !found.iter().any(|circle| circle[0] == *first) {
            faults.push(format!("no circle of files begins at {first} any more"));
        }
    }
    assert_none(&faults);
}

#[test]
fn modules_name_only_the_crates_that_they_may() {
    let mut faults = Vec::new();
    for source in sources() {
        let never = layer_of(&source.module).map_or(&[][..], |layer| layer.never);
        for name in never.iter().filter(|name| names(&source.code, name)) {
            faults.push(format!("src/{}.rs must not use {name}", source.module));
        }
    }
    assert_none(&faults);
}

/// Whether code names a crate, or a path that begins so.
fn names(code: &str, name: &str) -> bool {
    let is_path = name.contains("::");
    code.match_indices(name).any(|(at, _)| {
        let before = &code[..at];
        let begins =
            !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '.');
        begins && (is_path || code[at + name.len()..].starts_with("::"))
    })
}

#[test]
fn files_are_short_and_say_what_they_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    for path in ["src", "tests", "benches"]
        .iter()
        .flat_map(|folder| files(&root.join(folder)))
    {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display();
        let lines = without_tests(&text).lines().count();
        if lines > MAX_LINES {
            faults.push(format!("{name} has {lines} lines, of at most {MAX_LINES}"));
        }
        if !text.starts_with("//! ") {
            faults.push(format!("{name} does not begin with `//!`"));
        }
        if text.starts_with("//! To be written") {
            faults.push(format!("{name} is still to be written"));
        }
    }
    assert_none(&faults);
}

#[test]
fn reads_imports_out_of_code() {
    let text = "\
use crate::ir::{Ir, listener::{Bind, Port}};
use crate::{table, tls::resolver};
// use crate::comment;
fn one() -> &'static str { let _ = '\"'; crate::status::text(\"crate::string\") }
#[cfg(test)]
mod tests {
    use crate::proxy;
}
fn two() { crate::filter::apply() }
";
    let expected = [
        "ir::Ir",
        "ir::listener::Bind",
        "ir::listener::Port",
        "table",
        "tls::resolver",
        "status::text",
        "filter::apply",
    ];
    assert_eq!(imports(&code_of(text)), expected);
}

#[test]
fn knows_a_crate_from_a_part_of_a_path() {
    assert!(names("use tokio::net;", "tokio"));
    assert!(!names("use crate::tokio::net;", "tokio"));
    assert!(!names("tokio_rustls::x", "tokio"));
    assert!(names("std::net::TcpStream", "std::net::Tcp"));
}
