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

/// Words of commands that need a cluster, Ingresses or a pipe, or that a signal ends, with a test that runs such a command.
const ELSEWHERE: [(&str, &str, &str); 23] = [
    (
        "check",
        "-",
        "tests/cli/check.rs::check_takes_a_file_or_standard_input",
    ),
    (
        "check",
        "overlays/production",
        "tests/cli/check.rs::check_takes_a_file_or_standard_input",
    ),
    (
        "check",
        "--kubernetes",
        "tests/kubernetes/once.rs::check_prints_conditions_of_the_cluster",
    ),
    (
        "config",
        "-n",
        "tests/kubernetes/asked_pods.rs::rows_begin_with_the_pod",
    ),
    (
        "echo",
        "--listen",
        "tests/cli/main.rs::echo_responds_with_received_request",
    ),
    (
        "explain",
        "--kubernetes",
        "tests/kubernetes/once.rs::explain_names_the_rule_of_the_cluster",
    ),
    (
        "explain",
        "-n",
        "tests/kubernetes/asked_pods.rs::pods_that_explain_alike_are_shown_once",
    ),
    (
        "migrate",
        "--output",
        "tests/cli/ingresses.rs::migrate_reads_a_folder_with_other_files_and_a_pipe",
    ),
    (
        "quickstart",
        "quickstart",
        "tests/cli/main.rs::commands_that_quickstart_prints_work",
    ),
    (
        "run",
        "--config-dir",
        "tests/cli/documented.rs::those_that_need_no_cluster_are_answered",
    ),
    (
        "run",
        "--kubernetes",
        "tests/kubernetes/serving.rs::serves_and_follows_the_cluster",
    ),
    (
        "run",
        "--backend-kinds",
        "tests/kubernetes/backend_kinds.rs::does_not_watch_kinds_that_only_disabled_backends_need",
    ),
    (
        "shift",
        "shop/shop",
        "tests/shift/weights.rs::shifts_a_share_and_prints_how_to_roll_back",
    ),
    (
        "shift",
        "--add",
        "tests/shift/weights.rs::rejects_unlisted_release_unless_adding_is_allowed",
    ),
    (
        "shift",
        "--dry-run",
        "tests/shift/weights.rs::dry_run_changes_nothing",
    ),
    (
        "shift",
        "--watch",
        "tests/shift/watch.rs::adds_up_requests_of_pods",
    ),
    (
        "shift",
        "--abort-above",
        "tests/shift/watch.rs::rolls_back_when_too_many_requests_fail",
    ),
    (
        "status",
        "-n",
        "tests/kubernetes/fleet.rs::pods_of_a_gateway_have_a_row_each",
    ),
    (
        "status",
        "--watch",
        "tests/kubernetes/fleet.rs::pods_are_shown_again_while_they_are_watched",
    ),
    (
        "status",
        "--problems",
        "tests/kubernetes/asked_pods.rs::status_names_each_problem_after_its_pods",
    ),
    (
        "tap",
        "--status",
        "tests/proxy/tap.rs::shows_requests_that_meet_its_filters",
    ),
    (
        "tap",
        "-n",
        "tests/kubernetes/asked_pods.rs::lines_of_a_tap_have_the_pod",
    ),
    (
        "top",
        "-n",
        "tests/kubernetes/asked_pods.rs::top_goes_on_once_the_api_server_is_back",
    ),
];

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
    // Has none of the routes of the page.
    if let [name, folder, ..] = &mut words[..]
        && (&**name, &**folder) == ("explain", "DIR")
    {
        *folder = "config/quickstart".to_owned();
        return Some((words, 1));
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

#[test]
fn others_are_run_by_a_test() {
    let mut used = BTreeSet::new();
    for line in all().into_iter().filter(|it| it.is_whole) {
        let words = line.words();
        if answerable(words.clone(), "").is_some() {
            continue;
        }
        let rows = ELSEWHERE.iter().filter(|(name, word, _)| {
            let mut all = words.iter();
            words[0] == *name && all.any(|it| it == word)
        });
        let found: Vec<_> = rows.collect();
        assert!(!found.is_empty(), "no test runs {}", line.text);
        used.extend(found);
    }
    let listed: BTreeSet<_> = ELSEWHERE.iter().collect();
    assert_eq!(used, listed);
    for (_, _, test) in ELSEWHERE {
        let (file, name) = test.split_once("::").unwrap();
        let code = fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
        assert!(code.contains(&format!("fn {name}(")), "no test {test}");
    }
}
