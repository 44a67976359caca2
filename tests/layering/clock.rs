//! Tests do not judge by the clock: what bounds a time from above is a minute or more, and tests wait for events instead of
//! sleeping. Anything else has its reason in a comment beside it.

use std::path::Path;
use std::{fs, iter};

use super::{assert_none, files};

/// The least upper bound, in seconds. A busy machine does not reach it.
const LEAST: f64 = 60.0;
/// A comment so many lines above is beside a line.
const ABOVE: usize = 3;
/// Words in names of constants that bound a time from above.
const BOUNDS: [&str; 7] = [
    "TIMEOUT", "DEADLINE", "LIMIT", "BOUND", "LONGEST", "MAX", "PATIENCE",
];

#[test]
fn tests_do_not_judge_by_the_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    for path in files(&root.join("tests")) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display();
        for (line, what) in findings(&text) {
            faults.push(format!(
                "{name}:{line}: {what}, or give the reason in a comment at most {ABOVE} lines above"
            ));
        }
    }
    assert_none(&faults);
}

/// Numbers of lines that need a reason and have none, with what to do instead.
fn findings(text: &str) -> Vec<(usize, &'static str)> {
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<String> = lines.iter().map(|line| code_of(line)).collect();
    let followed = iter::zip(&code, code.iter().skip(1).map(String::as_str).chain([""]));
    followed
        .enumerate()
        .filter_map(|(at, (line, next))| {
            // rustfmt puts what is long on the next line.
            let is_cut = line.ends_with(['(', '<', '=']);
            let line = if is_cut {
                format!("{line}{}", next.trim())
            } else {
                line.clone()
            };
            let what = fault(&line)?;
            let beside = &lines[at.saturating_sub(ABOVE)..=at];
            let has_reason = beside.iter().any(|line| line.contains("//"));
            (!has_reason).then_some((at + 1, what))
        })
        .collect()
}

/// The line without comments and the content of strings, and without spaces at its end.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let (mut in_string, mut before) = (false, ' ');
    for (at, character) in line.char_indices() {
        if !in_string && line[at..].starts_with("//") {
            break;
        }
        if character == '"' && before != '\\' && before != '\'' {
            in_string = !in_string;
        } else if !in_string {
            code.push(character);
        }
        before = if before == '\\' { ' ' } else { character };
    }
    code.truncate(code.trim_end().len());
    code
}

fn fault(line: &str) -> Option<&'static str> {
    const BOUND: &str = "this bounds a time by less than a minute; wait for the event with TEST_TIMEOUT, or compare counts";
    let is_declared = line.contains("fn ");
    if !is_declared && line.match_indices("sleep(").any(|(at, _)| begins(line, at)) {
        return Some("this sleeps; wait for an event");
    }
    // Limits of a minute or more have names.
    let is_named = line.contains("TEST_TIMEOUT") || line.contains("UNREACHED");
    let is_short = durations(line).any(|seconds| seconds < LEAST);
    let compares_time = line.contains("elapsed() <") && !is_named;
    let compares = is_short && (line.contains("< Duration::") || line.contains("<= Duration::"));
    let waits = is_short && !is_declared && line.contains("timeout(");
    let is_bound =
        is_short && constant(line).is_some_and(|name| BOUNDS.iter().any(|it| name.contains(it)));
    (compares_time || compares || waits || is_bound).then_some(BOUND)
}

/// Whether a name begins here.
fn begins(line: &str, at: usize) -> bool {
    !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
}

/// The durations that the line has as literals, in seconds.
fn durations(line: &str) -> impl Iterator<Item = f64> {
    let of_unit = |unit: &'static str, in_second: f64| {
        let parts = line.split(unit).skip(1);
        parts.filter_map(move |rest| {
            let digits = rest.split(')').next()?.replace('_', "");
            Some(digits.parse::<f64>().ok()? / in_second)
        })
    };
    of_unit("Duration::from_secs(", 1.0)
        .chain(of_unit("Duration::from_millis(", 1_000.0))
        .chain(of_unit("Duration::from_micros(", 1_000_000.0))
}

/// The name of a constant of this line.
fn constant(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("const ")?;
    Some(rest.split_once(": Duration")?.0)
}

#[test]
fn finds_what_needs_a_reason() {
    let found = |text: &str| !findings(text).is_empty();
    for line in [
        "sleep(Duration::from_millis(5)).await;",
        "std::thread::sleep(PAUSE);",
        "timeout(Duration::from_secs(1), end).await",
        "timeout(\n    Duration::from_secs(1),\n    end,\n)",
        "assert!(began.elapsed() < LIMIT);",
        "assert!(began.elapsed() <= 2 * LIMIT);",
        "assert!(took < Duration::from_millis(1500));",
        "const TEST_TIMEOUT: Duration = Duration::from_secs(15);",
        "raw.client.set_timeout(Duration::from_secs(30));",
    ] {
        assert!(found(line), "{line}");
        assert!(!found(&format!("// The pace.\n{line}")), "{line}");
    }
    for line in [
        "timeout(TEST_TIMEOUT, end).await",
        "assert!(began.elapsed() < TEST_TIMEOUT);",
        "assert!(began.elapsed() >= Duration::from_secs(1));",
        "assert!(took < Duration::from_secs(60));",
        "const TEST_TIMEOUT: Duration = Duration::from_secs(60);",
        "const PERIOD: Duration = Duration::from_millis(3);",
        "settings.limits.header_timeout = Duration::from_secs(1);",
        "async fn sleep(time: Duration) {",
        "let text = \"sleep(1) \\\" sleep(2)\";",
        "clock.wait_for_sleep(1);",
    ] {
        assert!(!found(line), "{line}");
    }
}
