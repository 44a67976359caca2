//! The values of an object that violate its schema, by path: rules would fail on them, and say nothing that the violation does
//! not say. Must not know what the violations are.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::path::Path;
use crate::api::violation::Violation;
use crate::finding::Severity;

/// Paths of values with an error.
#[derive(Debug, Default)]
pub(super) struct Faulty(BTreeSet<String>);

impl Faulty {
    /// Returns the values that these findings are about.
    pub(super) fn of(findings: &[Violation]) -> Self {
        let errors = findings.iter();
        let errors = errors.filter(|finding| finding.severity == Severity::Error);
        Self(errors.map(|error| error.field.clone()).collect())
    }

    /// Reports whether a value itself has an error.
    pub(super) fn has(&self, path: &Path<'_>) -> bool {
        !self.0.is_empty() && self.0.contains(&path.to_string())
    }

    /// Reports whether a value or anything inside it has an error.
    pub(super) fn has_within(&self, path: &Path<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let path = path.to_string();
        let from = (Bound::Included(&*path), Bound::Unbounded);
        let below = self.0.range::<str, _>(from);
        let mut below = below.take_while(|error| error.starts_with(&path));
        below.any(|error| {
            let rest = &error[path.len()..];
            path.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_faulty_if_anything_inside_it_is() {
        let finding = |field: &str| Violation::error(field, "wrong");
        let faulty = Faulty::of(&[
            finding("spec.rules[1].name"),
            Violation::warning("spec.other", "unusual"),
        ]);
        let path = |fields: &[&'static str]| {
            let mut path = Path::default();
            fields.iter().for_each(|field| path.push_field(field));
            path
        };
        for (fields, expected) in [
            (&[][..], true),
            (&["spec"], true),
            (&["spec", "rules"], true),
            (&["spec", "rule"], false),
            (&["spec", "rules[1]", "name"], true),
            (&["spec", "rules[1]", "names"], false),
            (&["spec", "rules[10]"], false),
            (&["spec", "other"], false),
        ] {
            assert_eq!(faulty.has_within(&path(fields)), expected, "{fields:?}");
        }
        assert!(faulty.has(&path(&["spec", "rules[1]", "name"])));
        assert!(!faulty.has(&path(&["spec", "rules[1]"])));
        assert!(!Faulty::default().has_within(&path(&[])));
    }
}
