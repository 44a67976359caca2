//! Headers about the origin of a request: `X-Forwarded-*` and `X-Request-Id`. Accepted from trusted
//! clients only, and set before route matching, so that rules match what the backend receives.

use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::client_address::Origin;
use super::forwarding_names::remove_claims;
pub(in crate::proxy) use super::forwarding_names::{
    X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT,
    X_FORWARDED_PROTO, X_REAL_IP, X_REQUEST_ID,
};
use super::forwarding_rules::ForwardingRules;
use crate::ir::client::ForwardingHeader;

/// Headers whose values are those of the proxy and not of the client.
pub(in crate::proxy) const SET_BY_PROXY: [HeaderName; 5] = [
    X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
    X_FORWARDED_HOST,
    X_FORWARDED_CLIENT_CERT,
    X_REQUEST_ID,
];

/// Values of the forwarding headers of a connection.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// Address of the client.
    pub(crate) address: HeaderValue,
    /// `http` or `https`.
    pub(crate) proto: HeaderValue,
    /// Description of the client's certificate, if that is valid. Boxed, since few connections have
    /// one.
    pub(crate) certificate: Option<Box<HeaderValue>>,
    /// What policies say of these headers. Boxed, since few connections have it.
    pub(crate) rules: Option<Box<ForwardingRules>>,
}

/// Headers that the proxy adds to a request. Kept separate from the client's headers until a filter
/// needs all of them.
#[derive(Debug)]
pub(crate) struct AddedHeaders {
    headers: [(HeaderName, HeaderValue); 4],
    /// The first that is sent: backends may not get the id.
    first: usize,
    end: usize,
}

impl AddedHeaders {
    /// Returns the headers that are still separate. The client's headers do not contain their
    /// names.
    pub(crate) fn as_slice(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers[self.first..self.end]
    }

    /// Returns the request id.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.headers[0].1
    }

    /// Removes the forwarding headers that backends do not get.
    #[cold]
    fn retain(&mut self, sent: &[ForwardingHeader]) {
        let mut end = 1;
        for at in 1..self.end {
            let name = self.headers[at].0.as_str();
            if sent.iter().any(|it| it.name().eq_ignore_ascii_case(name)) {
                self.headers.swap(end, at);
                end += 1;
            }
        }
        self.end = end;
    }

    /// Moves the headers into `headers`.
    pub(crate) fn insert_into(&mut self, headers: &mut HeaderMap) {
        for (name, value) in self.as_slice() {
            headers.insert(name, value.clone());
        }
        self.end = self.first;
    }
}

impl Forwarding {
    /// Removes the forwarding headers of the client (`has_claims` tells whether there are any) and
    /// returns those of the proxy. Those of a trusted proxy are kept: its address is appended to
    /// `X-Forwarded-For`, and missing ones are added. `host` is the `Host` of the request.
    pub(crate) fn sanitize(
        &self,
        headers: &mut HeaderMap,
        host: Option<HeaderValue>,
        (origin, has_claims): (&Origin, bool),
        new_id: impl FnOnce() -> HeaderValue,
    ) -> AddedHeaders {
        let mut claims = if has_claims {
            Claims::take(headers, origin.is_trusted)
        } else {
            Claims::default()
        };
        if origin.is_trusted && claims.chain.is_empty() {
            // Another header may tell the address.
            claims.chain.extend(self.client(origin));
        }
        if let Some(certificate) = &self.certificate {
            let claimed = headers.get_all(X_FORWARDED_CLIENT_CERT).iter();
            let value = chain(claimed, certificate, b",");
            headers.insert(X_FORWARDED_CLIENT_CERT, value);
        }
        let id = match &self.rules {
            None => claims.id.filter(|_| origin.is_trusted),
            Some(rules) => rules.id(claims.id, origin.is_trusted),
        };
        let requested = self.rules.as_ref().and_then(|_| host.clone());
        let host = claims.host.or(host);
        let mut added = AddedHeaders {
            first: 0,
            end: if host.is_some() { 4 } else { 3 },
            headers: [
                (X_REQUEST_ID, id.unwrap_or_else(new_id)),
                (
                    X_FORWARDED_FOR,
                    chain(claims.chain.iter(), &self.address, b", "),
                ),
                (
                    X_FORWARDED_PROTO,
                    claims.proto.unwrap_or_else(|| self.proto.clone()),
                ),
                (
                    X_FORWARDED_HOST,
                    host.unwrap_or(HeaderValue::from_static("")),
                ),
            ],
        };
        if let Some(rules) = &self.rules {
            added.first = usize::from(!rules.send_id());
            if let Some(sent) = rules.sent() {
                added.retain(sent);
                self.set_others(headers, (sent, rules.port), (origin, requested.as_ref()));
            }
        }
        added
    }

