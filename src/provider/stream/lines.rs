//! Lines out of the bytes of a response, and what each says. Knows nothing of connections, nor what follows from a line.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::stream::message::{MAX_LINE, Update};

/// The kinds of lines that [`Update`] has: others are of a later version and are skipped.
const KNOWN: [&str; 5] = ["begin", "put", "delete", "commit", "leader"];

/// The bytes of a response that are not taken as lines yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// Bytes at the beginning that hold no line feed.
    scanned: usize,
}

impl Lines {
    /// Adds what has come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its line feed.
    ///
    /// # Errors
    /// When it is longer than [`MAX_LINE`], whole or not.
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

/// What a line says; `None` for one of a kind that this version does not know, and for an empty one.
///
/// # Errors
/// When it is not JSON, or a line of a known kind without its fields. The text quotes nothing of it: it may hold a key.
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
    fn lines_come_in_any_pieces() {
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
    fn line_longer_than_the_longest_is_refused_before_it_ends() {
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
    fn lines_of_later_versions_are_skipped() {
        for line in ["", "  ", r#"{"ping": {"at": 7}}"#, r#""ping""#] {
            assert_eq!(parse(line.as_bytes()), Ok(None), "{line}");
        }
        let known = parse(br#"{"commit": {"revision": 4, "later": true}}"#);
        assert_eq!(known, Ok(Some(Update::Commit { revision: 4 })));
    }

    #[test]
    fn lines_without_their_fields_are_faults_that_quote_no_value() {
        for line in [
            "garbage",
            "{",
            "7",
            "{}",
            r#"{"commit": {}}"#,
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
