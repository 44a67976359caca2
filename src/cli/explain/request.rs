//! A request as it is written on the command line. Knows nothing of what becomes of it.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::ir::PortProtocol;
use crate::proxy::target;
use crate::table::RequestView;

/// A header field.
pub(super) type Header = (HeaderName, HeaderValue);

/// A request that is asked about.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    method: Method,
    url: Uri,
    /// Host in lower case; a Host field wins over the URL's.
    pub(super) host: String,
    /// Port in the URL.
    pub(super) port: Option<u16>,
    headers: HeaderMap,
}

impl FromStr for Asked {
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
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(format!("`{url}` must begin with http:// or https://"));
        }
        let url = normalized(url)?;
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        Ok(Self {
            method,
            host,
            port: url.port_u16(),
            url,
            headers: HeaderMap::new(),
        })
    }
}

/// The URL with the path that is matched and forwarded.
fn normalized(url: Uri) -> Result<Uri, String> {
    let path = target::normalize(url.path())
        .map_err(|reason| format!("`{url}` is answered with 400: {reason}"))?;
    let path_and_query = match (path, url.query()) {
        (Cow::Borrowed(_), _) => return Ok(url),
        (Cow::Owned(path), Some(query)) => format!("{path}?{query}"),
        (Cow::Owned(path), None) => path,
    };
    let mut parts = url.into_parts();
    parts.path_and_query = path_and_query.parse().ok();
    Uri::from_parts(parts).map_err(|error| error.to_string())
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.url)
    }
}

impl Asked {
    /// Adds header fields. Host takes effect as it would in a request.
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

    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &str {
        self.url.scheme_str().unwrap_or_default()
    }

    /// The port of the scheme.
    pub(super) fn default_port(&self) -> u16 {
        if self.is_https() { 443 } else { 80 }
    }

    /// What its port has to speak.
    pub(super) fn protocol(&self) -> PortProtocol {
        if self.is_https() {
            PortProtocol::Tls
        } else {
            PortProtocol::Http
        }
    }

    fn is_https(&self) -> bool {
        self.url.scheme() == Some(&Scheme::HTTPS)
    }

    /// The server name that a client would send: the URL's host, unless it is an address.
    pub(super) fn sni(&self) -> Option<&str> {
        let host = self.url.host()?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_err().then_some(host)
    }

    /// What matching looks at.
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

/// Reads `name: value`.
pub(super) fn header(text: &str) -> Result<Header, String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` has no colon; write 'name: value'"))?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("`{name}` is not a header name"))?;
    let value = value
        .trim()
        .parse()
        .map_err(|_| format!("the value of `{name}` has characters that no field can have"))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_method_and_url() {
        let asked: Asked = "POST https://Demo.Example.com:8443/a?b=c".parse().unwrap();
        assert_eq!(
            asked.to_string(),
            "POST https://Demo.Example.com:8443/a?b=c"
        );
        assert_eq!(
            (asked.host.as_str(), asked.port),
            ("demo.example.com", Some(8443))
        );
        assert_eq!((asked.view().path, asked.view().query), ("/a", Some("b=c")));
        let asked: Asked = "http://localhost".parse().unwrap();
        assert_eq!(
            (asked.view().method, asked.view().path),
            (&Method::GET, "/")
        );
    }

    #[test]
    fn refuses_what_is_no_request() {
        for text in [
            "",
            "GET /path",
            "GET ftp://host/",
            "G@T http://host/",
            "GET http://a b/",
        ] {
            assert!(text.parse::<Asked>().is_err(), "{text}");
        }
        assert!(header("no colon").is_err());
        assert!(header("na me: value").is_err());
    }

    #[test]
    fn a_host_field_wins_and_sni_stays() {
        let mut asked: Asked = "https://one.example.com/".parse().unwrap();
        asked.add_headers(&[header("Host: two.example.com:8443").unwrap()]);
        assert_eq!(asked.host, "two.example.com");
        assert_eq!(asked.sni(), Some("one.example.com"));
        let address: Asked = "https://[::1]:8443/".parse().unwrap();
        assert_eq!(address.sni(), None);
    }
}
