//! The positional arguments of `portcullis explain`, in every order of options.

use crate::{output, portcullis, stdout};

const FOLDER: &str = "config/quickstart";
const URL: &str = "http://demo.example.com:8080/hello";

#[test]
fn options_stand_anywhere() {
    let form = &["-o", "json"][..];
    let expected = stdout(&output(&["explain", "--output=json", FOLDER, URL]));
    assert!(expected.starts_with('{'), "{expected}");
    for arguments in [
        [form, &[FOLDER], &[URL]].concat(),
        [&[FOLDER], form, &[URL]].concat(),
        [&[FOLDER], &[URL], form].concat(),
        [&[FOLDER], form, &["--", URL]].concat(),
        [form, &["--", FOLDER], &[URL]].concat(),
    ] {
        let output = output(&[&["explain"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert_eq!(stdout(&output), expected, "{arguments:?}");
    }
}

#[test]
fn the_folder_may_be_that_of_the_environment() {
    let run = |arguments: &[&str], folder: &str| {
        let mut command = portcullis(&[&["explain"], arguments].concat());
        command.env("PORTCULLIS_CONFIG_DIR", folder);
        command.output().unwrap()
    };
    for (arguments, folder, code) in [
        (&[URL][..], FOLDER, 0),
        (&["-o", "json", URL], FOLDER, 0),
        (&[URL, "-o", "json"], FOLDER, 0),
        (&[FOLDER, "-o", "json", URL], "absent", 0),
        (&[URL], "absent", 3),
        (&[URL], "", 2),
        (&[], FOLDER, 2),
        (&[FOLDER], FOLDER, 2),
    ] {
        let output = run(arguments, folder);
        let found = output.status.code();
        assert_eq!(found, Some(code), "{arguments:?}: {output:?}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_right_form() {
    let form = "write `portcullis explain [DIR|FILE|-] 'GET https://host/path'`";
    let quote = format!("'GET {URL}'");
    for (arguments, part) in [
        (&[FOLDER][..], FOLDER),
        (&[], "a request is missing"),
        (&[URL, FOLDER], FOLDER),
        (&["GET", URL], quote.as_str()),
        (&["--admin", "127.0.0.1:1", "GET", URL], quote.as_str()),
        (&["--admin", "127.0.0.1:1", FOLDER], FOLDER),
    ] {
        let output = output(&[&["explain"], arguments].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(part) && error.contains(form), "{error}");
    }
}

#[test]
fn usage_has_an_optional_folder_and_a_required_request() {
    let help = stdout(&output(&["explain", "-h"]));
    let usage = "Usage: portcullis explain [OPTIONS] [DIR|FILE|-] <REQUEST>\n";
    assert!(help.contains(usage), "{help}");
}
