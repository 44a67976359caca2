//! Text of clients, tenants and servers for a terminal: control characters that it would obey are escaped, as JSON does.

/// Escapes the control characters of a text, which stays on one line.
pub(super) fn line(text: &str) -> String {
    escaped(text, None)
}

/// Escapes the control characters of a text, except those that end lines.
pub(super) fn lines(text: &str) -> String {
    escaped(text, Some('\n'))
}

fn escaped(text: &str, kept: Option<char>) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && Some(character) != kept {
            true => visible.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => visible.push(character),
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        assert_eq!(line("/\u{1b}[2J\u{9b}é\n"), "/\\u001b[2J\\u009bé\\u000a");
        assert_eq!(lines("a\r\n\u{7f}b\n"), "a\\u000d\n\\u007fb\n");
    }
}
