//! Admission of an object as an API server does it: finds its kind, applies defaults, validates, and returns the typed
//! object or findings. Must not know where the object comes from.

use serde_json::{Map, Value};
use thin_vec::ThinVec;

use super::annotation::INGRESS_NGINX;
use super::object::{Kind, Object};
use super::protection::protects;
use super::unreadable::{self, Outcome};
use super::{legacy, parameters, schema};
use crate::api::violation::Violation;
use crate::finding::Severity;
use crate::ir::ObjectRef;
use crate::ir::object_ref::{GATEWAY_GROUP, group_and_version};

/// Maximum number of findings that are kept for one object.
const MAX_FINDINGS: usize = 50;
/// Maximum length of `apiVersion`: a group of 253 characters, `/`, and a version of 63.
const MAX_WORD: usize = 317;

/// The result of admitting one object.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The object's name; `None` if it cannot be determined.
    pub id: Option<ObjectRef>,
    /// The object; `None` if it is invalid or of a kind that is not watched.
    pub object: Option<Object>,
    /// What takes the place of an invalid object that has no earlier valid version; `None` if nothing does. Boxed, since few
    /// have it.
    pub stand_in: Option<Box<Object>>,
    /// Whether the object protects requests, is not valid, and does not say which ones they are: these are served without it.
    pub leaves_open: bool,
    /// Errors and warnings.
    pub findings: ThinVec<Violation>,
}

impl Admission {
    fn refused(id: Option<ObjectRef>, findings: Vec<Violation>) -> Self {
        Self {
            id,
            object: None,
            stand_in: None,
            leaves_open: false,
            findings: cut(findings),
        }
    }

    /// An object of a kind that is not valid. `written` is the object as its author wrote it.
    fn invalid(
        kind: &Kind,
        id: Option<ObjectRef>,
        written: &Value,
        findings: Vec<Violation>,
    ) -> Self {
        let outcome = match protects(kind) {
            true => unreadable::outcome(kind, id.as_ref(), written, &findings),
            false => Outcome::Nothing,
        };
        let refused = Self::refused(id, findings);
        match outcome {
            Outcome::Nothing => refused,
            Outcome::Unknown => Self {
                leaves_open: true,
                ..refused
            },
            Outcome::Replaced(stand_in) => Self {
                leaves_open: stand_in.is_without_targets(),
                stand_in: Some(stand_in),
                ..refused
            },
        }
    }

    /// Reports whether any finding is an error.
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }
}

/// Admits an object at a path of a document, such as `items[2]` of a list, and prepends the path to each finding.
pub fn admit_at(place: &str, value: Value) -> Admission {
    let mut admission = admit(value);
    for finding in &mut admission.findings {
        finding.field = match (place, finding.field.as_str()) {
            ("", field) => field.to_owned(),
            (place, "") => place.to_owned(),
            (place, field) => format!("{place}.{field}"),
        };
    }
    admission
}

/// Admits one object. `value` is the object as its author wrote it.
pub fn admit(value: Value) -> Admission {
    let Value::Object(mut value) = value else {
        let finding = Violation::error("", "must be an object with apiVersion, kind and metadata");
        return Admission::refused(None, vec![finding]);
    };
    let api_version = text(&value, "apiVersion");
    let kind_name = text(&value, "kind");
    if api_version.is_empty() || kind_name.is_empty() {
        let field = if kind_name.is_empty() {
            "kind"
        } else {
            "apiVersion"
        };
        let finding = Violation::error(field, required(&value, field));
        return unnamed(value, (&api_version, &kind_name), finding);
    }
    for (field, text) in [("apiVersion", &api_version), ("kind", &kind_name)] {
        if !is_word(text) {
            let message =
                "Invalid value: must be letters, digits, '.', '-' and '/', and not too long";
            let finding = Violation::error(field, message);
            return unnamed(value, (&api_version, &kind_name), finding);
        }
    }
    let Some(kind) = Kind::find(&api_version, &kind_name) else {
        return unwatched(value, &api_version, &kind_name);
    };
    let advice = read_as_released(kind, &kind_name, &mut value);
    let id = identify(kind, &mut value);
    // The schema removes what it does not know.
    let written = match protects(kind) {
        true => Value::Object(value.clone()),
        false => Value::Null,
    };
    // First: the schema rejects these shapes as well, but without naming the released ones.
    let mut findings = legacy::shapes(kind, &value);
    if findings.is_empty() {
        findings = schema::apply(kind, &mut value);
    }
    findings.extend(advice);
    let is_error = |finding: &Violation| finding.severity == Severity::Error;
    if !findings.iter().any(is_error) {
        match kind.decode(&Value::Object(value)) {
            Ok(object) => {
                return Admission {
                    object: Some(object),
                    ..Admission::refused(id, findings)
                };
            }
            Err(error) => findings.push(Violation::error("", format!("cannot be read: {error}"))),
        }
    }
    Admission::invalid(kind, id, &written, findings)
}

