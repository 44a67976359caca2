//! Sentences about text that is not YAML or JSON, for mistakes that parsers describe badly.

/// Marks of an unresolved merge conflict in version control, at the start of a line.
const CONFLICT_MARKS: [&str; 4] = ["<<<<<<< ", "||||||| ", "=======", ">>>>>>> "];

/// What to do about messages of the YAML parser, by their beginnings.
const REMEDIES: [(&str, &str); 12] = [
    ("alias references unknown anchor", STAR),
    ("while scanning an anchor or alias", STAR),
    ("unexpected character: `@", SIGN),
    ("unexpected character: `%", SIGN),
    ("unexpected character: ``", SIGN),
    ("mapping values are not allowed", INDENTATION_OR_COLON),
    (
        "while parsing a block mapping, did not find",
        INDENTATION_OR_BRACKET,
    ),
    (
        "while parsing a block collection, did not find",
        INDENTATION,
    ),
    (
        "simple key expected ':'",
        "write `: `, with a space, behind each key",
    ),
    (
        "while parsing a quoted scalar, found unknown escape",
        BACKSLASH,
    ),
    ("invalid indentation in multiline quoted scalar", QUOTE),
    ("unclosed quote", QUOTE),
];
const STAR: &str = "a value that begins with `*`, such as `*.example.com`, needs quotes";
const SIGN: &str = "a value that begins with it needs quotes";
const INDENTATION: &str = "check the indentation";
const INDENTATION_OR_COLON: &str = "check the indentation; a value that contains `: ` needs quotes";
const INDENTATION_OR_BRACKET: &str =
    "check the indentation; a value that begins with `[` or `{` needs quotes";
const BACKSLASH: &str = "write a value that contains `\\` in single quotes";
const QUOTE: &str = "close the quote that begins before this line";

/// Returns the line, from 1, and the message of a mistake that explains why text cannot be parsed. `failed` is the line at
/// which the parser gave up, 0 if unknown, and `message` is its own.
pub(super) fn explain(text: &str, failed: usize, message: &str) -> Option<(usize, String)> {
    if let Some(conflict) = conflict(text) {
        return Some(conflict);
    }
    // The parser reads a map whole before its keys are compared.
    if repeated_key(message).is_some() {
        return None;
    }
    indentation(text, failed).or_else(|| template(text, failed))
}

/// Adds what to do to a message of the parser, if that is known.
pub(super) fn with_remedy(message: String) -> String {
    let remedy = REMEDIES
        .iter()
        .find(|(start, _)| message.starts_with(*start));
    match remedy {
        Some((_, remedy)) => format!("{message}: {remedy}"),
        None => message,
    }
}

fn conflict(text: &str) -> Option<(usize, String)> {
    // A line of equals signs alone may be text.
    text.lines()
        .any(|line| line.starts_with("<<<<<<< "))
        .then_some(())?;
    let is_mark = |line: &str| CONFLICT_MARKS.iter().any(|mark| line.starts_with(mark));
    let (line, mark) = numbered(text).find(|(_, line)| is_mark(line))?;
    let mark = mark.get(..7)?;
    let message = format!("`{mark}` is a mark of a merge conflict: resolve the conflict");
    Some((line, message))
}

/// Finds indentation with a tab, or with another character that looks like spaces, where the parser gave up.
fn indentation(text: &str, failed: usize) -> Option<(usize, String)> {
    let wrong = |line: &str| {
        let content = line.trim_start();
        let indent = &line[..line.len() - content.len()];
        let wrong = indent.chars().find(|character| *character != ' ');
        wrong.filter(|_| !content.is_empty())
    };
    let (line, character) =
        near(text, failed).find_map(|(line, text)| Some((line, wrong(text)?)))?;
    let name = match character {
        '\t' => "a tab".to_owned(),
        other => format!("U+{:04X}, which looks like a space", u32::from(other)),
    };
    let message = format!("the line is indented with {name}: YAML permits only spaces");
    Some((line, message))
}

