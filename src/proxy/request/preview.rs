//! A request that no client sends, normalized and matched like one from the network, for `portcullis explain`. Must not
//! know ports in use or connections.

use std::net::Ipv4Addr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, request};

use super::admission::find_rule;
use super::framing::is_multiplexed;
use super::headers;
use super::path::{self, PathState};
use super::policies::is_too_large;
use super::view::view;
use crate::filter::answer_preflight;
use crate::filter::error_page::{self, Accept};
use crate::ir::ObjectRef;
use crate::ir::client::{AddressSource, ConnectionSettings};
use crate::ir::cors::is_preflight;
use crate::ir::error_page::{ErrorPage, PageContent, Responder};
use crate::ir::grpc::{is_call, is_grpc};
use crate::ir::policy::Enforced;
use crate::ir::request_path::RequestPath;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::forwarding::{AddedHeaders, Forwarding};
use crate::proxy::client::forwarding_rules::ForwardingRules;
use crate::proxy::client::host::{Host, LastHost};
use crate::proxy::client::{listener_for, spelling, underscores_of};
use crate::proxy::error::Error;
use crate::proxy::grpc::GrpcStatus;
use crate::proxy::sign_in_fault::SignInFault;
use crate::table::{Listener, Port, RequestView, Rule};
use crate::upstream::SendError;

/// The address of the client, which only rules that match on `X-Forwarded-For` look at.
const CLIENT: HeaderValue = HeaderValue::from_static("127.0.0.1");
/// The request id, which is random in requests from the network.
const REQUEST_ID: HeaderValue = HeaderValue::from_static("00000000000000000000000000000000");

/// A request as rules see it.
#[derive(Debug)]
pub struct Preview {
    parts: request::Parts,
    is_call: bool,
    is_trusted: bool,
    host: Host,
    upgrade: Option<HeaderValue>,
    added: AddedHeaders,
    path: RequestPath,
    state: PathState,
}

/// The connection on which a request would arrive.
#[derive(Clone, Copy, Debug)]
pub struct PreviewClient<'a> {
    /// The server name of the TLS handshake, in lower case and `None` for an IP address; `None` without TLS.
    pub tls: Option<Option<&'a str>>,
    /// Whether the client is a trusted proxy.
    pub trusted: bool,
    /// The port that its listener declares.
    pub port: u16,
    /// What policies say of its connection.
    pub settings: Option<&'a ConnectionSettings>,
}

/// Why a rule does not forward a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A policy is broken.
    Policy,
    /// The rule, its selected backendRef, or the authorization server of a filter is invalid.
    Rule,
    /// The rule has no backend.
    NoBackend,
    /// The backend has no endpoint.
    NoEndpoint,
    /// The picker of the backend cannot be reached.
    Picker,
    /// The authorization server has no endpoint.
    AuthorizationServer,
    /// The request declares a larger body than a policy or a filter permits.
    Body,
    /// The cookies of a sign-in are for another domain than the host.
    CookieDomain,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Policy => Self::BrokenPolicy,
            Fault::Rule => Self::InvalidRule,
            Fault::NoBackend => Self::NoBackend,
            Fault::NoEndpoint => SendError::NO_ENDPOINT.into(),
            Fault::Picker => Self::PickerUnavailable,
            Fault::AuthorizationServer => Self::AuthorizationUnavailable,
            Fault::Body => Self::BodyTooLarge,
            Fault::CookieDomain => Self::SignIn(SignInFault::OtherDomain),
        }
    }
}

/// A response of the proxy itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status of HTTP.
    pub status: u16,
    /// Name of the gRPC status, if the request is a call.
    pub grpc_status: Option<&'static str>,
    /// The text of the response.
    pub message: &'static str,
}

impl Refusal {
    fn new(error: Error, is_call: bool) -> Self {
        let status = match is_call {
            true => StatusCode::OK,
            false => error.status(),
        };
        Self {
            status: status.as_u16(),
            grpc_status: is_call.then(|| error.grpc_status().name()),
            message: error.message(),
        }
    }
}

/// The response of a filter, as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterResponse {
    /// Status of HTTP.
    pub status: StatusCode,
    /// Whether it has a body, which no error page replaces.
    pub has_body: bool,
}

/// The status of a response that is not a backend's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseStatus {
    /// Status of HTTP.
    pub status: u16,
    /// Name of the gRPC status, if the response has one.
    pub grpc_status: Option<&'static str>,
    /// The server that is asked for a page, whose status replaces this one if it gives the page.
    pub page_server: Option<ObjectRef>,
}

