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
    fn other_mistakes_are_left_to_the_parser() {
        for text in ["a: [1\n", "a: |\n  =======\nb", "\t\n"] {
            assert_eq!(explain(text, 1), None, "{text}");
        }
    }
}
