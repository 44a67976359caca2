//! Feeds the stream between controller and pods, both directions, to what splits it into lines and reads these. Checks that
//! nothing panics, that lines are the same in whatever pieces they come, and that what is read is written as it was.

use portcullis::wire::{Position, Report, Update};

use crate::provider;

/// Checks one input.
pub fn check(data: &[u8]) {
    let whole = provider::lines([data].into_iter());
    let mut expected = data.split(|byte| *byte == b'\n');
    assert!(whole.iter().all(|line| expected.next() == Some(line)));
    assert_eq!(expected.count(), 1);
    for size in [1, data.len() / 3 + 1] {
        assert_eq!(
            provider::lines(data.chunks(size)),
            whole,
            "in pieces of {size}"
        );
    }
    whole.iter().for_each(|line| check_line(line));
}

fn check_line(line: &[u8]) {
    match provider::parse(line) {
        // Numbers of objects need not be written as they were.
        Ok(None | Some(Update::Put(_))) => {}
        Ok(Some(update)) => {
            let written = serde_json::to_vec(&update).expect("it is JSON");
            assert_eq!(provider::parse(&written), Ok(Some(update)));
        }
        Err(message) => assert!(!message.contains('\n'), "{message}"),
    }
    if let Ok(report) = serde_json::from_slice::<Report>(line) {
        let written = serde_json::to_vec(&report).expect("it is JSON");
        assert_eq!(serde_json::from_slice(&written).ok(), Some(report));
    }
    if let Some(Ok(position)) = std::str::from_utf8(line).ok().map(str::parse::<Position>) {
        assert_eq!(position.to_string().parse(), Ok(position));
    }
}
