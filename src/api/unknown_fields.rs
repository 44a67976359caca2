//! Fields of objects that this version does not know, as with the CRDs of a later version: one table says which of them refuse
//! a part of their object, since they may be what narrows or protects it. Must not know how a part is refused.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use serde_json::Value;

use super::meta::{Resource, UnknownFields};
use super::object::{Kind, KindName, Object};
use super::schema;

/// Maximum number of fields that are kept of an object besides those that refuse a part of it.
const MAX_OTHERS: usize = 8;
/// Maximum number of characters of a field. What it refuses is at its beginning.
const MAX_CHARS: usize = 200;

/// What follows from an unknown field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The part that the row names is refused, in these words.
    Refuses(&'static str),
    /// What is known of the object has an effect.
    LeftOut,
}
use Effect::{LeftOut, Refuses};

impl Effect {
    fn text(self) -> &'static str {
        match self {
            Refuses(text) => text,
            LeftOut => "the rest of it has an effect",
        }
    }
}

/// A row of the table: what follows from an unknown field below this path, in which `[]` is any item of a list. The first row
/// of a kind that a field is below decides.
type Row = (&'static str, Effect);

const RULE: Row = ("spec.rules[]", Refuses("requests of the rule are refused"));
/// `parentRefs` and `hostnames` say which requests a route is for. A field beside them or in them may, too.
const ROUTE: Row = ("spec", Refuses("requests of the route are refused"));
/// How long requests and attempts take, and which of several endpoints gets them: no request passes without these that should
/// not.
const TIMEOUTS: Row = ("spec.rules[].timeouts", LeftOut);
const RETRY: Row = ("spec.rules[].retry", LeftOut);
const SESSIONS: Row = ("spec.rules[].sessionPersistence", LeftOut);
/// All fields of a listener but its name say what it lets in. A field beside them may, too.
const LISTENER: Row = ("spec.listeners[]", Refuses("the listener is not served"));
const WHOLE: &str = "spec";
const REST: Row = (WHOLE, LeftOut);

/// In a rule, `matches`, `filters` and `backendRefs` say which requests pass, changed in which way, and where they go. A field
/// that they lack may be what narrows them. A field beside them may be a guard of a new kind.
const HTTP_ROUTE: &[Row] = &[TIMEOUTS, RETRY, SESSIONS, RULE, ROUTE];
const GRPC_ROUTE: &[Row] = &[SESSIONS, RULE, ROUTE];
const L4_ROUTE: &[Row] = &[RULE, ROUTE];
const GATEWAY: &[Row] = &[
    LISTENER,
    // How the Gateway presents itself to backends, which decide about it.
    ("spec.tls.backend", LeftOut),
    // Which certificates clients need. A field beside `frontend` may be about them, too.
    (
        "spec.tls",
        Refuses("listeners that terminate TLS are not served"),
    ),
    ("spec.allowedListeners", Refuses("no ListenerSet attaches")),
    // Where it runs, and its addresses.
    REST,
];
const LISTENER_SET: &[Row] = &[
    LISTENER,
    // `parentRef` says to what it attaches.
    (WHOLE, Refuses("its listeners are not served")),
];
const GRANT: &[Row] = &[(WHOLE, Refuses("it permits nothing"))];
const FILTER: &[Row] = &[(WHOLE, Refuses("requests of rules with it are refused"))];
/// All fields say where requests go, and how the connection is protected.
const EXTERNAL: &[Row] = &[(WHOLE, Refuses("no request is sent to it"))];
/// They say which pods get requests, and which server is asked about them. The other fields say how.
const POOL: &[Row] = &[
    ("spec.selector", Refuses("no request is sent to it")),
    (
        "spec.endpointPickerRef",
        Refuses("no request is sent to it"),
    ),
    REST,
];
/// The policy is not valid: its own kind says what that means.
const POLICY: &[Row] = &[(WHOLE, Refuses("the policy is not valid"))];
const OTHER: &[Row] = &[REST];

/// Returns the rows of a kind; `None` if its objects are not compared with its schema.
fn rows(kind: KindName) -> Option<&'static [Row]> {
    match kind {
        KindName::HttpRoute => Some(HTTP_ROUTE),
        KindName::GrpcRoute => Some(GRPC_ROUTE),
        KindName::TlsRoute | KindName::TcpRoute | KindName::UdpRoute => Some(L4_ROUTE),
        KindName::Gateway => Some(GATEWAY),
        KindName::ListenerSet => Some(LISTENER_SET),
        KindName::ReferenceGrant => Some(GRANT),
        KindName::RouteFilter => Some(FILTER),
        KindName::XBackend => Some(EXTERNAL),
        KindName::InferencePool => Some(POOL),
        KindName::AccessPolicy
        | KindName::ClientPolicy
        | KindName::RateLimitPolicy
        | KindName::BackendTlsPolicy
        | KindName::BackendTlsOverride => Some(POLICY),
        // They protect nothing: see `protection`.
        KindName::GatewayClass
        | KindName::GatewayParameters
        | KindName::RoutePolicy
        | KindName::BackendPolicy
        | KindName::BackendTrafficPolicy
        | KindName::TelemetryPolicy
        | KindName::ReleaseBackend
        | KindName::ServiceImport => Some(OTHER),
        // Their schemas have only what is read: Kubernetes adds fields with each version.
        KindName::Namespace
        | KindName::Service
        | KindName::Pod
        | KindName::EndpointSlice
        | KindName::Secret
        | KindName::ConfigMap => None,
        // No CRD has it: Portcullis itself creates it.
        KindName::KeySet => None,
    }
}

