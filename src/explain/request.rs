//! The request to explain, from its text on the command line or in a query. Must not know the configuration.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, request};

use crate::ir::grpc::is_grpc;
use crate::ir::{PortProtocol, RouteKind};
use crate::proxy::preview::PreviewClient;

/// Maximum number of headers: that of a request in the default settings of a proxy.
pub const MAX_HEADERS: usize = 100;

/// Maximum length of a host, in bytes: that of a proxy.
const MAX_HOST: usize = 255;

/// A header.
#[derive(Clone, Debug)]
pub struct Header(HeaderName, HeaderValue);

/// The request to explain.
#[derive(Clone, Debug)]
pub struct ExplainedRequest {
    method: Method,
    /// The protocol that a port for this request must have.
    pub(super) protocol: PortProtocol,
    url: Uri,
    /// Host of the URL in lower case, without the trailing dot of an absolute name.
    pub(super) host: String,
    /// Port in the URL.
    pub(super) port: Option<u16>,
    headers: HeaderMap,
    is_trusted: bool,
}

impl FromStr for ExplainedRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (method, url) = match text.trim().split_once(char::is_whitespace) {
            Some((method, url)) => (method, url.trim()),
            None => ("GET", text.trim()),
        };
        let method: Method = method
            .parse()
            .map_err(|_| format!("`{method}` is not a method"))?;
        let url: Uri = url
            .parse()
            .map_err(|error| format!("`{url}` is not a URL: {error}"))?;
        let protocol = url.scheme_str().and_then(protocol);
        let protocol = protocol.ok_or_else(|| {
            format!("`{url}` must begin with http://, https://, tls://, tcp:// or udp://")
        })?;
        let authority = url.authority().map_or("", |it| it.as_str());
        let host = url.host().unwrap_or_default();
        if host.is_empty() || authority.contains('@') {
            return Err(format!(
                "`{url}` must have a host, without user information"
            ));
        }
        if host.len() > MAX_HOST {
            return Err(format!("the host is longer than {MAX_HOST} bytes"));
        }
        if authority != host && url.port_u16().is_none() {
            return Err(format!(
                "the port of `{url}` is not a number from 1 to 65535"
            ));
        }
        let host = host.to_ascii_lowercase();
        Ok(Self {
            method,
            protocol,
            host: host.strip_suffix('.').unwrap_or(&host).to_owned(),
            port: url.port_u16(),
            url,
            headers: HeaderMap::new(),
            is_trusted: false,
        })
    }
}

/// Returns the protocol of the ports that a scheme is for.
fn protocol(scheme: &str) -> Option<PortProtocol> {
    match scheme {
        "http" => Some(PortProtocol::Http),
        "https" | "tls" => Some(PortProtocol::Tls),
        "tcp" => Some(PortProtocol::Tcp),
        "udp" => Some(PortProtocol::Udp),
        _ => None,
    }
}

impl fmt::Display for ExplainedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            PortProtocol::Tcp | PortProtocol::Udp => self.url.fmt(f),
            PortProtocol::Http | PortProtocol::Tls => write!(f, "{} {}", self.method, self.url),
        }
    }
}

impl ExplainedRequest {
    /// Adds headers. A Host header overrides the host of the URL, as in a request, but not the server name of TLS.
    ///
    /// # Errors
    /// More headers than [`MAX_HEADERS`].
    pub fn add_headers(&mut self, headers: &[Header]) -> Result<(), String> {
        if self.headers.len() + headers.len() > MAX_HEADERS {
            return Err(format!("more than {MAX_HEADERS} headers"));
        }
        for Header(name, value) in headers {
            self.headers.append(name.clone(), value.clone());
        }
        Ok(())
    }

    /// Makes the client a trusted proxy, whose `X-Forwarded-*` headers are kept.
    pub fn trust(&mut self) {
        self.is_trusted = true;
    }

    /// `http`, `https`, `tls`, `tcp` or `udp`.
    pub(super) fn scheme(&self) -> &str {
        self.url.scheme_str().unwrap_or_default()
    }

    /// Reports whether a route of this kind may take the request.
    pub(super) fn may_be_for(&self, kind: RouteKind) -> bool {
        let protocols: &[PortProtocol] = match kind {
            RouteKind::Http | RouteKind::Grpc => &[PortProtocol::Http, PortProtocol::Tls],
            RouteKind::Tls => &[PortProtocol::Tls],
            RouteKind::Tcp => &[PortProtocol::Tcp],
            RouteKind::Udp => &[PortProtocol::Udp],
        };
        protocols.contains(&self.protocol)
    }

    /// The port in the URL, or else that of the scheme.
    pub(super) fn number(&self) -> u16 {
        let default = match self.protocol {
            PortProtocol::Tls => 443,
            PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => 80,
        };
        self.port.unwrap_or(default)
    }

