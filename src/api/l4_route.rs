//! TLSRoute, TCPRoute and UDPRoute, with the fields that Portcullis reads. Their one rule has backends and nothing else;
//! only TLSRoutes have hostnames.

use serde::{Deserialize, Serialize};

use super::filter::HttpFilter;
use super::meta::ObjectMeta;
use super::reference::BackendRef;
use super::route::{RouteResource, RouteRule, RouteSpec};

/// Declares a kind of route with rules of type [`L4Rule`].
macro_rules! l4_route {
    ($(#[$doc:meta])+ $type:ident) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
        pub struct $type {
            /// Metadata.
            pub metadata: ObjectMeta,
            /// Spec.
            #[serde(default)]
            pub spec: RouteSpec<L4Rule>,
        }

        impl RouteResource for $type {
            type Rule = L4Rule;

            fn spec(&self) -> &RouteSpec<L4Rule> {
                &self.spec
            }
        }
    };
}

l4_route! {
    /// A TLSRoute: connections by the server name of their ClientHello.
    TlsRoute
}
l4_route! {
    /// A TCPRoute: all connections of a listener.
    TcpRoute
}
l4_route! {
    /// A UDPRoute: all datagrams of a listener.
    UdpRoute
}

/// The rule. The schema permits one per route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct L4Rule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Backends, by weight. They have no filters.
    pub backend_refs: Vec<BackendRef<HttpFilter>>,
}

impl RouteRule for L4Rule {
    fn references(&self) -> (&[HttpFilter], &[BackendRef<HttpFilter>]) {
        (&[], &self.backend_refs)
    }
}
