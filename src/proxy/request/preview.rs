//! A request that no client sends, normalized and matched like one from the network, for `portcullis explain`. Must not
//! know ports in use or connections.

use std::net::Ipv4Addr;
use std::sync::Arc;

use http::{HeaderValue, request};

use super::admission::rule_of;
use super::headers;
use super::view::view;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::forwarding::{AddedHeaders, Forwarding};
use crate::proxy::client::host::{Host, LastHost};
use crate::proxy::client::listener_for;
use crate::proxy::error::Error;
use crate::table::{Listener, Port, RequestView, Rule};

/// The address of the client, which only rules that match on `X-Forwarded-For` look at.
const CLIENT: HeaderValue = HeaderValue::from_static("127.0.0.1");
/// The request id, which is random in requests from the network.
const REQUEST_ID: HeaderValue = HeaderValue::from_static("00000000000000000000000000000000");

/// A request as rules see it.
#[derive(Debug)]
pub struct Preview {
    parts: request::Parts,
    host: Host,
    added: AddedHeaders,
}

/// The connection on which a request would arrive.
#[derive(Clone, Copy, Debug)]
pub struct PreviewClient<'a> {
    /// The server name of the TLS handshake, in lower case and `None` for an IP address; `None` without TLS.
    pub tls: Option<Option<&'a str>>,
    /// Whether the client is a trusted proxy.
    pub trusted: bool,
}

/// The response to a request that matches no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status of HTTP.
    pub status: u16,
    /// The text of the response.
    pub message: &'static str,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            status: error.status().as_u16(),
            message: error.message(),
        }
    }
}

impl Preview {
    /// Normalizes a request whose target is a path and that has a `Host`.
    ///
    /// # Errors
    /// The response to a request that the proxy refuses before it looks for a rule.
    pub fn new(mut parts: request::Parts, client: PreviewClient<'_>) -> Result<Self, Refusal> {
        // The limit of headers is a setting of the process.
        let normalized = headers::normalize(&mut parts, &mut LastHost::default(), usize::MAX)?;
        let proto = if client.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let forwarding = Forwarding {
            address: CLIENT,
            proto: HeaderValue::from_static(proto),
            certificate: None,
        };
        let origin = Origin {
            is_trusted: client.trusted,
            ..Origin::direct(Ipv4Addr::LOCALHOST.into())
        };
        let claims = (&origin, normalized.has_forwarding);
        let host_header = normalized.host_header.as_ref();
        let id = || REQUEST_ID;
        let added = forwarding.sanitize(&mut parts.headers, host_header, claims, id);
        Ok(Self {
            parts,
            host: normalized.host,
            added,
        })
    }

    /// Returns the parts that conditions look at.
    pub fn view(&self) -> RequestView<'_> {
        view(&self.parts, &self.host, &self.added)
    }

    /// Returns the listener that serves the request.
    ///
    /// # Errors
    /// The response if none does on this connection.
    pub fn listener<'a>(
        &self,
        port: &'a Port,
        client: PreviewClient<'_>,
    ) -> Result<&'a Arc<Listener>, Refusal> {
        Ok(listener_for(port, self.host.as_str(), client.tls)?)
    }

    /// Returns the rule of a listener for the request.
    ///
    /// # Errors
    /// The response if no rule matches.
    pub fn rule<'a>(&self, listener: &'a Listener) -> Result<&'a Arc<Rule>, Refusal> {
        Ok(rule_of(listener, &self.view())?)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const PLAIN: PreviewClient<'static> = PreviewClient {
        tls: None,
        trusted: false,
    };

    fn parts(path: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::get(path).header("host", "A.com.:80");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn rules_see_what_the_proxy_forwards() {
        let claims = [
            ("x-forwarded-proto", "https"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
        ];
        let request = Preview::new(parts("/a//b?c", &claims), PLAIN).unwrap();
        let view = request.view();
        assert_eq!(
            (view.host, view.path, view.query),
            ("a.com", "/a/b", Some("c"))
        );
        assert!(!view.headers.contains_key("x-hop"));
        let proto = |request: &Preview| {
            let added = request.view().added.iter();
            let mut protos = added.filter(|(name, _)| name == "x-forwarded-proto");
            protos.next().unwrap().1.clone()
        };
        assert_eq!(proto(&request), "http");
        let trusted = PreviewClient {
            trusted: true,
            ..PLAIN
        };
        let request = Preview::new(parts("/", &claims), trusted).unwrap();
        assert_eq!(proto(&request), "https");
    }

    #[test]
    fn refuses_what_the_proxy_refuses() {
        for (path, headers, status) in [
            ("/a/../b", &[][..], 400),
            ("/", &[("host", "b.com")], 400),
            ("/", &[("expect", "a-miracle")], 417),
        ] {
            let refusal = Preview::new(parts(path, headers), PLAIN).unwrap_err();
            assert_eq!(refusal.status, status, "{path} {headers:?}");
        }
    }
}
