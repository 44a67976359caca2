//! `compression` of RoutePolicies.

use std::sync::Arc;

use crate::api::route_policy::Compression;
use crate::ir::compression::{self as ir, Encoding, Level};
use crate::translate::reason::{Fault, Faults, all, both, invalid};
use crate::translate::{media_type, size};

/// Media types of responses that are usually text. Event streams are long-lived, and each would hold the memory of an
/// encoder: a policy has to name them.
const CONTENT_TYPES: [&str; 16] = [
    "application/atom+xml",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/problem+json",
    "application/rss+xml",
    "application/wasm",
    "application/xhtml+xml",
    "application/xml",
    "image/svg+xml",
    "text/css",
    "text/html",
    "text/javascript",
    "text/plain",
    "text/xml",
];
/// Minimum size of a response: below it, there is little to gain.
const MIN_SIZE: u64 = 1024;

/// Parses the section.
pub(super) fn read(section: &Compression) -> Result<ir::Compression, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let Compression {
        encodings,
        content_types,
        min_size,
        level,
    } = section;
    let encodings = match encodings {
        None => Ok(Encoding::ALL.to_vec()),
        Some(names) => self::encodings(names),
    };
    let content_types = match content_types {
        None => Ok(CONTENT_TYPES.map(Arc::from).to_vec()),
        Some(ranges) => {
            let ranges = ranges.iter().zip(0..);
            all(ranges.map(|(range, index)| content_type(range, index)))
        }
    };
    let min_size = min_size.as_ref();
    let min_size = min_size.map(|size| size::parse(size, "spec.compression.minSize"));
    let level = match level.as_deref() {
        None | Some("Default") => Ok(Level::Default),
        Some("Fast") => Ok(Level::Fast),
        Some("Best") => Ok(Level::Best),
        Some(other) => invalid(format!(
            "spec.compression.level: {other:?} is none of Fast, Default and Best"
        )),
    };
    let sizes = both(min_size.transpose(), level);
    let ((encodings, content_types), (min_size, level)) =
        both(both(encodings, content_types), sizes)?;
    Ok(ir::Compression {
        encodings,
        content_types,
        min_size: min_size.unwrap_or(MIN_SIZE),
        level,
    })
}

fn encodings(names: &[String]) -> Result<Vec<Encoding>, Fault> {
    let (mut encodings, mut faults) = (Vec::new(), Faults::default());
    for (name, index) in names.iter().zip(0..) {
        let field = format!("spec.compression.encodings[{index}]");
        let encoding = match Encoding::ALL.into_iter().find(|it| it.name() == name) {
            Some(encoding) if encodings.contains(&encoding) => {
                invalid(format!("{field}: {name} is listed before"))
            }
            Some(encoding) => Ok(encoding),
            None => invalid(format!("{field}: {name:?} is none of zstd, br and gzip")),
        };
        encodings.extend(faults.keep(encoding));
    }
    faults.finish(encodings)
}

/// Parses a media type, or all types of one kind such as `text/*`.
fn content_type(range: &str, index: usize) -> Result<Arc<str>, Fault> {
    match media_type::parse_range(range) {
        Some(range) => Ok(range.into()),
        None => invalid(format!(
            "spec.compression.contentTypes[{index}]: {range:?} is not a media type such as text/html or text/*"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        let section = serde_json::from_str(json).unwrap();
        let fault = read(&section).err();
        fault.map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn fields_that_cannot_be_used_are_named() {
        for (json, expected) in [
            (r#"{}"#, ""),
            (r#"{"encodings": []}"#, ""),
            (
                r#"{"encodings": ["gzip"], "contentTypes": ["Text/*"], "minSize": 0, "level": "Best"}"#,
                "",
            ),
            (
                r#"{"encodings": ["gzip", "gzip"]}"#,
                "encodings[1]: gzip is listed before",
            ),
            (
                r#"{"encodings": ["deflate"]}"#,
                "encodings[0]: \"deflate\" is none of",
            ),
            (
                r#"{"contentTypes": ["text/html", "*/*"]}"#,
                "contentTypes[1]: \"*/*\" is not",
            ),
            (
                r#"{"contentTypes": ["text/html; a=b"]}"#,
                "contentTypes[0]: ",
            ),
            (r#"{"minSize": "1.5Ki"}"#, "minSize: "),
            (r#"{"level": "9"}"#, "level: \"9\" is none of"),
        ] {
            let message = message(json);
            let found = message
                .strip_prefix("spec.compression.")
                .unwrap_or_default();
            assert!(found.starts_with(expected), "{json}: {message}");
            assert_eq!(message.is_empty(), expected.is_empty(), "{message}");
        }
    }
}
