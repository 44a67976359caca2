//! Who chooses the endpoint of a request to a backend: the proxy, or a server that it asks, an endpoint picker. Must not know
//! how the server is asked.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use serde::Serialize;

use super::object_ref::ObjectRef;
use super::protected_headers::{is_spelled_like, remove};
use super::target::BackendTarget;

/// The header with which a picker says which endpoint a request gets. Names of others that it sets begin like it.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// When the failure mode of a picker has an effect.
pub const UNANSWERED: &str = "without an answer of the endpoint picker";

/// Reports whether an object is an InferencePool, whose endpoints a picker may choose.
pub fn is_pool(object: &ObjectRef) -> bool {
    (&*object.group, &*object.kind) == ("inference.networking.k8s.io", "InferencePool")
}

/// Removes, in every spelling, the headers or trailers with which only a picker says which endpoint a request gets.
pub fn remove_claims(headers: &mut HeaderMap) {
    remove(headers, is_of_picker);
}

fn is_of_picker(name: &HeaderName) -> bool {
    let start = name.as_str().get(..DESTINATION.len());
    start.is_some_and(|start| is_spelled_like(start, DESTINATION))
}

/// Who chooses the endpoint of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Choice {
    /// The proxy.
    #[default]
    Balance,
    /// An endpoint picker.
    Picker(Arc<PickerRef>),
}

impl Choice {
    /// Returns the picker, if there is one.
    pub fn picker(&self) -> Option<&Arc<PickerRef>> {
        match self {
            Self::Balance => None,
            Self::Picker(picker) => Some(picker),
        }
    }

    pub(super) fn is_balance(&self) -> bool {
        *self == Self::Balance
    }
}

/// An endpoint picker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PickerRef {
    /// The server: a port of a Service. As a backend it speaks HTTP/2, its endpoints are ready, and its TLS settings say
    /// whether it is asked in plain text, in TLS without verification, or verified by a policy. Invalid while there is no
    /// such port: it cannot be reached.
    pub server: BackendTarget,
    /// What happens to requests while the picker cannot be reached.
    pub failure_mode: FailureMode,
    /// How long it may take.
    pub timeouts: PickerTimeouts,
}

impl PickerRef {
    /// Reports whether requests get 503 without the picker.
    pub fn is_needed(&self) -> bool {
        self.failure_mode == FailureMode::Close
    }
}

/// What happens to requests for which no picker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FailureMode {
    /// The proxy balances them over the ready endpoints.
    Open,
    /// They get 503.
    Close,
}

impl FailureMode {
    /// Returns what happens.
    pub fn effect(self) -> &'static str {
        match self {
            Self::Open => "requests are balanced over the ready endpoints (FailOpen)",
            Self::Close => "requests get 503 (FailClose)",
        }
    }
}

/// Limits of the time for a picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PickerTimeouts {
    /// Time to connect, TLS included, unless the policy of the server says it.
    pub connect: Duration,
    /// Time in which the picker answers what it was sent, and reads what waits for it, unless the policy of the server says
    /// it. Pickers queue requests until a model server is free.
    pub answer: Duration,
}

impl Default for PickerTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            // What the Inference Extension gives a request to a pool (config/manifests/gateway/gke/gcp-backend-policy.yaml).
            answer: Duration::from_secs(300),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn claims_of_clients_are_removed_in_any_spelling() {
        let names = [
            "x-gateway-destination-endpoint",
            "x-gateway-destination-endpoint-subset",
            "x_gateway_destination_endpoint",
            "x.gateway.destination.endpoint",
            "x-gateway-destination_endpoint-served",
            "x-gateway-destination",
            "x-gateway-destination-endpoin",
        ];
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        remove_claims(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["x-gateway-destination", "x-gateway-destination-endpoin"]
        );
    }
}
