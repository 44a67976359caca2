//! What a condition that is a problem does to requests and connections now, where its message does not say it.

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use crate::ir::picker::FailureMode;

/// What messages say that name the effect themselves.
const SAID: [&str; 15] = [
    " get 500",
    " get 503",
    " get gRPC status",
    " get no page",
    " is left out",
    " is not served",
    "is not applied",
    "neither is served",
    "no requests to",
    "nobody can sign in",
    "requests are refused",
    "stay in use",
    "stays in service",
    "the next policy applies",
    "version is served",
];

const NO_GATEWAY: &str = "nothing is served through the Gateway";
const PODS_STAY: &str = "pods and Services that exist stay as they are";
const NO_LISTENER_SET: &str = "nothing is served through the ListenerSet";
const NO_LISTENER: &str = "nothing is served through the listener";
const OTHERS_OF_LISTENER: &str = "the listener is served with its other references";
const OTHER_POLICY: &str = "the other policy is applied instead";
const OTHER_AUTHORITIES: &str = "its other authorities are in use";
const NO_EFFECT: &str = "the policy has no effect there";
const PROTECTED: &str = "requests that it protects get status 500";
const TO_TARGETS: &str = "requests to its targets get status 500, and connections are reset";
const TO_BACKEND: &str = "its requests get status 500";

/// The conditions of an object, or of a part of its status.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bearer<'a> {
    /// The kind of the object.
    pub(super) kind: &'a str,
    /// Whether the part is a listener.
    pub(super) is_listener: bool,
    /// The conditions.
    pub(super) conditions: &'a [Condition],
}

