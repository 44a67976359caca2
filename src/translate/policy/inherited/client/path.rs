//! `path` of a ClientPolicy.

use std::sync::Arc;

use crate::api::client_policy::PathNormalization;
use crate::ir::ObjectRef;
use crate::ir::client::{DotSegments, DuplicateSlashes, EscapedSlashes, PathSettings};

use super::super::policy::Content;
use crate::translate::reason::{Fault, invalid};

pub(super) fn path(policy: &ObjectRef, section: &PathNormalization) -> Result<Content, Fault> {
    let PathNormalization {
        escaped_slashes,
        merge_slashes,
        dot_segments,
    } = section;
    let escaped_slashes = match escaped_slashes.as_deref() {
        None | Some("Keep") => EscapedSlashes::Keep,
        Some("Reject") => EscapedSlashes::Reject,
        Some("Decode") => EscapedSlashes::Decode,
        Some(other) => {
            return invalid(format!(
                "spec.path.escapedSlashes: {other:?} is none of Keep, Reject and Decode"
            ));
        }
    };
    let dot_segments = match dot_segments.as_deref() {
        Some("Keep") => DotSegments::Keep,
        Some("Normalize") => DotSegments::Normalize,
        None | Some("Reject") => DotSegments::Reject,
        Some(other) => {
            return invalid(format!(
                "spec.path.dotSegments: {other:?} is none of Keep, Normalize and Reject"
            ));
        }
    };
    Ok(Content::Path(Arc::new(PathSettings {
        escaped_slashes,
        duplicate_slashes: match merge_slashes {
            None => DuplicateSlashes::Forward,
            Some(true) => DuplicateSlashes::Merge,
            Some(false) => DuplicateSlashes::Keep,
        },
        dot_segments,
        policy: policy.clone(),
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(section: Value) -> Result<Content, Fault> {
        let policy = ObjectRef::core("Policy", "ns", "name");
        path(&policy, &serde_json::from_value(section).unwrap())
    }

    #[test]
    fn fields_that_are_not_set_have_their_defaults() {
        let Ok(Content::Path(settings)) = read(json!({})) else {
            panic!("a path");
        };
        assert_eq!(settings.escaped_slashes, EscapedSlashes::Keep);
        assert_eq!(settings.duplicate_slashes, DuplicateSlashes::Forward);
        assert_eq!(settings.dot_segments, DotSegments::Reject);
    }

    #[test]
    fn faults_name_the_field() {
        for (section, expected) in [
            (
                json!({"escapedSlashes": "Unescape"}),
                "spec.path.escapedSlashes: \"Unescape\" is none of Keep, Reject and Decode",
            ),
            (
                json!({"dotSegments": "Decode"}),
                "spec.path.dotSegments: \"Decode\" is none of Keep, Normalize and Reject",
            ),
        ] {
            let message = read(section).err().map(|fault| fault.message);
            assert_eq!(message.as_deref(), Some(expected));
        }
    }
}
