//! URIs of servers that policies let the process ask: over HTTPS, or on loopback. Must not know what is there.

use std::net::IpAddr;

use http::Uri;
use http::uri::Scheme;

use crate::translate::policy::backend_tls::is_dns_name;

/// Parses a URI. The message continues a sentence that begins with its field, and does not repeat what may be a password.
pub(super) fn uri(text: &str) -> Result<Uri, &'static str> {
    let uri = parsed(text)?;
    let host = host(&uri);
    let address: Option<IpAddr> = host.parse().ok();
    let is_loopback = address.is_some_and(|it| it.is_loopback()) || host == "localhost";
    match uri.scheme() == Some(&Scheme::HTTP) && !is_loopback {
        false => Ok(uri),
        true => {
            Err("has http, with which anybody on the way could replace the keys; it needs https")
        }
    }
}

/// Parses the URI of a backend, which may have http: its requests stay in the network of the cluster.
pub(super) fn uri_of_backend(text: &str) -> Result<Uri, &'static str> {
    parsed(text)
}

fn parsed(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text.parse().map_err(|_| "is not a URI")?;
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') || text.contains('#') {
        return Err("has user information or a fragment");
    }
    let host = host(&uri);
    if uri.scheme() == Some(&Scheme::HTTP) {
        return Ok(uri);
    }
    if uri.scheme() != Some(&Scheme::HTTPS) {
        return Err("needs https");
    }
    match is_dns_name(host) {
        true => Ok(uri),
        false => Err("has a host that is not a DNS name, which its certificate could not prove"),
    }
}

/// Returns the host, without the brackets of an IPv6 address.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_matches(['[', ']'])
}