/// Reports whether objects of a kind are compared with its schema.
pub(super) fn is_compared(kind: &Kind) -> bool {
    rows(kind.name).is_some()
}

/// Returns the unknown fields of an object with this spec, of which this version has read `object`.
pub(super) fn of(kind: &Kind, spec: &Value, object: &Object) -> UnknownFields {
    let mut found = UnknownFields::default();
    let Some(rows) = rows(kind.name) else {
        return found;
    };
    let canonical = OnceCell::new();
    let read = || canonical.get_or_init(|| object.to_value().unwrap_or_default());
    let (mut refused, mut others) = (BTreeSet::new(), 0);
    let visited = schema::unknown_fields(kind, spec, &mut |field| {
        // Kinds share types, so that objects are written with fields of others, which have no value.
        if field.is_empty() && field.is_in(read()) {
            return;
        }
        let path = field.path();
        let is_kept = match decide(rows, &path) {
            (part, Refuses(_)) => refused.insert(part.to_owned()),
            (_, LeftOut) => {
                others += 1;
                others <= MAX_OTHERS
            }
        };
        if is_kept {
            found.push(shown(&path));
        }
    });
    if visited.is_err() {
        found.push(WHOLE.into());
    }
    found
}

/// Returns the unknown field because of which a part of an object is refused, such as `spec.rules[0]`. `spec` is the whole
/// object.
pub fn refusing<'a, T: Resource>(object: &'a T, part: &str) -> Option<&'a str> {
    let fields = &object.meta().unknown_fields;
    if fields.is_empty() {
        return None;
    }
    let mut kinds = Kind::all().iter();
    let kind = kinds.find(|kind| (kind.group, kind.kind) == (T::GROUP, T::KIND))?;
    let rows = rows(kind.name)?;
    let refuses = |field: &&str| match decide(rows, field) {
        (refused, Refuses(_)) => is_in(refused, part),
        (_, LeftOut) => false,
    };
    fields.iter().find(refuses)
}

/// Returns the unknown fields of an object, each with what follows from it.
pub fn effects(object: &Object) -> impl Iterator<Item = (&str, &'static str)> {
    let rows = rows(object.kind().name).unwrap_or(OTHER);
    let fields = object.meta().unknown_fields.iter();
    fields.map(|field| (field, decide(rows, field).1.text()))
}

/// Returns the part of an object that the row for a field is about, and what follows from the field.
fn decide<'f>(rows: &[Row], field: &'f str) -> (&'f str, Effect) {
    let mut rows = rows.iter();
    let found = rows.find_map(|(pattern, effect)| Some((part(pattern, field)?, *effect)));
    found.unwrap_or((field, LeftOut))
}

/// Returns the beginning of a field that is at the path of a row; `None` if the field is not below it.
fn part<'f>(pattern: &str, field: &'f str) -> Option<&'f str> {
    let mut pieces = pattern.split("[]");
    let mut rest = field.strip_prefix(pieces.next()?)?;
    for piece in pieces {
        let (_, after) = rest.strip_prefix('[')?.split_once(']')?;
        rest = after.strip_prefix(piece)?;
    }
    is_end(rest).then(|| &field[..field.len() - rest.len()])
}

/// Reports whether a path is this part or below it.
fn is_in(part: &str, path: &str) -> bool {
    path.strip_prefix(part).is_some_and(is_end)
}

/// Reports whether a name ends before the rest of a path.
fn is_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['.', '['])
}

/// Returns a path as it is reported: on one line, and not too long.
fn shown(path: &str) -> Box<str> {
    let plain = path
        .chars()
        .map(|it| if it.is_control() { '?' } else { it });
    let mut shown: String = plain.take(MAX_CHARS + 1).collect();
    if let Some((end, _)) = shown.char_indices().nth(MAX_CHARS) {
        shown.truncate(end);
        shown.push('…');
    }
    shown.into()
}

#[cfg(test)]
mod tests;
