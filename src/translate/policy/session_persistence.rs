//! `sessionPersistence` of a rule or of a traffic policy (GEP-1619).

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderName;

use crate::api::session_persistence::SessionPersistence as Spec;
use crate::ir::hex;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::session::{Carrier, SessionPersistence};
use crate::ir::{ObjectRef, RuleId};

use crate::translate::duration;
use crate::translate::reason::{Fault, Reason};

/// Beginning of the default of `sessionName`, which the API leaves to the implementation.
const DEFAULT_NAME: &str = "portcullis-session";
/// Headers that have another meaning in requests or responses.
const RESERVED: [HeaderName; 6] = [
    http::header::AUTHORIZATION,
    http::header::CONTENT_LENGTH,
    http::header::CONTENT_TYPE,
    http::header::COOKIE,
    http::header::HOST,
    http::header::SET_COOKIE,
];

/// Translates the `sessionPersistence` of a rule at `field`. The default name depends on the rule: two rules may have
/// one host and path, and the cookie of one would replace that of the other.
pub(in crate::translate) fn of_rule(
    spec: &Spec,
    rule: &RuleId,
    field: &str,
) -> Result<SessionPersistence, Fault> {
    let name = default_name(&rule.session_scope());
    translate(spec, &name, &format!("{field}.sessionPersistence"))
}

/// Translates the `spec.sessionPersistence` of a traffic policy for one of its targets. The default name depends on the backend: sessions at two backends
/// of one host need two cookies.
pub(in crate::translate) fn of_backend(
    spec: &Spec,
    backend: &ObjectRef,
) -> Result<SessionPersistence, Fault> {
    translate(
        spec,
        &default_name(&backend.to_string()),
        "spec.sessionPersistence",
    )
}

/// Returns [`DEFAULT_NAME`] with the first 8 hexadecimal digits of SHA-256 over the owner's name, which are equal in
/// all replicas.
fn default_name(owner: &str) -> String {
    let digest = digest(&SHA256, owner.as_bytes());
    format!("{DEFAULT_NAME}-{}", hex::encode(&digest.as_ref()[..4]))
}

/// Translates the `sessionPersistence` at `field`.
fn translate(spec: &Spec, default_name: &str, field: &str) -> Result<SessionPersistence, Fault> {
    let refused = |message: String| Err(Fault::new(Reason::UnsupportedValue, message));
    let absolute_timeout = spec.absolute_timeout.as_deref();
    let absolute_timeout = absolute_timeout
        .map(|text| duration::parse(text, &format!("{field}.absoluteTimeout")))
        .transpose()?;
    if absolute_timeout.is_some_and(|timeout| timeout.is_zero()) {
        return refused(format!("{field}.absoluteTimeout: must be longer than 0s"));
    }
    let lifetime = spec.cookie_config.as_ref();
    let lifetime = lifetime.and_then(|config| config.lifetime_type.as_deref());
    let name = spec.session_name.as_deref().filter(|name| !name.is_empty());
    let name = name.unwrap_or(default_name);
    let Ok(header) = name.parse::<HeaderName>() else {
        return refused(format!(
            "{field}.sessionName: {name:?} is not a token of letters, digits and !#$%&'*+-.^_`|~"
        ));
    };
    let carrier = match (spec.kind.as_deref(), lifetime) {
        (None | Some("Cookie"), Some("Permanent")) if absolute_timeout.is_none() => {
            return refused(format!(
                "{field}.absoluteTimeout: needed by cookieConfig.lifetimeType Permanent"
            ));
        }
        (None | Some("Cookie"), None | Some("Session" | "Permanent")) => Carrier::Cookie {
            name: name.into(),
            is_permanent: lifetime == Some("Permanent"),
        },
        (Some("Header"), None) if RESERVED.contains(&header) || HOP_BY_HOP.contains(&header) => {
            return refused(format!(
                "{field}.sessionName: {name} cannot be the header of a session, because HTTP uses it"
            ));
        }
        (Some("Header"), None) => Carrier::Header(header),
        (Some("Header"), Some(_)) => {
            return refused(format!("{field}.cookieConfig: only with type Cookie"));
        }
        (None | Some("Cookie"), Some(other)) => {
            return refused(format!(
                "{field}.cookieConfig.lifetimeType: {other:?} is neither Session nor Permanent"
            ));
        }
        (Some(other), _) => {
            return refused(format!(
                "{field}.type: {other:?} is neither Cookie nor Header"
            ));
        }
    };
    Ok(SessionPersistence {
        carrier,
        absolute_timeout,
    })
}
