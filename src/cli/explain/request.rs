//! The request argument of `explain`, parsed from the command line.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::ir::PortProtocol;
use crate::proxy::target;
use crate::table::RequestView;

/// A header.
pub(super) type Header = (HeaderName, HeaderValue);

/// The request to explain.
#[derive(Clone, Debug)]
pub(super) struct ExplainedRequest {
    method: Method,
    /// The protocol that a port for this request must have.
    pub(super) protocol: PortProtocol,
    url: Uri,
    /// Host in lower case; a Host header overrides the host of the URL.
    pub(super) host: String,
    /// Port in the URL.
    pub(super) port: Option<u16>,
    headers: HeaderMap,
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
        let url = normalized(url)?;
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        Ok(Self {
            method,
            protocol,
            host,
            port: url.port_u16(),
            url,
            headers: HeaderMap::new(),
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

/// Returns the URL with the normalised path, as it is matched and forwarded.
fn normalized(url: Uri) -> Result<Uri, String> {
    let path = target::normalize(url.path())
        .map_err(|reason| format!("`{url}` gets status 400: {reason}"))?;
    let path_and_query = match (path, url.query()) {
        (Cow::Borrowed(_), _) => return Ok(url),
        (Cow::Owned(path), Some(query)) => format!("{path}?{query}"),
        (Cow::Owned(path), None) => path,
    };
    let mut parts = url.into_parts();
    parts.path_and_query = path_and_query.parse().ok();
    Uri::from_parts(parts).map_err(|error| error.to_string())
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
    /// Adds headers. A Host header overrides the host of the URL, as in a request.
    pub(super) fn add_headers(&mut self, headers: &[Header]) {
        for (name, value) in headers {
            if name == http::header::HOST
                && let Some(host) = value
                    .to_str()
                    .ok()
                    .and_then(|text| text.parse::<Uri>().ok())
            {
                self.host = host.host().unwrap_or_default().to_ascii_lowercase();
            }
            self.headers.append(name.clone(), value.clone());
        }
    }

    /// `http`, `https`, `tls`, `tcp` or `udp`.
    pub(super) fn scheme(&self) -> &str {
        self.url.scheme_str().unwrap_or_default()
    }

    /// The port of the scheme.
    pub(super) fn default_port(&self) -> u16 {
        match self.protocol {
            PortProtocol::Tls => 443,
            PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => 80,
        }
    }

    /// The server name that a client would send: the URL's host, unless it is an IP address.
    pub(super) fn sni(&self) -> Option<&str> {
        let host = self.url.host()?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_err().then_some(host)
    }

    /// The view of the request for matching.
    pub(super) fn view(&self) -> RequestView<'_> {
        RequestView {
            host: &self.host,
            method: &self.method,
            path: self.url.path(),
            query: self.url.query(),
            headers: &self.headers,
            added: &[],
        }
    }
}

/// Parses `name: value`.
pub(super) fn header(text: &str) -> Result<Header, String> {
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
    Ok((name, value))
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
        assert_eq!(
            (request.view().path, request.view().query),
            ("/a", Some("b=c"))
        );
        let request: ExplainedRequest = "http://localhost".parse().unwrap();
        assert_eq!(
            (request.view().method, request.view().path),
            (&Method::GET, "/")
        );
    }

    #[test]
    fn rejects_malformed_requests() {
        for text in [
            "",
            "GET /path",
            "GET ftp://host/",
            "G@T http://host/",
            "GET http://a b/",
        ] {
            assert!(text.parse::<ExplainedRequest>().is_err(), "{text}");
        }
        assert!(header("no colon").is_err());
        assert!(header("na me: value").is_err());
    }

    #[test]
    fn host_header_overrides_host_but_not_sni() {
        let mut request: ExplainedRequest = "https://one.example.com/".parse().unwrap();
        request.add_headers(&[header("Host: two.example.com:8443").unwrap()]);
        assert_eq!(request.host, "two.example.com");
        assert_eq!(request.sni(), Some("one.example.com"));
        let address: ExplainedRequest = "https://[::1]:8443/".parse().unwrap();
        assert_eq!(address.sni(), None);
    }
}
