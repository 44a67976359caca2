//! What backends are told about where a request comes from: `X-Forwarded-*` and `X-Request-Id`, believed from trusted
//! clients only. Knows nothing of other fields.

use http::header::{FORWARDED, HOST, HeaderName};
use http::{HeaderMap, HeaderValue};

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
pub(super) const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the proxy tells backends about the client.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// The client's address.
    pub(crate) address: HeaderValue,
    /// `http` or `https`.
    pub(crate) proto: HeaderValue,
    /// Whether the client may speak for others.
    pub(crate) trusted: bool,
}

/// Fields that the proxy adds to a request. They stay apart from the client's until someone has to see all of them.
#[derive(Debug)]
pub(crate) struct Added {
    fields: [(HeaderName, HeaderValue); 4],
    count: usize,
}

impl Added {
    /// The fields that are still apart.
    pub(crate) fn as_slice(&self) -> &[(HeaderName, HeaderValue)] {
        &self.fields[..self.count]
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.fields[0].1
    }

    /// Puts the fields among the others.
    pub(crate) fn insert_into(&mut self, headers: &mut HeaderMap) {
        for (name, value) in &self.fields[..self.count] {
            headers.insert(name, value.clone());
        }
        self.count = 0;
    }
}

impl Forwarding {
    /// `X-Forwarded-*` and `X-Request-Id` of a request, whose own (`said` tells whether it has any) are dropped. What a client says is kept only if it is
    /// trusted: then its address is appended to `X-Forwarded-For`, and of the rest only what is missing is filled in.
    pub(crate) fn fields(
        &self,
        headers: &mut HeaderMap,
        said: bool,
        new_id: impl FnOnce() -> HeaderValue,
    ) -> Added {
        let said = if said {
            Said::take(headers, self.trusted)
        } else {
            Said::default()
        };
        let host = said.host.or_else(|| headers.get(HOST).cloned());
        let count = if host.is_some() { 4 } else { 3 };
        let fields = [
            (X_REQUEST_ID, said.id.unwrap_or_else(new_id)),
            (X_FORWARDED_FOR, self.chain(&said.chain)),
            (
                X_FORWARDED_PROTO,
                said.proto.unwrap_or_else(|| self.proto.clone()),
            ),
            (
                X_FORWARDED_HOST,
                host.unwrap_or(HeaderValue::from_static("")),
            ),
        ];
        Added { fields, count }
    }

    fn chain(&self, before: &[HeaderValue]) -> HeaderValue {
        if before.is_empty() {
            return self.address.clone();
        }
        let mut chain: Vec<_> = before.iter().map(HeaderValue::as_bytes).collect();
        chain.push(self.address.as_bytes());
        HeaderValue::from_bytes(&chain.join(&b", "[..])).unwrap_or_else(|_| self.address.clone())
    }
}

/// What a trusted client says about where a request comes from.
#[derive(Default)]
struct Said {
    chain: Vec<HeaderValue>,
    proto: Option<HeaderValue>,
    host: Option<HeaderValue>,
    id: Option<HeaderValue>,
}

impl Said {
    /// Takes the fields out of `headers`. Those that are not passed on in another form stay there if `trusted`.
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
        for name in [FORWARDED, X_REAL_IP, X_FORWARDED_PORT] {
            headers.remove(name);
        }
        Self::default()
    }
}
