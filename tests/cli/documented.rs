//! Command lines of the documentation: the program understands all of them, and answers those that ask a folder or a proxy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use portcullis::cli;

use crate::explain::{BROKEN, Served};
use crate::ports::free_ports;
use crate::{ROOT, output};

/// What a command line of the program has after its name.
struct Line {
    document: PathBuf,
    text: String,
    /// Whether it is in a block of commands. In a sentence, it may lack arguments.
    is_whole: bool,
}

impl Line {
    /// The words, as a shell sees them.
    fn words(&self) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for character in self.text.chars() {
            match (quote, character) {
                (Some(open), close) if open == close => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(character);
                    word.get_or_insert_default();
                }
                (None, ' ') => words.extend(word.take()),
                // A comment, or another command.
                (None, '#' | '|' | '>' | '&' | ';') if word.is_none() => break,
                _ => word.get_or_insert_default().push(character),
            }
        }
        words.extend(word);
        words
    }
}

fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let mut documents: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.push(Path::new(ROOT).join("README.md"));
    documents
}

fn lines(document: &Path) -> Vec<Line> {
    let text = fs::read_to_string(document).unwrap();
    let mut is_whole = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_whole = !is_whole;
            continue;
        }
        let found: Vec<&str> = match is_whole {
            true => of_block(line).into_iter().collect(),
            false => {
                let quoted = line.split('`').skip(1).step_by(2);
                quoted.filter_map(of_program).collect()
            }
        };
        lines.extend(found.into_iter().map(|text| Line {
            document: document.to_owned(),
            text: text.to_owned(),
            is_whole,
        }));
    }
    lines
}

fn of_block(line: &str) -> Option<&str> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let piped = || line.split_once("| ").and_then(|(_, line)| of_program(line));
    of_program(line).or_else(piped)
}

fn of_program(line: &str) -> Option<&str> {
    let mut prefixes = ["portcullis ", "cargo run -- "].into_iter();
    let arguments = prefixes.find_map(|prefix| line.strip_prefix(prefix))?;
    // What the program prints begins with its version.
    arguments
        .starts_with(|first: char| first.is_ascii_lowercase())
        .then_some(arguments)
}

fn all() -> Vec<Line> {
    documents().iter().flat_map(|it| lines(it)).collect()
}

#[test]
fn all_are_understood() {
    let all = all();
    for line in &all {
        let words = [vec!["portcullis".to_owned()], line.words()].concat();
        let Err(error) = cli::command().try_get_matches_from(words) else {
            continue;
        };
        let is_wrong = matches!(
            error.kind(),
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
        );
        assert!(
            !line.is_whole && !is_wrong,
            "{}: {}\n{error}",
            line.document.display(),
            line.text
        );
    }
    let whole = all.iter().filter(|it| it.is_whole).count();
    assert!(
        whole >= 30 && all.len() >= 100,
        "{whole} of {} are in blocks",
        all.len()
    );
}

/// Returns the arguments with which a command line needs no cluster and ends by itself, if there are some, and their exit code.
fn answerable(mut words: Vec<String>, admin: &str) -> Option<(Vec<String>, i32)> {
    let has = |words: &[String], flag: &str| words.iter().position(|it| it == flag);
    let of_admin = has(&words, "--admin");
    // Asks pods in a cluster.
    if has(&words, "-n").is_some() {
        return None;
    }
    let is_folder = || (words.get(1)).is_some_and(|it| Path::new(ROOT).join(it).exists());
    let mut code = 0;
    let name = words[0].clone();
    match &*name {
        "check" | "explain" if is_folder() => return Some((words, code)),
        // Of a configuration that has problems, and no rule for the request.
        "status" => code = 1,
        "explain" if of_admin.is_some() => code = 1,
        "config" | "log-level" | "top" => {}
        _ => return None,
    }
    if let Some(index) = of_admin {
        words.drain(index..index + 2);
    }
    if name == "top" && has(&words, "--once").is_none() {
        words.push("--once".to_owned());
    }
    words.extend(["--admin".to_owned(), admin.to_owned()]);
    Some((words, code))
}

#[test]
fn those_that_need_no_cluster_are_answered() {
    let [port] = free_ports::<1>().map(|port: u16| port.to_string());
    let served = Served::new(&BROKEN.replace("PORT", &port));
    let whole = all().into_iter().filter(|it| it.is_whole);
    let commands: BTreeSet<_> = whole
        .filter_map(|it| answerable(it.words(), served.admin()))
        .collect();
    for (words, code) in &commands {
        let arguments: Vec<&str> = words.iter().map(|it| &**it).collect();
        let output = output(&arguments);
        assert_eq!(output.status.code(), Some(*code), "{words:?}: {output:?}");
        assert!(!output.stdout.is_empty(), "{words:?}: {output:?}");
    }
    assert!(commands.len() >= 6, "{commands:?}");
}
