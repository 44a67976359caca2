//! Who sends requests to backends: a Gateway through a listener, for a route.

use std::sync::Arc;

use crate::ir::{Certificate, ListenerKey, ObjectRef, RouteKind};

/// The sender of requests to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct Consumer {
    /// The Gateway.
    pub(in crate::translate) gateway: ObjectRef,
    /// The listener that the requests come through, of the Gateway or of a ListenerSet.
    pub(in crate::translate) listener: ListenerKey,
    /// The client certificate of the Gateway, or why it cannot be used.
    pub(in crate::translate) client_certificate: Option<ClientCertificate>,
    /// Whether the listener forwards TLS as it is, so that nothing secures its connections to backends.
    pub(in crate::translate) passes_tls_through: bool,
    /// Whether the Gateway permits the priorities of routes.
    pub(in crate::translate) permits_priorities: bool,
}

/// A client certificate, or why there is none.
pub(in crate::translate) type ClientCertificate = Result<Arc<Certificate>, Arc<str>>;

/// The requests for which a reference to a backend is resolved.
#[derive(Clone, Copy)]
pub(in crate::translate) struct Requests<'a> {
    pub(in crate::translate) route: &'a ObjectRef,
    /// The name of the rule.
    pub(in crate::translate) rule: Option<&'a str>,
    /// The kind of the route that sends them, or of route that would send such requests.
    pub(in crate::translate) kind: RouteKind,
    /// `None` if no listener can serve them.
    pub(in crate::translate) consumer: Option<&'a Consumer>,
    /// For requests through all listeners of the Gateway, instead of that of the consumer: says whether it has a ListenerSet.
    pub(in crate::translate) of_all_listeners: Option<&'a dyn Fn(&ObjectRef) -> bool>,
}