    /// The server name that a client would send: the URL's host, unless it is an IP address.
    pub(super) fn sni(&self) -> Option<&str> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_err().then_some(&*self.host)
    }

    /// The connection that a client would open.
    pub(super) fn client(&self) -> PreviewClient<'_> {
        PreviewClient {
            tls: (self.protocol == PortProtocol::Tls).then(|| self.sni()),
            trusted: self.is_trusted,
            port: 0,
            settings: None,
        }
    }

    /// The request as a client would send it: the path as target, and a `Host` with the port if the URL has one. A gRPC
    /// call is in HTTP/2, and another request in HTTP/1.1.
    ///
    /// # Errors
    /// A URL whose parts cannot be those of a request.
    pub(super) fn parts(&self) -> Result<request::Parts, http::Error> {
        let target = match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        };
        let version = match is_grpc(&self.headers) {
            true => Version::HTTP_2,
            false => Version::HTTP_11,
        };
        let request = Request::builder()
            .method(self.method.clone())
            .version(version)
            .uri(target);
        let (mut parts, ()) = request.body(())?.into_parts();
        parts.headers.clone_from(&self.headers);
        if !self.headers.contains_key(HOST) {
            let host = self.url.host().unwrap_or_default();
            let host = match self.port {
                Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
                None => HeaderValue::try_from(host),
            };
            parts.headers.insert(HOST, host?);
        }
        Ok(parts)
    }
}

impl FromStr for Header {
    type Err = String;

    /// Parses `name: value`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` has no colon; write 'name: value'"))?;
        let name = name
            .trim()
            .parse()
            .map_err(|_| format!("`{name}` is not a header name"))?;
        let value = value.trim().parse().map_err(|_| {
            format!("the value of `{name}` has characters that are not valid in a header")
        })?;
        Ok(Self(name, value))
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, value) = self;
        write!(f, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_method_and_url() {
        let request: ExplainedRequest = "POST https://Demo.Example.com:8443/a?b=c".parse().unwrap();
        assert_eq!(
            request.to_string(),
            "POST https://Demo.Example.com:8443/a?b=c"
        );
        assert_eq!(
            (request.host.as_str(), request.port),
            ("demo.example.com", Some(8443))
        );
        let parts = request.parts().unwrap();
        assert_eq!(parts.uri, "/a?b=c");
        assert_eq!(parts.headers[HOST], "Demo.Example.com:8443");
        let request: ExplainedRequest = "http://localhost?a".parse().unwrap();
        let parts = request.parts().unwrap();
        assert_eq!(
            (&parts.method, parts.version),
            (&Method::GET, Version::HTTP_11)
        );
        assert_eq!(parts.uri, "/?a");
        assert_eq!(parts.headers[HOST], "localhost");
    }

    #[test]
    fn rejects_malformed_requests() {
        for text in [
            "",
            "GET /path",
            "GET ftp://host/",
            "G@T http://host/",
            "GET http://a b/",
            "http://a:port/",
            "http://a:65536/",
            "http://user@a/",
            "http://:80/",
        ] {
            assert!(text.parse::<ExplainedRequest>().is_err(), "{text}");
        }
        let long = format!("tls://{}/", "a".repeat(MAX_HOST + 1));
        assert!(long.parse::<ExplainedRequest>().is_err());
        for text in ["no colon", "na me: value", "name: a\nb"] {
            assert!(text.parse::<Header>().is_err(), "{text}");
        }
        let mut request: ExplainedRequest = "http://a/".parse().unwrap();
        let headers = vec!["a: b".parse().unwrap(); MAX_HEADERS];
        assert!(request.add_headers(&headers).is_ok());
        assert!(request.add_headers(&headers[..1]).is_err());
    }

    #[test]
    fn host_header_overrides_host_but_not_sni() {
        let mut request: ExplainedRequest = "https://One.example.com./".parse().unwrap();
        let host = "Host: two.example.com:8443".parse().unwrap();
        request.add_headers(&[host]).unwrap();
        let parts = request.parts().unwrap();
        assert_eq!(parts.headers[HOST], "two.example.com:8443");
        assert_eq!(request.client().tls, Some(Some("one.example.com")));
        let address: ExplainedRequest = "https://[::1]:8443/".parse().unwrap();
        assert_eq!(address.client().tls, Some(None));
        let plain: ExplainedRequest = "http://a/".parse().unwrap();
        assert_eq!(plain.client().tls, None);
    }

    #[test]
    fn grpc_calls_are_in_http2() {
        let mut request: ExplainedRequest = "POST http://a/b.C/D".parse().unwrap();
        let grpc = "content-type: application/grpc".parse().unwrap();
        request.add_headers(&[grpc]).unwrap();
        assert_eq!(request.parts().unwrap().version, Version::HTTP_2);
    }
}
