//! What the objects of each kind have to do with the protection of requests. Objects of two kinds arrive in any order, so that
//! this decides which ones wait for which. Must not know what has arrived.

use super::object::{Kind, KindName};

/// What the objects of a kind have to do with the protection of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// They protect requests, or say what others decide by.
    Protects,
    /// They take requests: they wait for those that protect and are older. So does their end, since others may take these
    /// requests then.
    Takes,
    /// They can make something served: they wait for those that protect and are older.
    Waits,
    /// They make nothing served that was not.
    Neither,
}

/// Returns what the objects of a kind have to do with the protection of requests.
pub fn protection(kind: &Kind) -> Protection {
    match kind.name {
        // It says which clients and claims pass.
        KindName::AccessPolicy => Protection::Protects,
        // It says which address a client has, by which the others decide.
        KindName::ClientPolicy => Protection::Protects,
        // It says how many requests pass.
        KindName::RateLimitPolicy => Protection::Protects,
        // It says which backend gets no plain text.
        KindName::BackendTlsPolicy => Protection::Protects,
        // It says the same for some senders.
        KindName::BackendTlsOverride => Protection::Protects,

        // Its Gateways are served.
        KindName::GatewayClass => Protection::Takes,
        // Its listeners are served, with the routes that name it.
        KindName::Gateway => Protection::Takes,
        // The same.
        KindName::ListenerSet => Protection::Takes,
        // Its requests are served.
        KindName::HttpRoute => Protection::Takes,
        // The same.
        KindName::GrpcRoute => Protection::Takes,
        // Its connections are served.
        KindName::TlsRoute => Protection::Takes,
        // The same.
        KindName::TcpRoute => Protection::Takes,
        // Its datagrams are served.
        KindName::UdpRoute => Protection::Takes,
        // Requests go to it that were refused without it.
        KindName::Service => Protection::Waits,
        // The same.
        KindName::ServiceImport => Protection::Waits,
        // The same.
        KindName::XBackend => Protection::Waits,
        // The same, and they go to the Services of its pods.
        KindName::ReleaseBackend => Protection::Waits,
        // The same, and its picker gets them, too.
        KindName::InferencePool => Protection::Waits,
        // Requests of rules pass that were refused without it.
        KindName::RouteFilter => Protection::Waits,
        // What refers to another namespace is used, such as a backend or a certificate.
        KindName::ReferenceGrant => Protection::Waits,
        // Gateways are served that are not valid without it.
        KindName::GatewayParameters => Protection::Takes,
        // Its routes and ListenerSets attach where a selector accepts its labels.
        KindName::Namespace => Protection::Takes,
        // Its backends are asked for pages of errors, in plain text unless a policy says otherwise.
        KindName::RoutePolicy => Protection::Waits,
        // Its backend gets spans in the same way.
        KindName::TelemetryPolicy => Protection::Waits,
        // A listener is served that lacked its certificate.
        KindName::Secret => Protection::Waits,
        // A listener is served that lacked the authorities of its clients.
        KindName::ConfigMap => Protection::Waits,
        // Requests reach a Service that had no endpoints.
        KindName::EndpointSlice => Protection::Waits,
        // Requests reach a release of a ReleaseBackend that had none.
        KindName::Pod => Protection::Waits,

        // Requests are served without it, and it sends none.
        KindName::BackendTrafficPolicy => Protection::Neither,
        // The same.
        KindName::BackendPolicy => Protection::Neither,
        // No watch has it: Portcullis itself creates it.
        KindName::KeySet => Protection::Neither,
    }
}

/// Reports whether objects of a kind protect requests, or say what others decide by.
pub fn protects(kind: &Kind) -> bool {
    protection(kind) == Protection::Protects
}

/// Reports whether objects of a kind wait for those that protect and are older, when they are new.
pub fn waits(kind: &Kind) -> bool {
    matches!(protection(kind), Protection::Takes | Protection::Waits)
}

/// Returns a kind of policies that protect requests and that a text names.
pub fn protecting_kind(text: &str) -> Option<&'static str> {
    let protecting = Kind::all().iter().filter(|kind| protects(kind));
    let mut names = protecting.map(|kind| kind.kind);
    names.find(|name| text.contains(name))
}
