//! Hints for Ingresses, which are not served: what a migration makes of their annotations.

use crate::api::annotation::INGRESS_NGINX;
use crate::finding::Severity;
use crate::migrate::annotations::find;
use crate::provider::Problem;

/// Adds to the note of each annotation of ingress-nginx what becomes of it.
pub(super) fn explain(problems: &mut [Problem]) {
    let notes = problems.iter_mut();
    for note in notes.filter(|problem| problem.severity == Severity::Note) {
        let Some(name) = annotation(&note.field) else {
            continue;
        };
        let hint = match find(name) {
            Some(row) => format!("; `portcullis migrate`: {}: {}", row.outcome, row.text),
            None => "; `portcullis migrate` knows no such annotation".to_owned(),
        };
        note.message.push_str(&hint);
    }
}

/// Returns the name of the annotation that a field of an Ingress is, without its prefix.
fn annotation(field: &str) -> Option<&str> {
    let (_, key) = field.rsplit_once("metadata.annotations[")?;
    key.strip_suffix(']')?.strip_prefix(INGRESS_NGINX)
}