/// Returns what one of these conditions, which is a problem, does to requests and connections; `None` if its message says it, or
/// if that is not known from the conditions.
pub(super) fn of(bearer: Bearer<'_>, condition: &Condition) -> Option<&'static str> {
    let is_said = SAID.iter().any(|said| condition.message.contains(said));
    let waits = matches!(condition.reason, Reason::PoliciesPending | Reason::Pending);
    if is_said || waits {
        return None;
    }
    match bearer.kind {
        _ if bearer.is_listener => of_listener(bearer, condition),
        "GatewayClass" => (condition.reason == Reason::InvalidParameters).then_some(PODS_STAY),
        "Gateway" => of_gateway(bearer, condition),
        "ListenerSet" => of_listener_set(condition),
        "HTTPRoute" | "GRPCRoute" | "TCPRoute" | "TLSRoute" | "UDPRoute" => {
            of_route(bearer.kind, condition)
        }
        "XBackend" | "InferencePool" | "ReleaseBackend" => of_backend(bearer, condition),
        _ => of_policy(bearer, condition),
    }
}

fn of_listener(bearer: Bearer<'_>, condition: &Condition) -> Option<&'static str> {
    let is_unserved = |it: &Condition| match (it.kind, it.status, it.reason) {
        (_, _, Reason::PoliciesPending | Reason::Pending) => false,
        (ConditionType::Accepted, ConditionStatus::False, _) => true,
        (ConditionType::Programmed, ConditionStatus::False, reason) => matches!(
            reason,
            Reason::Invalid | Reason::HostnameConflict | Reason::ProtocolConflict
        ),
        _ => false,
    };
    if bearer.conditions.iter().any(is_unserved) {
        return Some(NO_LISTENER);
    }
    match (condition.kind, condition.reason) {
        (ConditionType::Programmed, Reason::PortUnavailable) => {
            Some("clients cannot connect where the port is not bound")
        }
        (ConditionType::ResolvedRefs, Reason::InvalidRouteKinds) => {
            Some("no route of these kinds is served through the listener")
        }
        (ConditionType::ResolvedRefs, _) => Some(OTHERS_OF_LISTENER),
        _ => None,
    }
}

fn of_gateway(bearer: Bearer<'_>, condition: &Condition) -> Option<&'static str> {
    match (condition.kind, condition.reason) {
        (ConditionType::ResolvedRefs, _) => Some("its requests to backends in TLS get status 500"),
        // It is not programmed for the same cause.
        _ if bearer.refusal() == Some(Reason::InvalidParameters) => Some(PODS_STAY),
        (ConditionType::Accepted, Reason::ListenersNotValid)
        | (ConditionType::Programmed, Reason::Invalid) => Some(NO_GATEWAY),
        // Pods that the controller has created serve what they have.
        _ => None,
    }
}

fn of_listener_set(condition: &Condition) -> Option<&'static str> {
    match condition.reason {
        Reason::ListenersNotValid
        | Reason::Invalid
        | Reason::NotAllowed
        | Reason::PortUnavailable
        | Reason::TooManyListeners => Some(NO_LISTENER_SET),
        // Pods that the controller has created serve what they have.
        _ => None,
    }
}

fn of_route(kind: &str, condition: &Condition) -> Option<&'static str> {
    let is_lost = match condition.kind {
        ConditionType::Accepted | ConditionType::PartiallyInvalid => true,
        ConditionType::ResolvedRefs => false,
        _ => return None,
    };
    Some(match (kind, is_lost) {
        ("HTTPRoute", true) => "its requests go to other rules, or get status 404",
        ("GRPCRoute", true) => "its calls go to other rules, or get gRPC status UNIMPLEMENTED",
        ("UDPRoute", true) => "none of its datagrams is forwarded",
        (_, true) => "none of its connections is forwarded",
        _ if names_only_mirrors(&condition.message) => "no copy is sent",
        ("HTTPRoute", false) => "requests that need it get status 500",
        ("GRPCRoute", false) => "calls that need it get gRPC status UNAVAILABLE",
        ("UDPRoute", false) => "datagrams for it are dropped",
        (_, false) => "connections for it are reset",
    })
}

/// Reports whether all fields of a message are references of mirrors.
fn names_only_mirrors(message: &str) -> bool {
    let mut fields = message.split("spec.rules[").skip(1).peekable();
    let is_mirror = |field: &str| {
        let end = field.find([' ', ':']).unwrap_or(field.len());
        field[..end].contains(".requestMirror.")
    };
    fields.peek().is_some() && fields.all(is_mirror)
}

fn of_backend(bearer: Bearer<'_>, condition: &Condition) -> Option<&'static str> {
    match (bearer.kind, condition.kind, condition.reason) {
        (_, _, Reason::InvalidExtensionRef) => without_picker(bearer),
        ("XBackend", ConditionType::ResolvedRefs, _) if bearer.refusal().is_none() => {
            Some(OTHER_AUTHORITIES)
        }
        _ => Some(TO_BACKEND),
    }
}

/// Returns what requests get without the picker of a pool, which another condition says.
fn without_picker(bearer: Bearer<'_>) -> Option<&'static str> {
    let mut effects = [FailureMode::Open, FailureMode::Close]
        .map(FailureMode::effect)
        .into_iter();
    effects.find(|effect| {
        let mut conditions = bearer.conditions.iter();
        conditions.any(|it| it.message.ends_with(*effect))
    })
}

fn of_policy(bearer: Bearer<'_>, condition: &Condition) -> Option<&'static str> {
    match (bearer.kind, condition.kind, condition.reason) {
        (_, ConditionType::Accepted, Reason::Conflicted) => Some(OTHER_POLICY),
        (_, ConditionType::Programmed, Reason::Overridden)
        | (_, ConditionType::Accepted, Reason::TargetNotFound) => Some(NO_EFFECT),
        ("AccessPolicy" | "RateLimitPolicy", ..) => {
            let mut others = bearer.conditions.iter();
            let fails = others.any(|it| it.is_problem() && it.message.contains(" get 500"));
            fails.then_some(PROTECTED)
        }
        ("BackendTLSPolicy" | "BackendTLSOverride", ConditionType::ResolvedRefs, _) => {
            match bearer.refusal() {
                None => Some(OTHER_AUTHORITIES),
                Some(Reason::Invalid | Reason::NoValidCACertificate) => Some(TO_TARGETS),
                Some(_) => None,
            }
        }
        // TLS is not for datagrams.
        ("BackendTLSPolicy" | "BackendTLSOverride", ..) if condition.message.contains(" UDP") => {
            Some(NO_EFFECT)
        }
        ("BackendTLSPolicy" | "BackendTLSOverride", ..) => Some(TO_TARGETS),
        ("RoutePolicy", ConditionType::ResolvedRefs, _) => Some("responses keep their own content"),
        ("TelemetryPolicy", ConditionType::ResolvedRefs, _) => Some("no spans are sent"),
        _ => None,
    }
}

impl Bearer<'_> {
    /// Returns why the object is not accepted, if it is not.
    fn refusal(&self) -> Option<Reason> {
        let mut conditions = self.conditions.iter();
        let refused = conditions.find(|it| it.kind == ConditionType::Accepted && it.is_problem());
        refused.map(|it| it.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::picker::UNANSWERED;

    fn fails(kind: ConditionType, reason: Reason, message: &str) -> Condition {
        Condition::fails(kind, reason, message, 1)
    }

    /// Returns the effect of the first of these conditions of an object.
    fn of_object(kind: &str, conditions: &[Condition]) -> Option<&'static str> {
        let bearer = Bearer {
            kind,
            is_listener: false,
            conditions,
        };
        of(bearer, &conditions[0])
    }

    #[test]
    fn effects_of_routes_are_those_of_their_protocol() {
        let unresolved = |message: &str| {
            fails(
                ConditionType::ResolvedRefs,
                Reason::BackendNotFound,
                message,
            )
        };
        let missing = unresolved("spec.rules[0].backendRefs[0]: Service default/ap does not exist");
        let refused = fails(ConditionType::Accepted, Reason::NoMatchingParent, "why");
        for (kind, of_missing, of_refused) in [
            (
                "HTTPRoute",
                "requests that need it get status 500",
                "its requests go to other rules, or get status 404",
            ),
            (
                "GRPCRoute",
                "calls that need it get gRPC status UNAVAILABLE",
                "its calls go to other rules, or get gRPC status UNIMPLEMENTED",
            ),
            (
                "TLSRoute",
                "connections for it are reset",
                "none of its connections is forwarded",
            ),
            (
                "UDPRoute",
                "datagrams for it are dropped",
                "none of its datagrams is forwarded",
            ),
        ] {
            assert_eq!(
                of_object(kind, std::slice::from_ref(&missing)),
                Some(of_missing)
            );
            assert_eq!(
                of_object(kind, std::slice::from_ref(&refused)),
                Some(of_refused)
            );
        }
        let mirror =
            "spec.rules[0].filters[0].requestMirror.backendRef: Service default/c does not exist";
        let both = format!("{mirror}; spec.rules[1].backendRefs[0]: Service default/d was deleted");
        for (message, effect) in [
            (mirror, "no copy is sent"),
            (both.as_str(), "requests that need it get status 500"),
        ] {
            assert_eq!(of_object("HTTPRoute", &[unresolved(message)]), Some(effect));
        }
    }

    #[test]
    fn listeners_are_served_with_the_references_that_can_be_used() {
        let secret = fails(
            ConditionType::ResolvedRefs,
            Reason::InvalidCertificateRef,
            "Secret default/tls does not exist",
        );
        let unprogrammed = fails(ConditionType::Programmed, Reason::Invalid, "no certificate");
        let of_listener = |conditions: &[Condition]| {
            let bearer = Bearer {
                kind: "Gateway",
                is_listener: true,
                conditions,
            };
            of(bearer, &conditions[0])
        };
        assert_eq!(
            of_listener(std::slice::from_ref(&secret)),
            Some(OTHERS_OF_LISTENER)
        );
        assert_eq!(of_listener(&[secret, unprogrammed]), Some(NO_LISTENER));
        let taken = fails(
            ConditionType::Programmed,
            Reason::PortUnavailable,
            "another process uses the port",
        );
        let effect = "clients cannot connect where the port is not bound";
        assert_eq!(of_listener(&[taken]), Some(effect));
        let waits = fails(ConditionType::Programmed, Reason::Pending, "no replica");
        assert_eq!(of_listener(&[waits]), None);
    }

    #[test]
    fn pods_of_a_gateway_with_invalid_parameters_stay() {
        let refused = || fails(ConditionType::Accepted, Reason::InvalidParameters, "why");
        let unprogrammed = fails(ConditionType::Programmed, Reason::Invalid, "why");
        for (kind, conditions) in [
            ("GatewayClass", vec![refused()]),
            ("Gateway", vec![refused()]),
            ("Gateway", vec![unprogrammed, refused()]),
        ] {
            assert_eq!(of_object(kind, &conditions), Some(PODS_STAY), "{kind}");
        }
    }

    #[test]
    fn without_its_picker_a_pool_does_what_its_failure_mode_says() {
        let lost = || {
            fails(
                ConditionType::ResolvedRefs,
                Reason::InvalidExtensionRef,
                "Service default/epp does not exist",
            )
        };
        for mode in [FailureMode::Open, FailureMode::Close] {
            let accepted = Condition::holds(ConditionType::Accepted, Reason::Accepted, 1);
            let accepted = accepted.with_message(format!("{UNANSWERED}: {}", mode.effect()));
            let conditions = [lost(), accepted];
            assert_eq!(of_object("InferencePool", &conditions), Some(mode.effect()));
        }
        assert_eq!(of_object("InferencePool", &[lost()]), None);
    }

    #[test]
    fn policies_that_fail_closed_refuse_requests() {
        let secret = || {
            fails(
                ConditionType::ResolvedRefs,
                Reason::InvalidSecretRef,
                "Secret default/users does not exist",
            )
        };
        let refused = fails(
            ConditionType::Accepted,
            Reason::Invalid,
            "Secret default/users does not exist; its requests get 500",
        );
        assert_eq!(of_object("AccessPolicy", &[secret()]), None);
        assert_eq!(
            of_object("AccessPolicy", &[secret(), refused.clone()]),
            Some(PROTECTED)
        );
        // The message says it.
        assert_eq!(of_object("AccessPolicy", &[refused]), None);
        let authority = || {
            fails(
                ConditionType::ResolvedRefs,
                Reason::InvalidCACertificateRef,
                "ConfigMap default/ca does not exist",
            )
        };
        let none = fails(
            ConditionType::Accepted,
            Reason::NoValidCACertificate,
            "no usable CA certificate",
        );
        assert_eq!(
            of_object("BackendTLSPolicy", &[authority()]),
            Some(OTHER_AUTHORITIES)
        );
        assert_eq!(
            of_object("BackendTLSPolicy", &[authority(), none]),
            Some(TO_TARGETS)
        );
    }
}
