//! A problem of the admin server as text.

use std::path::Path;

use serde_json::Value;

use crate::finding::FileLocation;

/// Returns a problem as a line: how bad it is, where it is, if that is in a file, its object, what is wrong, and since when.
pub(super) fn line(problem: &Value) -> String {
    let text = described(problem);
    match problem["since"].as_str() {
        Some(since) => format!("{text} (since {since})"),
        None => text,
    }
}

/// Returns a problem as a line without its time.
pub(super) fn described(problem: &Value) -> String {
    let of = |name: &str| problem[name].as_str();
    let number = |name: &str| problem[name].as_u64().unwrap_or_default() as usize;
    let location = of("file").map(|file| FileLocation {
        file: Path::new(file).into(),
        document: number("document"),
        line: number("line"),
    });
    // Of a file without a readable object, the object is the file.
    let object = of("object").filter(|object| Some(*object) != of("file"));
    let location = location.map(|it| it.to_string());
    let message = of("message").unwrap_or_default();
    let parts = [of("severity"), location.as_deref(), object, Some(message)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}