impl Preview {
    /// Normalizes the headers of a request whose target is a path and that has a `Host`.
    ///
    /// # Errors
    /// The response to a request that the proxy refuses before it looks for a listener.
    pub fn new(mut parts: request::Parts, client: PreviewClient<'_>) -> Result<Self, Refusal> {
        let is_call = is_call(&parts.headers);
        let underscores = underscores_of(client.settings);
        // Without a policy, the limit of headers is a setting of the process. Streams have no `Host`, which the parts have.
        let max_headers = client.settings.and_then(|settings| settings.max_headers);
        let max_headers = max_headers.unwrap_or(usize::MAX);
        let max_headers = max_headers.saturating_add(is_multiplexed(parts.version).into());
        let normalized = spelling::apply(underscores, &mut parts.headers)
            .and_then(|()| headers::normalize(&mut parts, &mut LastHost::default(), max_headers))
            .map_err(|error| Refusal::new(error, is_call))?;
        let proto = if client.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let forwarding = Forwarding {
            address: CLIENT,
            proto: HeaderValue::from_static(proto),
            certificate: None,
            rules: client
                .settings
                .and_then(|settings| ForwardingRules::new(settings, client.port))
                .map(Box::new),
        };
        let origin = Origin {
            is_trusted: client.trusted,
            ..Origin::direct(Ipv4Addr::LOCALHOST.into())
        };
        let claims = (&origin, normalized.has_forwarding);
        let id = || REQUEST_ID;
        let added = forwarding.sanitize(&mut parts.headers, normalized.host_header, claims, id);
        Ok(Self {
            parts,
            is_call,
            is_trusted: client.trusted,
            host: normalized.host,
            upgrade: normalized.upgrade,
            added,
            path: RequestPath::default(),
            state: PathState::default(),
        })
    }

