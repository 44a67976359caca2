//! The picture and the table of modules in docs/architecture.md, from the imports and the first sentences of the
//! modules.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::circles::{Imports, between_files, between_folders};
use super::{SOURCES, generated, sources};

/// What runs the others, and says nothing about the directions among them.
const ENTRY: [&str; 3] = ["lib", "main", "memory"];

/// The imports between the modules of `src`.
fn imports() -> Imports {
    let mut folders = between_folders(&between_files(&sources()));
    let mut imports = folders.remove("").unwrap_or_default();
    imports.retain(|module, _| !ENTRY.contains(&module.as_str()));
    for targets in imports.values_mut() {
        targets.retain(|module| !ENTRY.contains(&module.as_str()));
    }
    imports
}

/// All that a module imports, also through others.
fn reached<'a>(imports: &'a Imports, from: &str, found: &mut BTreeSet<&'a str>) {
    for target in imports.get(from).into_iter().flatten() {
        if found.insert(target) {
            reached(imports, target, found);
        }
    }
}

/// The targets of a module that none of its other targets imports.
fn direct<'a>(imports: &'a Imports, from: &str) -> Vec<&'a str> {
    let targets = &imports[from];
    let is_implied = |target: &&String| {
        let mut others = targets.iter().filter(|other| other != target);
        others.any(|other| {
            let mut found = BTreeSet::new();
            reached(imports, other, &mut found);
            found.contains(target.as_str())
        })
    };
    let direct = targets.iter().filter(|target| !is_implied(target));
    direct.map(String::as_str).collect()
}

/// The first sentence of a module's documentation.
fn what(module: &str) -> String {
    let paths = [format!("{module}/mod.rs"), format!("{module}.rs")];
    let mut texts = paths
        .iter()
        .filter_map(|path| fs::read_to_string(Path::new(SOURCES).join(path)).ok());
    let text = texts.next().unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    let text = lines.collect::<Vec<_>>().join(" ");
    let (first, _) = text.split_once(". ").unwrap_or((&text, ""));
    first.trim_end_matches('.').to_owned()
}

#[test]
fn architecture_shows_the_modules() {
    let imports = imports();
    let modules: BTreeSet<&str> = imports
        .iter()
        .flat_map(|(from, targets)| targets.iter().chain([from]))
        .map(String::as_str)
        .collect();
    let mut text = "```mermaid\nflowchart TD\n".to_owned();
    for module in imports.keys() {
        for target in direct(&imports, module) {
            writeln!(text, "    {module} --> {target}").unwrap();
        }
    }
    text.push_str("```\n\n| module | what it is | imports |\n|---|---|---|\n");
    for module in modules {
        let targets = imports.get(module).into_iter().flatten();
        let targets: Vec<_> = targets.map(|target| format!("`{target}`")).collect();
        let (what, targets) = (what(module), targets.join(", "));
        writeln!(text, "| `{module}` | {what} | {targets} |").unwrap();
    }
    generated::check("docs/architecture.md", "modules", &text);
}
