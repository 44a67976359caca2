//! `portcullis man`: manual pages, which have every flag.

use portcullis::cli;

use crate::{output, subcommands};

#[test]
fn pages_have_every_command_and_flag() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = output(&["man", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let dashes = |text: &str| text.replace('-', "\\-");

    let program = read("portcullis.1");
    for name in subcommands() {
        assert!(
            program.contains(&format!("portcullis\\-{}(1)", dashes(&name))),
            "{program}"
        );
    }
    for command in cli::command().get_subcommands() {
        let name = command.get_name();
        let page = read(&format!("portcullis-{name}.1"));
        for flag in command.get_arguments().filter(|it| !it.is_hide_set()) {
            let shown = match flag.get_long() {
                Some(long) => format!("\\fB\\-\\-{}\\fR", dashes(long)),
                None => dashes(&flag.get_value_names().unwrap().join(" ")),
            };
            assert!(page.contains(&shown), "{name}: {shown} in {page}");
            if let Some(variable) = flag.get_env() {
                let shown = dashes(variable.to_str().unwrap());
                assert!(page.contains(&shown), "{name}: {shown}");
            }
        }
    }
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent");
    let output = output(&["man", absent.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("portcullis.1"), "{error}");
}
