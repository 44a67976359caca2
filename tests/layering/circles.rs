//! Finds circles of imports between files and between folders. A re-export counts as the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, expand};

/// Who imports whom, each by its path below `src`.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// Circles between files that are accepted, by their first file, with the reason.
pub(crate) const ACCEPTED: &[(&str, &str)] = &[(
    "http2/bodies",
    "a body reports what it holds to the list of the worker, which fails bodies",
)];

/// Returns the imports between files.
pub(crate) fn between_files(sources: &[Source]) -> Imports {
    let crate_of_files = Files::new(sources);
    let mut imports = Imports::new();
    for source in sources {
        let targets = imports.entry(source.module.clone()).or_default();
        for path in &crate_of_files.paths[&*source.module] {
            if path.is_reexport && is_below(&crate_of_files.module_of(&path.to), &source.module) {
                continue;
            }
            let file = crate_of_files.defining(&path.to, 0);
            if file != source.module {
                targets.insert(file);
            }
        }
    }
    imports
}

/// Returns the imports between the modules of each folder: a module is its file and its folder.
pub(crate) fn between_folders(files: &Imports) -> BTreeMap<String, Imports> {
    let mut folders: BTreeMap<String, Imports> = BTreeMap::new();
    for (from, targets) in files {
        for to in targets {
            let (from, to) = (parts(from), parts(to));
            let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let name = |path: &[&str]| path.get(same).unwrap_or(&"mod").to_string();
            let folder = folders.entry(from[..same].join("/")).or_default();
            folder.entry(name(&from)).or_default().insert(name(&to));
        }
    }
    folders
}

/// Returns the circles, each as a sorted list of its members.
pub(crate) fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|from| (from.as_str(), reached(imports, from)))
        .collect();
    let mut found = BTreeSet::new();
    for (from, targets) in &reached {
        let is_mutual = |to: &&&str| reached.get(**to).is_some_and(|back| back.contains(from));
        let circle: BTreeSet<_> = targets.iter().filter(is_mutual).copied().collect();
        if circle.len() > 1 {
            found.insert(circle.into_iter().map(str::to_owned).collect());
        }
    }
    found.into_iter().collect()
}

fn reached<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = imports
        .get(from)
        .into_iter()
        .flatten()
        .map(|it| &**it)
        .collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(imports.get(next).into_iter().flatten().map(|it| &**it));
        }
    }
    reached
}

fn parts(module: &str) -> Vec<&str> {
    module.split('/').filter(|part| !part.is_empty()).collect()
}

