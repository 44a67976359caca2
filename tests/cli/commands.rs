//! Every command of the definition of the command line: its help, its exit codes, the forms of its output, its completions, and
//! its rows in the documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use portcullis::cli;

use crate::{ROOT, output, stdout, subcommands};

/// The forms of the output of commands with `-o`.
pub(crate) const FORMS: &[&str] = &["text", "json"];
/// Those of commands that show findings.
pub(crate) const FINDINGS: &[&str] = &["text", "wide", "json", "yaml"];
/// Every command, with its exit codes and the forms of its output. A new command needs a row.
pub(crate) const COMMANDS: [(&str, &[i32], &[&str]); 15] = [
    ("quickstart", &[0, 1, 2], &[]),
    ("run", &[0, 1, 2], &[]),
    ("controller", &[0, 1, 2], &[]),
    ("check", &[0, 1, 2, 3], FORMS),
    ("explain", &[0, 1, 2, 3], FORMS),
    ("migrate", &[0, 1, 2, 3], &[]),
    ("status", &[0, 1, 2, 3], FINDINGS),
    ("config", &[0, 2, 3], FORMS),
    ("top", &[0, 2, 3], FORMS),
    ("tap", &[0, 2, 3], FORMS),
    ("log-level", &[0, 2, 3], FORMS),
    ("shift", &[0, 1, 2, 3], FORMS),
    ("echo", &[0, 1, 2], &[]),
    ("completions", &[0, 2], &[]),
    ("man", &[0, 1, 2], &[]),
];

#[test]
fn help_has_the_exit_codes_and_forms_of_every_command() {
    let commands = cli::command();
    let listed: Vec<_> = commands
        .get_subcommands()
        .map(|one| {
            let help = one.get_after_help().expect("a text").to_string();
            let (_, codes) = help.rsplit_once("Exit codes: ").expect("exit codes");
            let codes = codes.split_whitespace().filter_map(|it| it.parse().ok());
            let mut flags = one.get_arguments();
            let output = flags.find(|it| it.get_long() == Some("output"));
            let forms = output.map_or(Vec::new(), |it| it.get_possible_values());
            let forms = forms.iter().map(|it| it.get_name().to_owned());
            let codes: Vec<i32> = codes.collect();
            (one.get_name().to_owned(), codes, forms.collect::<Vec<_>>())
        })
        .collect();
    let expected = COMMANDS.map(|(name, codes, forms)| {
        let forms = forms.iter().map(|&it| it.to_owned());
        (name.to_owned(), codes.to_vec(), forms.collect::<Vec<_>>())
    });
    assert_eq!(listed, expected);
}

#[test]
fn help_describes_every_command_and_flag() {
    for command in cli::command().get_subcommands() {
        let name = command.get_name();
        let about = command.get_about().expect("an about line").to_string();
        assert!(!about.is_empty() && !about.contains('\n'), "{about}");
        for flag in command.get_arguments() {
            let id = flag.get_id();
            assert!(flag.get_help().is_some(), "{name}: {id} has no help");
        }
    }
    for (name, _, forms) in COMMANDS {
        let help = stdout(&output(&[name, "--help"]));
        let example = format!("Examples:\n  portcullis {name}");
        let flag = (!forms.is_empty()).then(|| "-o, --output <OUTPUT>".to_owned());
        let forms = forms.iter().map(|form| format!("- {form}: "));
        for part in [example].into_iter().chain(flag).chain(forms) {
            assert!(help.contains(&part), "{part:?} is missing in {help}");
        }
    }
}

#[test]
fn completions_have_every_command_and_flag() {
    let definition = cli::command();
    let completions = definition.find_subcommand("completions").unwrap();
    let shells = completions.get_positionals();
    let shells: Vec<_> = shells.flat_map(|it| it.get_possible_values()).collect();
    for shell in ["bash", "zsh", "fish"] {
        assert!(shells.iter().any(|it| it.get_name() == shell), "{shell}");
    }
    for shell in shells.iter().map(|it| it.get_name()) {
        let script = stdout(&output(&["completions", shell]));
        let words = script.split(|it: char| !it.is_ascii_alphanumeric() && it != '-');
        let words: BTreeSet<_> = words.map(|it| it.trim_start_matches('-')).collect();
        for command in definition.get_subcommands() {
            let flags = command.get_arguments().filter(|it| !it.is_hide_set());
            let flags = flags.filter_map(|it| it.get_long());
            for name in flags.chain([command.get_name()]) {
                assert!(words.contains(name), "{shell} has no {name}");
            }
        }
    }
}

/// The rows of the table of a page that has this head.
fn rows(page: &str, head: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let (_, table) = text.split_once(head).expect("a table");
    let rows = table.lines().skip(2).take_while(|line| !line.is_empty());
    rows.map(str::to_owned).collect()
}

/// What is between backticks.
fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

#[test]
fn readme_lists_the_commands() {
    let rows = rows("README.md", "| command | what it does |");
    let mut listed: Vec<_> = rows.iter().filter_map(|row| quoted(row).next()).collect();
    let mut commands = subcommands();
    listed.sort_unstable();
    commands.sort_unstable();
    assert_eq!(listed, commands);
}

/// A code that all commands have is named without them.
#[test]
fn lifecycle_lists_the_exit_codes_of_the_commands() {
    let mut listed = BTreeSet::new();
    for row in rows("docs/lifecycle.md", "| exit code | meaning |") {
        let code: i32 = row.split('|').nth(1).unwrap().trim().parse().unwrap();
        let having = COMMANDS
            .iter()
            .filter(|(_, codes, _)| codes.contains(&code));
        let mut having: BTreeSet<&str> = having.map(|(name, ..)| *name).collect();
        if having.len() == COMMANDS.len() {
            having.clear();
        }
        let is_command = |word: &&str| COMMANDS.iter().any(|(name, ..)| name == word);
        let named: BTreeSet<&str> = quoted(&row).filter(is_command).collect();
        assert_eq!(named, having, "exit code {code}");
        listed.insert(code);
    }
    let codes = COMMANDS.iter().flat_map(|(_, codes, _)| codes.iter());
    let unlisted: Vec<_> = codes.filter(|code| !listed.contains(*code)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}