    /// Returns the parts that conditions look at, once the path is normalized.
    pub fn view(&self) -> RequestView<'_> {
        let target = (&self.host, self.upgrade.as_ref());
        view((&self.parts, &self.path), target, &self.added)
    }

    /// Returns the path for backends, unless a filter rewrites it.
    pub fn forwarded_path(&self) -> &str {
        self.parts.uri.path()
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
        let found = listener_for(port, self.host.as_str(), client.tls);
        found.map_err(|error| Refusal::new(error, self.is_call))
    }

    /// Normalizes the path as the listener of the request says, if one serves it, and removes the header with the address of the
    /// client, which only trusted proxies may send.
    ///
    /// # Errors
    /// The response to a request that the proxy refuses or redirects because of its path.
    pub fn normalize_for(&mut self, listener: Option<&Listener>) -> Result<(), Refusal> {
        let clients = listener.and_then(|listener| listener.ir.clients.as_ref());
        let settings = clients.and_then(|clients| clients.path.as_ref());
        let address = clients.and_then(|clients| clients.address.as_ref());
        if let Some(Enforced::Valid(address)) = address
            && let AddressSource::Header { name, .. } = &address.source
            && !self.is_trusted
        {
            self.parts.headers.remove(name);
        }
        let normalized = path::normalize(&mut self.parts, settings);
        let refused = |error| Err(Refusal::new(error, self.is_call));
        match normalized {
            Ok((_, state)) if state.is_decoded && self.is_call => {
                refused(Error::BadRequest("the path has an escaped slash"))
            }
            Ok((_, state)) if state.is_decoded => refused(Error::EscapedSlash),
            Ok((path, state)) => {
                self.path = path;
                self.state = state;
                Ok(())
            }
            Err(error) => refused(error),
        }
    }

    /// Returns the rule of a listener for the request, and whether its backends get the path that decides, in place of the
    /// client's spelling of it.
    ///
    /// # Errors
    /// The response if no rule matches.
    pub fn rule<'a>(&self, listener: &'a Listener) -> Result<(&'a Arc<Rule>, bool), Refusal> {
        let found = find_rule(listener, (&self.view(), self.state), self.forwarded_path());
        found.map_err(|error| Refusal::new(error, self.is_call))
    }

    /// Returns the response to the request if its rule cannot forward it.
    pub fn refusal(&self, fault: Fault) -> Refusal {
        Refusal::new(fault.into(), self.is_call)
    }

    /// Returns what the client gets for a refusal: the status of the page of a policy, if one replaces the response.
    pub fn refused(&self, refusal: Refusal, pages: &[ErrorPage]) -> ResponseStatus {
        let Ok(status) = StatusCode::from_u16(refusal.status) else {
            return ResponseStatus {
                status: refusal.status,
                grpc_status: refusal.grpc_status,
                page_server: None,
            };
        };
        ResponseStatus {
            grpc_status: refusal.grpc_status,
            ..self.with_page(status, pages)
        }
    }

    /// Returns what the client gets for the response of a filter: an error as the status of gRPC for its calls, and otherwise with the
    /// status of the page of a policy, if one replaces the response.
    pub fn response(&self, response: FilterResponse, pages: &[ErrorPage]) -> ResponseStatus {
        let FilterResponse { status, has_body } = response;
        let is_error = status.is_client_error() || status.is_server_error();
        let (status, grpc_status) = match is_error && is_grpc(&self.parts.headers) {
            true => (StatusCode::OK, Some(GrpcStatus::from(status).name())),
            false if has_body => (status, None),
            false => return self.with_page(status, pages),
        };
        ResponseStatus {
            status: status.as_u16(),
            grpc_status,
            page_server: None,
        }
    }

    /// Calls of gRPC get no pages.
    fn with_page(&self, status: StatusCode, pages: &[ErrorPage]) -> ResponseStatus {
        let response = (status, Responder::Gateway);
        let pages: &[ErrorPage] = if self.is_call { &[] } else { pages };
        let page_server = match error_page::find(pages, response) {
            Some(ErrorPage {
                content: PageContent::Server(server),
                keeps_status: false,
                ..
            }) => Some(server.backend.clone()),
            _ => None,
        };
        let accept = Accept::of(&self.parts.headers);
        let page = error_page::replace(pages, response, &accept, &mut HeaderMap::new());
        ResponseStatus {
            status: page.map_or(status, |(status, _)| status).as_u16(),
            grpc_status: None,
            page_server,
        }
    }

    /// Reports whether the request declares a body of more than `max` bytes.
    pub fn declares_more_than(&self, max: Option<u64>) -> bool {
        is_too_large(&self.view(), max)
    }

    /// Reports whether the request is a preflight request.
    pub fn is_preflight(&self) -> bool {
        is_preflight(&self.parts.method, &self.parts.headers)
    }

    /// Reports whether it is a preflight request that a filter of the rule answers without credentials.
    pub fn is_answered_by(&self, rule: &Rule) -> bool {
        self.is_preflight() && answer_preflight(&rule.ir.filters)
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Version};

    use super::*;

    const PLAIN: PreviewClient<'static> = PreviewClient {
        tls: None,
        trusted: false,
        port: 80,
        settings: None,
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
        let mut request = Preview::new(parts("/a//b?c", &claims), PLAIN).unwrap();
        request.normalize_for(None).unwrap();
        let view = request.view();
        assert_eq!(
            (view.host, view.path.as_str(), view.query),
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
            let refusal = |parts| {
                let preview = Preview::new(parts, PLAIN);
                preview
                    .and_then(|mut it| it.normalize_for(None))
                    .unwrap_err()
            };
            let call = [headers, &[("content-type", "application/grpc-web")]].concat();
            let of_call = refusal(parts(path, &call));
            let refusal = refusal(parts(path, headers));
            assert_eq!(refusal.status, status, "{path} {headers:?}");
            assert_eq!(refusal.grpc_status, None);
            let expected = (200, Some("INTERNAL"));
            assert_eq!((of_call.status, of_call.grpc_status), expected, "{path}");
        }
    }

    #[test]
    fn policies_limit_the_number_of_headers() {
        let settings = ConnectionSettings {
            max_headers: Some(2),
            ..ConnectionSettings::default()
        };
        let client = PreviewClient {
            settings: Some(&settings),
            ..PLAIN
        };
        let refused = |version, headers: &[(&str, &str)]| {
            let mut request = parts("/", headers);
            request.version = version;
            let preview = Preview::new(request, client);
            preview.err().map(|refusal| refusal.status)
        };
        // With `Host`, which is a header of HTTP/1 alone.
        let two = [("x-a", "1"), ("x-b", "2")];
        assert_eq!(refused(Version::HTTP_11, &two[..1]), None);
        assert_eq!(refused(Version::HTTP_11, &two[..]), Some(431));
        assert_eq!(refused(Version::HTTP_2, &two[..]), None);
    }
}