fn is_below(module: &str, parent: &str) -> bool {
    parent.is_empty()
        || module
            .strip_prefix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path in the code, from the root of the crate, joined by `/`.
struct Path {
    to: String,
    is_reexport: bool,
}

/// All files, and what they name.
struct Files<'a> {
    modules: BTreeSet<&'a str>,
    paths: BTreeMap<&'a str, Vec<Path>>,
    /// By module and name: what `use` brings into it.
    names: BTreeMap<(&'a str, String), String>,
    /// By module: the items that it defines.
    items: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Files<'a> {
    fn new(sources: &'a [Source]) -> Self {
        let mut files = Self {
            modules: sources.iter().map(|source| &*source.module).collect(),
            paths: BTreeMap::new(),
            names: BTreeMap::new(),
            items: BTreeMap::new(),
        };
        for source in sources {
            let module = &*source.module;
            files.items.insert(module, items(&source.code));
            for (path, is_public) in uses(&source.code) {
                if let Some(to) = files.absolute(module, &path) {
                    let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                    files.names.insert((module, name), to.clone());
                    let is_reexport = is_public;
                    let paths = files.paths.entry(module).or_default();
                    paths.push(Path { to, is_reexport });
                }
            }
        }
        for source in sources {
            let module = &*source.module;
            let found = expressions(&source.code)
                .into_iter()
                .filter_map(|path| files.absolute(module, path));
            let found: Vec<_> = found.collect();
            let paths = files.paths.entry(module).or_default();
            paths.extend(found.into_iter().map(|to| Path {
                to,
                is_reexport: false,
            }));
        }
        files
    }

    /// Resolves a path in a module. `None` for paths of other crates and of local names.
    fn absolute(&self, module: &str, path: &str) -> Option<String> {
        let mut here = parts(module);
        let mut rest: Vec<&str> = path.split("::").collect();
        match rest[0] {
            "crate" => {
                here.clear();
                rest.remove(0);
            }
            "self" | "super" => {
                while let Some("self" | "super") = rest.first().copied() {
                    if rest.remove(0) == "super" {
                        here.pop()?;
                    }
                }
            }
            name => {
                let child = [here.as_slice(), &[name]].concat().join("/");
                if !self.modules.contains(&*child) {
                    let brought = self
                        .names
                        .get(&(self.modules.get(module)?, name.to_owned()))?;
                    here = parts(brought);
                    rest.remove(0);
                }
            }
        }
        here.extend(rest);
        Some(here.join("/"))
    }

    fn module_of(&self, path: &str) -> String {
        let mut path = path;
        while !self.modules.contains(path) {
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            if path.is_empty() {
                break;
            }
        }
        path.to_owned()
    }

    /// The file that defines what a path names.
    fn defining(&self, path: &str, depth: usize) -> String {
        let module = self.module_of(path);
        let rest = path[module.len()..].trim_start_matches('/');
        let (name, tail) = rest.split_once('/').unwrap_or((rest, ""));
        if let Some(module) = self.modules.get(&*module)
            && !name.is_empty()
            && depth < 8
            && !self.items[module].contains(name)
            && let Some(brought) = self.names.get(&(module, name.to_owned()))
            && brought != path
        {
            let brought = [brought.as_str(), tail].join("/");
            return self.defining(brought.trim_end_matches('/'), depth + 1);
        }
        module
    }
}

/// The paths of all `use` declarations, and whether each is public.
fn uses(code: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end_matches([' ', '\n']);
        let is_public = before.ends_with("pub") || before.ends_with(')');
        if before.is_empty() || before.ends_with([';', '}', '{', ']']) || is_public {
            let mut paths = Vec::new();
            expand(&code[at + "use ".len()..], "", &mut paths);
            found.extend(paths.into_iter().map(|path| {
                let path = path.strip_suffix("::self").unwrap_or(&path);
                (
                    path.strip_suffix("::*").unwrap_or(path).to_owned(),
                    is_public,
                )
            }));
        }
    }
    found
}

/// Paths with `::` outside of `use` declarations.
fn expressions(code: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut end = 0;
    for (at, _) in code.match_indices("::") {
        let start = code[..at]
            .rfind(|c| !is_part(c))
            .map_or(0, |before| before + 1);
        if at < end || start == at || code[..start].ends_with(['.', ':', '$']) {
            continue;
        }
        let rest = &code[start..];
        let length = rest.find(|c| !is_part(c) && c != ':').unwrap_or(rest.len());
        let path = rest[..length].trim_end_matches(':');
        end = start + length;
        let is_visibility = code[..start].ends_with("pub(in ");
        if !is_visibility && path.contains("::") && !code[..start].ends_with("use ") {
            found.push(path);
        }
    }
    found
}

/// The names of the items that a file defines.
fn items(code: &str) -> BTreeSet<&str> {
    const KEYWORDS: [&str; 7] = ["struct", "enum", "trait", "type", "const", "static", "fn"];
    let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let mut found = BTreeSet::new();
    let mut is_item = false;
    for word in words.by_ref().filter(|word| !word.is_empty()) {
        if is_item && !KEYWORDS.contains(&word) {
            found.insert(word);
        }
        is_item = KEYWORDS.contains(&word);
    }
    found
}
