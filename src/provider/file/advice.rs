//! Sentences about text that is not YAML or JSON, for mistakes that parsers describe badly.

/// Marks of an unresolved merge conflict in version control, at the start of a line.
const CONFLICT_MARKS: [&str; 4] = ["<<<<<<< ", "||||||| ", "=======", ">>>>>>> "];

/// Returns the line, from 1, and the message of a mistake that explains why text cannot be parsed.
/// `failed` is the line at which the parser gave up; 0 if unknown.
pub(super) fn explain(text: &str, failed: usize) -> Option<(usize, String)> {
    conflict(text)
        .or_else(|| tab(text, failed))
        .or_else(|| template(text))
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

/// Finds indentation with a tab up to the line at which the parser gave up, which may be the line
/// after it.
fn tab(text: &str, failed: usize) -> Option<(usize, String)> {
    let is_indented_by_tab = |line: &str| {
        let content = line.trim_start_matches([' ', '\t']);
        !content.is_empty() && line[..line.len() - content.len()].contains('\t')
    };
    let (line, _) = numbered(text)
        .take_while(|(line, _)| failed == 0 || *line <= failed + 1)
        .find(|(_, line)| is_indented_by_tab(line))?;
    let message = "the line is indented with a tab: YAML permits only spaces".to_owned();
    Some((line, message))
}

fn template(text: &str) -> Option<(usize, String)> {
    let (line, _) = numbered(text).find(|(_, line)| line.contains("{{"))?;
    let message = "`{{` begins an expression of a template: render the template first, such as by `helm template`";
    Some((line, message.to_owned()))
}

/// Returns the message on a key that a map has twice.
pub(super) fn appears_twice(key: &str) -> String {
    format!("the key {key:?} appears twice")
}

/// Returns the line of the second of two equal keys of a map, if `message` is about such keys. `first` is the line of
/// the first key of the map.
pub(super) fn second_key(text: &str, first: usize, message: &str) -> Option<usize> {
    let key = message.strip_prefix("the key \"")?;
    let key = key.strip_suffix("\" appears twice")?;
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
            let (found, text) = explain(text, failed).unwrap();
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
            assert_eq!(explain(text, 1), None, "{text}");
        }
    }
}