/// Returns the message on a field that every object has, and that this one lacks.
fn required(value: &Map<String, Value>, field: &str) -> String {
    let others = value.keys().map(String::as_str);
    let is_similar = |key: &&str| {
        key.len() <= 2 * field.len() && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let others = others.filter(is_similar);
    let is_object = ["apiVersion", "kind", "metadata"]
        .iter()
        .any(|key| value.contains_key(*key));
    match schema::nearest(field, others).filter(|_| is_object) {
        Some(key) if key != field => format!("Required value; write {field} instead of {key}"),
        None if !is_object => {
            "Required value; this is not an object, but perhaps a file of Kustomize or Helm: use what these render"
                .to_owned()
        }
        Some(_) | None => "Required value".to_owned(),
    }
}

/// Admits an object without a valid `apiVersion` or `kind`.
fn unnamed(
    mut value: Map<String, Value>,
    (api_version, kind): (&str, &str),
    finding: Violation,
) -> Admission {
    let (group, _) = group_and_version(api_version);
    match meant(group, kind).filter(|kind| protects(kind)) {
        Some(kind) => {
            let id = identify(kind, &mut value);
            Admission::invalid(kind, id, &Value::Object(value), vec![finding])
        }
        None => Admission::refused(None, vec![finding]),
    }
}

/// Names an object of a kind before its release as the released kind, and advises to do so.
fn read_as_released(kind: &Kind, name: &str, value: &mut Map<String, Value>) -> Option<Violation> {
    if kind.kind == name {
        return None;
    }
    let (api_version, now) = (kind.api_version(), kind.kind);
    value.insert("apiVersion".to_owned(), api_version.as_str().into());
    value.insert("kind".to_owned(), now.into());
    let message = format!(
        "{name} is read as {now}, which it was released as; write apiVersion: {api_version}, kind: {now}"
    );
    Some(Violation::warning("kind", message))
}

/// Truncates findings to [`MAX_FINDINGS`], warnings first.
fn cut(mut findings: Vec<Violation>) -> ThinVec<Violation> {
    if findings.len() <= MAX_FINDINGS {
        return findings.into();
    }
    let dropped = findings.len() - MAX_FINDINGS;
    findings.sort_by_key(|finding| finding.severity);
    findings.truncate(MAX_FINDINGS);
    let last = findings
        .last()
        .map_or(Severity::Warning, |finding| finding.severity);
    findings.push(Violation {
        severity: last,
        ..Violation::error("", format!("and {dropped} more"))
    });
    findings.into()
}

/// Admits an object of a kind that is not watched: either a former kind of the API, or a foreign one.
fn unwatched(mut value: Map<String, Value>, api_version: &str, kind: &str) -> Admission {
    let (group, _) = group_and_version(api_version);
    let mut findings = legacy::kind(api_version, kind, &value);
    let known = meant(group, kind);
    if findings.is_empty() {
        findings.push(unknown(group, (api_version, kind), known));
    }
    if let Some(known) = known.filter(|known| protects(known)) {
        let id = identify(known, &mut value);
        return Admission::invalid(known, id, &Value::Object(value), findings);
    }
    let metadata = value.get("metadata").and_then(Value::as_object);
    if is_ingress(group, kind) {
        findings.extend(of_ingress_nginx(metadata));
    }
    let part = |key| {
        metadata
            .map(|metadata| text(metadata, key))
            .unwrap_or_default()
    };
    let name = part("name");
    let id = ObjectRef::new(group, kind, &part("namespace"), &name);
    Admission::refused((!name.is_empty()).then_some(id), findings)
}

/// Returns the kind that the author of an object of an unknown kind or version means.
fn meant(group: &str, kind: &str) -> Option<&'static Kind> {
    let same = |known: &&Kind| known.kind.eq_ignore_ascii_case(kind);
    // A frequent mistake for the group of the Gateway API. The kinds of other groups may have the same names.
    let is_kubernetes = group == "networking.k8s.io";
    let ours = |known: &&Kind| {
        known.group == group || group.is_empty() || is_kubernetes && known.group == GATEWAY_GROUP
    };
    let resembles = || {
        let is_ours = [GATEWAY_GROUP, parameters::GROUP].contains(&group) && kind.len() <= MAX_WORD;
        let known = Kind::all().iter().filter(ours).filter(|_| is_ours);
        let nearest = schema::nearest(kind, known.map(|known| known.kind))?;
        Kind::all()
            .iter()
            .filter(ours)
            .find(|it| it.kind == nearest)
    };
    Kind::all()
        .iter()
        .filter(ours)
        .find(same)
        .or_else(resembles)
}

