//! What reads the stream of a controller, of `src/provider`.

#[path = "../../../src/provider/stream/lines.rs"]
mod lines;

use bytes::Bytes;

use crate::wire::Update;

pub(crate) fn lines<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let (mut lines, mut found) = (lines::Lines::default(), Vec::new());
    for piece in pieces {
        lines.push(piece);
        while let Some(line) = lines.next().expect("inputs are short") {
            found.push(line);
        }
    }
    found
}

pub(crate) fn parse(line: &[u8]) -> Result<Option<Update>, String> {
    lines::parse(line)
}