    /// Sets or removes the headers of [`OTHERS`]. `host` is the `Host` of the request.
    #[cold]
    fn set_others(
        &self,
        headers: &mut HeaderMap,
        (sent, port): (&[ForwardingHeader], u16),
        (origin, host): (&Origin, Option<&HeaderValue>),
    ) {
        for (header, name) in OTHERS {
            if !sent.contains(&header) {
                headers.remove(name);
                continue;
            }
            let value = match header {
                ForwardingHeader::XForwardedPort if headers.contains_key(&name) => continue,
                ForwardingHeader::XForwardedPort => Some(HeaderValue::from(port)),
                ForwardingHeader::XRealIp => HeaderValue::try_from(origin.address.to_string()).ok(),
                _ => {
                    let client = self.client(origin).filter(|_| !headers.contains_key(&name));
                    let client = client.map(|address| element(&address, None, None));
                    let before = headers.get_all(&name).iter().chain(&client);
                    let own = element(&self.address, Some(&self.proto), host);
                    Some(chain(before, &own, b", "))
                }
            };
            headers.remove(&name);
            headers.extend(value.map(|value| (name, value)));
        }
    }

    /// Returns the address of the client, if it is another one than that of the connection.
    fn client(&self, origin: &Origin) -> Option<HeaderValue> {
        let address = HeaderValue::try_from(origin.address.to_string()).ok()?;
        (address != self.address).then_some(address)
    }
}

/// Headers that only a policy makes the proxy send. Those of clients that are not trusted are removed before.
const OTHERS: [(ForwardingHeader, HeaderName); 3] = [
    (ForwardingHeader::XForwardedPort, X_FORWARDED_PORT),
    (ForwardingHeader::XRealIp, X_REAL_IP),
    (ForwardingHeader::Forwarded, FORWARDED),
];

/// Returns an element of `Forwarded` (RFC 7239, 4).
fn element(
    address: &HeaderValue,
    proto: Option<&HeaderValue>,
    host: Option<&HeaderValue>,
) -> HeaderValue {
    let mut element = b"for=".to_vec();
    let is_ipv6 = address.as_bytes().contains(&b':');
    let (open, close): (&[u8], &[u8]) = match is_ipv6 {
        true => (b"\"[", b"]\""),
        false => (b"", b""),
    };
    element.extend([open, address.as_bytes(), close].concat());
    if let Some(proto) = proto {
        element.extend([b";proto=", proto.as_bytes()].concat());
    }
    if let Some(host) = host.map(HeaderValue::as_bytes) {
        // A host has no character that needs an escape. A port or an IPv6 address needs quotes.
        let quote: &[u8] = match host.contains(&b':') {
            true => b"\"",
            false => b"",
        };
        element.extend([b";host=", quote, host, quote].concat());
    }
    HeaderValue::from_bytes(&element).unwrap_or_else(|_| HeaderValue::from_static("for=unknown"))
}

/// Appends `own` to the values of a trusted client.
fn chain<'a>(
    before: impl Iterator<Item = &'a HeaderValue>,
    own: &HeaderValue,
    separator: &[u8],
) -> HeaderValue {
    let mut chain: Vec<_> = before.map(HeaderValue::as_bytes).collect();
    if chain.is_empty() {
        return own.clone();
    }
    chain.push(own.as_bytes());
    HeaderValue::from_bytes(&chain.join(separator)).unwrap_or_else(|_| own.clone())
}

/// Forwarding headers of a trusted client, and the id that any client has chosen.
#[derive(Default)]
struct Claims {
    chain: Vec<HeaderValue>,
    proto: Option<HeaderValue>,
    host: Option<HeaderValue>,
    id: Option<HeaderValue>,
}

impl Claims {
    /// Removes the headers. For a trusted client, keeps those that are forwarded unchanged.
    fn take(headers: &mut HeaderMap, trusted: bool) -> Self {
        let chain = headers.get_all(X_FORWARDED_FOR).iter().cloned().collect();
        headers.remove(X_FORWARDED_FOR);
        let (proto, host) = (
            headers.remove(X_FORWARDED_PROTO),
            headers.remove(X_FORWARDED_HOST),
        );
        let id = headers.remove(X_REQUEST_ID);
        if trusted {
            return Self {
                chain,
                proto,
                host,
                id,
            };
        }
        remove_claims(headers);
        Self {
            id,
            ..Self::default()
        }
    }
}