/// Returns a finding on an unknown kind: an error if it looks like a misspelled kind of ours, else a warning. `known` is the
/// kind that is meant.
fn unknown(
    group: &str,
    (api_version, kind): (&str, &str),
    known: Option<&'static Kind>,
) -> Violation {
    if (group, kind) == ("", "List") {
        return Violation::error("items", "Invalid value: must be a list of objects");
    }
    match known {
        Some(known) if known.kind.eq_ignore_ascii_case(kind) => {
            let (today, kind_today) = (known.api_version(), known.kind);
            let message = format!(
                "no {kind} in {api_version}; write apiVersion: {today}, kind: {kind_today}"
            );
            Violation::error("apiVersion", message)
        }
        Some(known) => {
            let nearest = known.kind;
            let message = format!("there is no {kind} in {api_version}; did you mean {nearest}?");
            Violation::error("kind", message)
        }
        None if [GATEWAY_GROUP, parameters::GROUP].contains(&group) => {
            Violation::error("kind", format!("there is no {kind} in {api_version}"))
        }
        None => {
            let mut message =
                format!("{kind} of {api_version} is not a kind that Portcullis reads; ignored");
            if is_ingress(group, kind) {
                message.push_str(
                    "; `portcullis migrate` converts those of ingress-nginx to routes and policies",
                );
            }
            Violation::warning("kind", message)
        }
    }
}

fn is_ingress(group: &str, kind: &str) -> bool {
    (group, kind) == ("networking.k8s.io", "Ingress")
}

/// Returns a note for each annotation of ingress-nginx.
fn of_ingress_nginx(metadata: Option<&Map<String, Value>>) -> impl Iterator<Item = Violation> {
    let annotations = metadata.and_then(|it| it.get("annotations"));
    let keys = annotations.and_then(Value::as_object).into_iter();
    let keys = keys.flat_map(Map::keys);
    keys.filter(|key| key.starts_with(INGRESS_NGINX))
        .map(|key| Violation {
            severity: Severity::Note,
            ..Violation::error(format!("metadata.annotations[{key}]"), "ignored")
        })
}

/// Reports whether text can be a kind or an `apiVersion`.
fn is_word(text: &str) -> bool {
    text.len() <= MAX_WORD
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-/".contains(&byte))
}

/// Sets the namespace that a file may omit, and returns the object's name.
fn identify(kind: &Kind, value: &mut Map<String, Value>) -> Option<ObjectRef> {
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    if !kind.namespaced {
        metadata.remove("namespace");
    } else if metadata
        .get("namespace")
        .is_none_or(|namespace| namespace.is_null() || namespace == "")
    {
        metadata.insert("namespace".to_owned(), Value::from("default"));
    }
    let name = text(metadata, "name");
    (!name.is_empty()).then(|| kind.object_ref(&text(metadata, "namespace"), &name))
}

fn text(map: &Map<String, Value>, key: &str) -> String {
    map.get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}
