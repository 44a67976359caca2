//! Validation against OpenAPI schemas, as in an API server. The schemas come from the Gateway API release (written by
//! `generate`); smaller ones for metadata and the core kinds are our own. Contains no code for a particular kind.

mod cel;
mod default;
mod faulty;
mod format;
mod hint;
mod node;
mod path;
mod pattern;
mod rule;
#[cfg(test)]
mod sample;
mod unknown;
mod valid;
mod validate;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Map, Value};

use self::faulty::Faulty;
pub(crate) use self::hint::nearest;
use self::node::Schema;
use self::path::Path;
#[cfg(test)]
pub(crate) use self::sample::sample_of;
use self::unknown::UnknownField;
use self::valid::Digest;
use super::annotation;
use super::object::Kind;
use super::violation::Violation;

/// Maximum size of all annotations of an object (`TotalAnnotationSizeLimitB` in Kubernetes).
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Applies defaults to the object, and returns all findings.
///
/// An API server evaluates CEL rules only if the whole object matches its schema. Here, an author learns at once also of those
/// that other values violate.
pub(super) fn apply(kind: &Kind, object: &mut Map<String, Value>) -> Vec<Violation> {
    let schema = match of_kind(kind) {
        Ok(schema) => schema,
        Err(error) => {
            return vec![Violation::error(
                "",
                format!("the schema of {} is broken: {error}", kind.kind),
            )];
        }
    };
    let mut findings = Vec::new();
    metadata(object, &schema, &mut findings);
    // An API server ignores the status of a new object. Kinds whose status is read, such as Pod, have it in their
    // schema, because a file has no status subresource.
    let has_status = schema.root.properties.contains_key("status");
    let is_envelope = |key: &str| {
        matches!(key, "apiVersion" | "kind" | "metadata") || key == "status" && !has_status
    };
    let mut body: Map<String, Value> = Map::new();
    for (key, value) in object.iter_mut().filter(|(key, _)| !is_envelope(key)) {
        body.insert(key.clone(), value.take());
    }
    let mut body = Value::Object(body);
    let mut of_body = Vec::new();
    default::apply(
        &schema,
        &schema.root,
        &mut body,
        &mut Path::default(),
        &mut of_body,
    );
    let digest = Digest::of(&body);
    if !schema.valid.contains(digest) {
        check(&schema, &body, &mut of_body);
        // After an error, not all rules are evaluated.
        if of_body.is_empty() {
            schema.valid.insert(digest);
        }
    }
    findings.append(&mut of_body);
    object.retain(|key, _| is_envelope(key) && key != "status");
    if let Value::Object(body) = body {
        object.extend(body);
    }
    findings
}

/// Visits each field in the spec of an object that the schema of its kind does not have, in the order of the names. A field that
/// is null is absent.
///
/// # Errors
/// When the schema cannot be parsed.
pub(super) fn unknown_fields<'a>(
    kind: &Kind,
    spec: &'a Value,
    found: &mut dyn FnMut(&UnknownField<'a, '_>),
) -> Result<(), serde_json::Error> {
    let schema = of_kind(kind)?;
    unknown::visit(&schema, spec, found);
    Ok(())
}

/// Checks an object without its metadata: first its schema, then the rules of all values without an error so far.
fn check<'a>(schema: &'a Schema, body: &'a Value, findings: &mut Vec<Violation>) {
    validate::check(schema, &schema.root, body, &mut Path::default(), findings);
    let faulty = Faulty::of(findings);
    let mut rules = cel::Evaluation {
        schema,
        faulty: &faulty,
        findings,
    };
    rules.check(&schema.root, body, &mut Path::default());
}

/// Checks `metadata` against the schema for all kinds, then against that of the kind, if any.
fn metadata(object: &mut Map<String, Value>, schema: &Schema, findings: &mut Vec<Violation>) {
    let Some(metadata) = object
        .get_mut("metadata")
        .filter(|metadata| !metadata.is_null())
    else {
        return findings.push(Violation::error("metadata.name", "Required value"));
    };
    match of_metadata() {
        Ok(general) => {
            let mut path = Path::default();
            path.push_field("metadata");
            default::apply(&general, &general.root, metadata, &mut path, findings);
            validate::check(&general, &general.root, metadata, &mut path, findings);
            annotations(metadata, findings);
        }
        Err(error) => findings.push(Violation::error(
            "metadata",
            format!("its schema is broken: {error}"),
        )),
    }
    if let Some(particular) = schema.root.properties.get("metadata") {
        let mut path = Path::default();
        path.push_field("metadata");
        validate::check(schema, particular, metadata, &mut path, findings);
    }
}

/// Checks the total size of annotations, since single annotations have no limit, and the names of those of Portcullis.
fn annotations(metadata: &Value, findings: &mut Vec<Violation>) {
    let Some(annotations) = metadata.get("annotations").and_then(Value::as_object) else {
        return;
    };
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(size).sum();
    if total > MAX_ANNOTATIONS {
        findings.push(Violation {
            rule: format!("total size: {MAX_ANNOTATIONS}"),
            ..Violation::error(
                "metadata.annotations",
                format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes"),
            )
        });
    }
    for key in annotations.keys() {
        if let Some(message) = unknown_annotation(key) {
            findings.push(Violation::error(
                format!("metadata.annotations[{key}]"),
                message,
            ));
        }
    }
}

/// Returns the message on an annotation of Portcullis that does not exist.
fn unknown_annotation(key: &str) -> Option<String> {
    let name = key.strip_prefix(annotation::PREFIX)?;
    let known = || {
        annotation::ALL
            .iter()
            .filter_map(|known| known.strip_prefix(annotation::PREFIX))
    };
    if known().any(|known| known == name) {
        return None;
    }
    let advice = match nearest(name, known()) {
        Some(known) => format!("; did you mean {}{known}?", annotation::PREFIX),
        None => format!("; there are {}", annotation::ALL.join(", ")),
    };
    Some(format!("unknown annotation of Portcullis{advice}"))
}

/// Returns the kind's schema, which is parsed on first use.
fn of_kind(kind: &Kind) -> Result<Arc<Schema>, serde_json::Error> {
    static SCHEMAS: Mutex<BTreeMap<&'static str, Arc<Schema>>> = Mutex::new(BTreeMap::new());
    let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(schema) = schemas.get(kind.schema) {
        return Ok(Arc::clone(schema));
    }
    let schema = Arc::new(Schema::parse(kind.schema)?);
    schemas.insert(kind.schema, Arc::clone(&schema));
    Ok(schema)
}

fn of_metadata() -> Result<Arc<Schema>, serde_json::Error> {
    static SCHEMA: OnceLock<Arc<Schema>> = OnceLock::new();
    if let Some(schema) = SCHEMA.get() {
        return Ok(Arc::clone(schema));
    }
    let schema = Arc::new(Schema::parse(include_str!("metadata.json"))?);
    Ok(Arc::clone(SCHEMA.get_or_init(|| schema)))
}
