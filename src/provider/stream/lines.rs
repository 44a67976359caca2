//! Splits the bytes of a response into lines and parses each line.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::wire::{MAX_LINE, Update};

/// The kinds of lines in [`Update`]. Other kinds are of a later version and are skipped.
const KNOWN: [&str; 7] = [
    "begin",
    "sessionSecret",
    "put",
    "delete",
    "commit",
    "leader",
    "pods",
];

/// Received bytes that are not consumed as lines yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// Number of leading bytes that contain no line feed.
    scanned: usize,
}

impl Lines {
    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its line feed.
    ///
    /// # Errors
    /// When a line, complete or not, exceeds [`MAX_LINE`].
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, String> {
        let end = self.buffer[self.scanned..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|end| self.scanned + end);
        if end.unwrap_or(self.buffer.len()) > MAX_LINE {
            return Err(format!("a line is longer than {} MiB", MAX_LINE >> 20));
        }
        let Some(end) = end else {
            self.scanned = self.buffer.len();
            return Ok(None);
        };
        self.scanned = 0;
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        Ok(Some(line.freeze()))
    }
}

/// Parses a line; `None` for an empty line and for an unknown kind.
///
/// # Errors
/// When the line is not JSON, or lacks fields of its kind. The message quotes no content, which may
/// include a private key.
pub(super) fn parse(line: &[u8]) -> Result<Option<Update>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if let Ok(update) = serde_json::from_slice(line) {
        return Ok(Some(update));
    }
    let kind = match serde_json::from_slice(line) {
        Ok(Value::String(kind)) => kind,
        Ok(Value::Object(fields)) if fields.len() == 1 => {
            fields.into_iter().next().unwrap_or_default().0
        }
        Ok(_) => return Err("a line is not an object with one field".to_owned()),
        Err(error) => return Err(format!("a line is not JSON: {error}")),
    };
    if KNOWN.contains(&kind.as_str()) {
        return Err(format!("a line `{kind}` does not have the fields of one"));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &mut Lines) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            taken.push(String::from_utf8(line.to_vec()).unwrap());
        }
        taken
    }

    #[test]
    fn accepts_lines_in_arbitrary_chunks() {
        for size in [1, 2, 3, 100] {
            let mut lines = Lines::default();
            let mut all = Vec::new();
            for piece in b"one\n\nthree\nfo".chunks(size) {
                lines.push(piece);
                all.extend(taken(&mut lines));
            }
            assert_eq!(all, ["one", "", "three"], "{size}");
            lines.push(b"ur\n");
            assert_eq!(taken(&mut lines), ["four"], "{size}");
        }
    }

    #[test]
    fn rejects_oversized_line_before_its_end() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MAX_LINE]);
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"\n");
        assert_eq!(lines.next().unwrap().map(|line| line.len()), Some(MAX_LINE));
        lines.push(&vec![b'x'; MAX_LINE + 1]);
        assert!(lines.next().unwrap_err().contains("8 MiB"));
        let mut lines = Lines::default();
        lines.push(&[vec![b'x'; MAX_LINE + 1], b"\n".to_vec()].concat());
        assert!(lines.next().is_err());
    }

    #[test]
    fn skips_lines_of_later_versions() {
        for line in ["", "  ", r#"{"ping": {"at": 7}}"#, r#""ping""#] {
            assert_eq!(parse(line.as_bytes()), Ok(None), "{line}");
        }
        let known = parse(br#"{"commit": {"revision": 4, "later": true}}"#);
        assert_eq!(known, Ok(Some(Update::Commit { revision: 4 })));
    }

    #[test]
    fn errors_about_missing_fields_quote_no_value() {
        for line in [
            "garbage",
            "{",
            "7",
            "{}",
            r#"{"commit": {}}"#,
            r#"{"sessionSecret": {}}"#,
            r#"{"commit": {"revision": "hidden"}}"#,
            r#"{"delete": {"group": "hidden"}}"#,
            r#"{"put": {}, "commit": {"revision": 1}}"#,
            r#""begin""#,
            "\u{feff}",
        ] {
            let error = parse(line.as_bytes()).expect_err(line);
            assert!(!error.contains("hidden"), "{error}");
        }
        assert!(parse(b"\xff\xfe").is_err());
    }
}