/// Finds an expression of a template where the parser gave up, or a line before it that is one.
fn template(text: &str, failed: usize) -> Option<(usize, String)> {
    let is_one = |(line, text): &(usize, &str)| *line <= failed && text.starts_with("{{");
    let here = near(text, failed).find(|(_, line)| line.contains("{{"));
    let (line, _) = here.or_else(|| numbered(text).find(is_one))?;
    let message = "`{{` begins an expression of a template: render the template first, such as by `helm template`";
    Some((line, message.to_owned()))
}

/// Returns the line at which the parser gave up and its neighbours, or all lines if it is unknown. Text elsewhere, such as
/// in a block scalar, is valid.
fn near(text: &str, failed: usize) -> impl Iterator<Item = (usize, &str)> {
    numbered(text).filter(move |(line, _)| failed == 0 || line.abs_diff(failed) <= 1)
}

/// Returns the message on a key that a map has twice.
pub(super) fn appears_twice(key: &str) -> String {
    format!("the key {key:?} appears twice")
}

/// Returns the key, if a message is that of [`appears_twice`].
fn repeated_key(message: &str) -> Option<&str> {
    let key = message.strip_prefix("the key \"")?;
    key.strip_suffix("\" appears twice")
}

/// Returns the line of the second of two equal keys of a map, if `message` is about such keys. `first` is the line of
/// the first key of the map.
pub(super) fn second_key(text: &str, first: usize, message: &str) -> Option<usize> {
    let key = repeated_key(message)?;
    let mut lines = numbered(text)
        .skip_while(|(line, _)| *line < first)
        .peekable();
    // A map in a list begins behind the mark of its item.
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    let of_map = lines.peek().map(|(_, line)| indent(line))?;
    let is_key = |line: &str| {
        let name = line[of_map..].split(':').next().unwrap_or_default();
        name.trim().trim_matches(['"', '\'']) == key
    };
    let mut keys = lines.filter(|(_, line)| indent(line) == of_map && is_key(line));
    keys.nth(1).map(|(line, _)| line)
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explains_tabs_templates_and_merge_conflicts() {
        for (text, failed, line, message) in [
            ("a:\n\tb: 1\n", 2, 2, "indented with a tab"),
            ("a:\n  b: 1\n \t c: 2\n", 3, 3, "indented with a tab"),
            (
                "a:\n\u{a0} b: 1\n",
                2,
                2,
                "indented with U+00A0, which looks",
            ),
            (
                "{{/* one\ntwo\nthree\n*/}}\na: 1\n",
                5,
                1,
                "begins an expression of a template",
            ),
            (
                "a:\n  b: {{ .Values.b }}\n",
                2,
                2,
                "begins an expression of a template",
            ),
            (
                "a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> x\n",
                3,
                2,
                "`<<<<<<<` is a mark",
            ),
        ] {
            let (found, text) = explain(text, failed, "").unwrap();
            assert_eq!(found, line, "{text}");
            assert!(text.contains(message), "{text}");
        }
    }

    #[test]
    fn finds_the_second_of_two_keys() {
        let text = "spec:\n  a: 1\n  b:\n    c: 1\n  c: 1\n  # c: 2\n  \"c\": 2\n";
        assert_eq!(second_key(text, 2, &appears_twice("c")), Some(7));
        let list = "rules:\n- a: 1\n  b: 2\n  a: 2\n- a: 3\n";
        assert_eq!(second_key(list, 2, &appears_twice("a")), Some(4));
        assert_eq!(second_key("x: {a: 1, a: 2}", 1, &appears_twice("a")), None);
        assert_eq!(second_key(text, 9, &appears_twice("c")), None);
        assert_eq!(second_key(text, 2, "unclosed quote"), None);
    }

    #[test]
    fn other_mistakes_are_left_to_the_parser() {
        for text in ["a: [1\n", "a: |\n  =======\nb", "\t\n"] {
            assert_eq!(explain(text, 1, ""), None, "{text}");
        }
        let valid = "a: |\n  \tb\nc: \"{{ d }}\"\ne: 1\n\nf: [\n";
        assert_eq!(explain(valid, 6, ""), None);
        let twice = "a: \"{{ b }}\"\nc: 1\nc: 2\n";
        assert_eq!(explain(twice, 1, &appears_twice("c")), None);
    }
}
