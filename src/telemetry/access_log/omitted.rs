//! The fields of a line that a policy leaves out.

/// Removes fields of a whole line, but not its first one.
pub(super) fn remove(line: &mut Vec<u8>, omit: &[&str]) {
    let mut kept = end_of_field(line, 0);
    let mut at = kept;
    while line.get(at) == Some(&b',') {
        let end = end_of_field(line, at + 1);
        if !omit.contains(&name(&line[at + 1..end])) {
            line.copy_within(at..end, kept);
            kept += end - at;
        }
        at = end;
    }
    line.copy_within(at.., kept);
    line.truncate(kept + line.len() - at);
}

/// Returns where the value of a field ends, of which there is something at `start`. Values are strings and numbers.
fn end_of_field(line: &[u8], start: usize) -> usize {
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, byte) in line.iter().enumerate().skip(start) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'}' if !is_text => return at,
            _ => {}
        }
    }
    line.len()
}

/// Returns the name of a field, which has no escapes.
fn name(field: &[u8]) -> &str {
    let name = field.split(|byte| *byte == b'"').nth(1);
    str::from_utf8(name.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(line: &str, omit: &[&str]) -> String {
        let mut line = line.as_bytes().to_vec();
        remove(&mut line, omit);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn removes_fields_wherever_they_are() {
        let line = "{\"time\":\"a\",\"b\":1.5,\"c\":\"x\",\"d\":2}\n";
        assert_eq!(without(line, &[]), line);
        let rows: [(&[&str], &str); 4] = [
            (&["b"], "{\"time\":\"a\",\"c\":\"x\",\"d\":2}\n"),
            (&["d"], "{\"time\":\"a\",\"b\":1.5,\"c\":\"x\"}\n"),
            (&["d", "b", "c"], "{\"time\":\"a\"}\n"),
            (&["e", "x", "a"], line),
        ];
        for (omit, expected) in rows {
            assert_eq!(without(line, omit), expected);
        }
    }

    #[test]
    fn texts_of_clients_are_not_taken_for_fields() {
        let line = r#"{"time":"a","path":"/\",\"b\":1}","b":2,"agent":"\\","c":"{,"}"#;
        let expected = r#"{"time":"a","path":"/\",\"b\":1}","agent":"\\","c":"{,"}"#;
        assert_eq!(without(line, &["b"]), expected);
        let expected = r#"{"time":"a","b":2,"c":"{,"}"#;
        assert_eq!(without(line, &["path", "agent"]), expected);
    }
}
