//! Header handling: rejects ambiguous requests and removes hop-by-hop headers. Determines the
//! request's host once, for both matching and forwarding.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Version, request};

use super::framing::is_multiplexed;
use crate::ir::hop_by_hop::{HTTP2_SETTINGS, KEEP_ALIVE, PROXY_CONNECTION};
use crate::ir::protected_headers::has_symbol;
use crate::proxy::client::forwarding_names::{
    OTHERS, X_REQUEST_ID, is_about_origin, remove_aliases,
};
use crate::proxy::client::host::{Host, HostHeader, LastHost};
use crate::proxy::error::Error;

/// Headers that a client cannot remove by naming them in `Connection`, besides those about the origin of the request.
const PROTECTED: [HeaderName; 5] = [HOST, AUTHORIZATION, COOKIE, CONTENT_LENGTH, X_REQUEST_ID];

/// Presence of each header that the proxy acts on. Found in one pass, so that the usual request
/// needs no look-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeaderPresence {
    connection: bool,
    transfer_encoding: bool,
    upgrade: bool,
    te: bool,
    expect: bool,
    other_hop_by_hop: bool,
    /// Forwarding headers.
    forwarding: bool,
    content_length: bool,
    cookie: bool,
    host: bool,
    /// Headers that an application may take for one that the proxy sets.
    aliases: bool,
}

impl HeaderPresence {
    fn of(headers: &HeaderMap) -> Self {
        let mut present = Self::default();
        for name in headers.keys() {
            let name = name.as_str();
            if is_ordinary(name) {
                continue;
            }
            match name {
                "connection" => present.connection = true,
                "transfer-encoding" => present.transfer_encoding = true,
                "upgrade" => present.upgrade = true,
                "te" => present.te = true,
                "expect" => present.expect = true,
                "keep-alive" | "proxy-connection" | "http2-settings" => {
                    present.other_hop_by_hop = true
                }
                "content-length" => present.content_length = true,
                "cookie" => present.cookie = true,
                "host" => present.host = true,
                "x-request-id" => present.forwarding = true,
                other if has_symbol(other) => present.aliases = true,
                other => present.forwarding |= is_about_origin(other),
            }
        }
        present
    }
}

/// The headers that [`HeaderPresence`] has a field for, without those about the origin of the request.
const ACTED_ON: [&str; 12] = [
    "connection",
    "transfer-encoding",
    "upgrade",
    "te",
    "expect",
    "keep-alive",
    "proxy-connection",
    "http2-settings",
    "content-length",
    "cookie",
    "host",
    "x-request-id",
];

/// The bit of `f`, which `x-forwarded-*` has after `x-`.
const F: u32 = 1 << (b'f' - b'a');

/// For each length of a name, the first letters of the names in [`ACTED_ON`] and about the origin of a request that have it:
/// one bit for each letter. Names that begin with `x-` are in [`LETTERS_AFTER_X`].
const FIRST_LETTERS: [u32; 32] =
    with_letters(&OTHERS, false, with_letters(&ACTED_ON, false, [0; 32]));

/// The same for the letters after `x-`, since many headers begin with that.
const LETTERS_AFTER_X: [u32; 32] = {
    let mut letters = with_letters(&OTHERS, true, with_letters(&ACTED_ON, true, [0; 32]));
    let mut length = "x-forwarded-".len();
    while length < letters.len() {
        letters[length] |= F;
        length += 1;
    }
    letters
};

const fn with_letters(names: &[&str], after_x: bool, mut letters: [u32; 32]) -> [u32; 32] {
    let mut index = 0;
    while index < names.len() {
        let name = names[index].as_bytes();
        if (name[0] == b'x') == after_x {
            let letter = if after_x { name[2] } else { name[0] };
            letters[name.len()] |= 1 << (letter - b'a');
        }
        index += 1;
    }
    letters
}

/// Reports whether a name is, by its length and a letter, neither one that is acted on nor another spelling of one. Excludes most
/// names, since every header of every request is looked at.
#[inline]
fn is_ordinary(name: &str) -> bool {
    let (letters, longer, letter) = match name.as_bytes() {
        [b'x', _, letter, ..] => (&LETTERS_AFTER_X, F, letter),
        [letter, ..] => (&FIRST_LETTERS, 0, letter),
        [] => return true,
    };
    let letter = letter.wrapping_sub(b'a');
    let letters = letters.get(name.len()).copied().unwrap_or(longer);
    letter > 25 || letters >> letter & 1 == 0
}

/// Reports whether there are several headers of this name. Few requests have several of any.
fn has_several(headers: &HeaderMap, name: HeaderName) -> bool {
    headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}

/// Result of [`normalize`].
#[derive(Debug)]
pub(crate) struct NormalizedRequest {
    /// Host to match; empty only for HTTP/1.0 without `Host`.
    pub(crate) host: Host,
    /// `Host` to forward; `None` only for HTTP/1.0 without it.
    pub(crate) host_header: Option<HeaderValue>,
    /// Requested upgrade protocol.
    pub(crate) upgrade: Option<HeaderValue>,
    /// Whether the client waits for a 100 before it sends the body (RFC 9110, 10.1.1).
    pub(crate) expects_continue: bool,
    /// Whether there are forwarding headers.
    pub(crate) has_forwarding: bool,
    /// The headers that `Connection` names, which were removed; `None` without any.
    pub(crate) named: Option<Box<HeaderMap>>,
}

/// Normalizes a request for matching and forwarding: one host, end-to-end headers only; or returns
/// why it is rejected. Its path follows when its listener is known. `last` is the connection's
/// cache; `max_headers` limits the number of headers.
pub(crate) fn normalize(
    parts: &mut request::Parts,
    last: &mut LastHost,
    max_headers: usize,
) -> Result<NormalizedRequest, Error> {
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Err(Error::MethodNotAllowed);
    }
    if is_misspelled(&parts.method) {
        return Err(Error::BadRequest("a method of HTTP has upper-case letters"));
    }
    if parts.headers.len() > max_headers && lines(parts) > max_headers {
        return Err(Error::TooManyHeaders);
    }
    let present = HeaderPresence::of(&parts.headers);
    if present.aliases {
        remove_aliases(&mut parts.headers);
    }
    if is_multiplexed(parts.version) {
        check_fields(parts, present)?;
    } else {
        check_framing(parts, present)?;
    }
    if present.cookie && has_several(&parts.headers, COOKIE) {
        join_cookies(&mut parts.headers);
    }
    let host = decide_host(parts, present, last)?;
    let expects_continue = present.expect && expects_continue(parts)?;
    let (upgrade, named) = end_to_end(parts, present);
    let (host, host_header) = match host {
        Some(HostHeader { host, value }) => (host, Some(value)),
        None => (Host::unknown(), None),
    };
    Ok(NormalizedRequest {
        host,
        host_header,
        upgrade,
        expects_continue,
        has_forwarding: present.forwarding,
        named,
    })
}

/// Reports whether a method differs from one of HTTP in nothing but the case of its letters. RFC 9110, 9.1 tells them apart, and
/// so do rules about methods; many frameworks do not.
#[inline]
fn is_misspelled(method: &Method) -> bool {
    !is_of_http(method) && {
        let upper = Method::from_bytes(method.as_str().to_ascii_uppercase().as_bytes());
        upper.is_ok_and(|upper| is_of_http(&upper))
    }
}

fn is_of_http(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET
            | Method::POST
            | Method::HEAD
            | Method::PUT
            | Method::PATCH
            | Method::DELETE
            | Method::OPTIONS
            | Method::CONNECT
            | Method::TRACE
    )
}

/// Returns the number of headers, of which the cookies of HTTP/2 are one in as many fields as the client likes (RFC 9113, 8.2.3).
/// Those of HTTP/3 are one field already.
#[cold]
fn lines(parts: &request::Parts) -> usize {
    let more_cookies = match is_multiplexed(parts.version) {
        true => parts.headers.get_all(COOKIE).iter().skip(1).count(),
        false => 0,
    };
    parts.headers.len() - more_cookies
}

/// Checks of RFC 9113, 8.2 and 8.3, and RFC 9114, 4.2 and 4.3, that reading a head leaves to its caller: blanks around
/// values and duplicate lengths.
fn check_fields(parts: &request::Parts, present: HeaderPresence) -> Result<(), Error> {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if parts
        .headers
        .values()
        .any(|value| blank(value.as_bytes().first()) || blank(value.as_bytes().last()))
    {
        return Err(Error::BadRequest(
            "a header value begins or ends with a blank",
        ));
    }
    if present.content_length && has_several(&parts.headers, CONTENT_LENGTH) {
        return Err(Error::BadRequest("several Content-Length headers"));
    }
    Ok(())
}

/// Joins cookies into one header: the crumbs of HTTP/2, as HTTP/1 requires (RFC 9113, 8.2.3), and those of HTTP/1, since a
/// client sends one header (RFC 6265, 5.4) and many servers read one alone.
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .filter(|crumb| !crumb.is_empty())
        .collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Rejects framing that the parser accepts but that two implementations could read differently (RFC
/// 9112, 6).
fn check_framing(parts: &request::Parts, present: HeaderPresence) -> Result<(), Error> {
    if present.transfer_encoding {
        let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
        let one_chunked = codings
            .next()
            .is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !one_chunked || codings.next().is_some() {
            return Err(Error::BadRequest("Transfer-Encoding other than chunked"));
        }
    }
    let has_content = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if parts.version < Version::HTTP_11 && has_content && !present.content_length {
        return Err(Error::BadRequest(
            "an HTTP/1.0 request with content needs a Content-Length",
        ));
    }
    Ok(())
}

/// RFC 9112, 3.2: the host of the target if it has one, else of the only `Host`, which is set to
/// that host.
fn decide_host(
    parts: &mut request::Parts,
    present: HeaderPresence,
    last: &mut LastHost,
) -> Result<Option<HostHeader>, Error> {
    let first = match present.host {
        true if has_several(&parts.headers, HOST) => {
            return Err(Error::BadRequest("several Host headers"));
        }
        true => parts.headers.get(HOST),
        false => None,
    };
    if first.is_none() && parts.version == Version::HTTP_11 {
        return Err(Error::BadRequest("no Host"));
    }
    let Some(authority) = parts.uri.authority() else {
        return match first {
            Some(host) => last.parse(host.as_bytes()).map(Some),
            None if parts.version < Version::HTTP_11 => Ok(None),
            None => Err(Error::BadRequest("no :authority and no Host")),
        };
    };
    let host = last.parse(authority.as_str().as_bytes())?;
    if is_multiplexed(parts.version)
        && let Some(header) = first
        && !header
            .as_bytes()
            .eq_ignore_ascii_case(host.value.as_bytes())
    {
        return Err(Error::BadRequest("Host differs from :authority"));
    }
    parts.headers.insert(HOST, host.value.clone());
    Ok(Some(host))
}

/// Removes `Expect` and reports whether it was `100-continue`, the only defined expectation (RFC
/// 9110, 10.1.1). HTTP/1.0 does not define it.
fn expects_continue(parts: &mut request::Parts) -> Result<bool, Error> {
    match parts.headers.remove(EXPECT) {
        Some(expectation) if !expectation.as_bytes().eq_ignore_ascii_case(b"100-continue") => {
            Err(Error::ExpectationFailed)
        }
        expectation => Ok(expectation.is_some() && parts.version > Version::HTTP_10),
    }
}

/// Removes hop-by-hop headers (RFC 9110, 7.6.1). Returns the protocol of a supported upgrade, and the headers that `Connection`
/// names.
fn end_to_end(
    parts: &mut request::Parts,
    present: HeaderPresence,
) -> (Option<HeaderValue>, Option<Box<HeaderMap>>) {
    let headers = &mut parts.headers;
    let trailers = present.te && accepts_trailers(headers);
    let (upgrades, named) = match present.connection {
        true => remove_connection(headers),
        false => (false, None),
    };
    if present.other_hop_by_hop {
        for name in [KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS] {
            headers.remove(name);
        }
    }
    if present.transfer_encoding {
        headers.remove(TRANSFER_ENCODING);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    } else if present.te {
        headers.remove(TE);
    }
    if !present.upgrade {
        return (None, named);
    }
    let has_content = present.transfer_encoding
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0");
    let relayed = upgrades && !has_content && parts.version == Version::HTTP_11;
    let upgrade = headers
        .remove(UPGRADE)
        .filter(|protocol| relayed && is_relayed(protocol));
    (upgrade, named)
}

/// Reports whether `TE` contains `trailers`, its only end-to-end option (RFC 9110, 10.1.4).
fn accepts_trailers(headers: &HeaderMap) -> bool {
    let mut codings = headers
        .get_all(TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Removes `Connection` and the headers that it names. Returns whether it contains `upgrade`, and these headers.
fn remove_connection(headers: &mut HeaderMap) -> (bool, Option<Box<HeaderMap>>) {
    let mut upgrades = false;
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for option in value
            .as_bytes()
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
        {
            if option.eq_ignore_ascii_case(b"upgrade") {
                upgrades = true;
            } else if !option.eq_ignore_ascii_case(b"keep-alive")
                && !option.eq_ignore_ascii_case(b"close")
            {
                named.extend(
                    HeaderName::from_bytes(option).ok().filter(|name| {
                        !PROTECTED.contains(name) && !is_about_origin(name.as_str())
                    }),
                );
            }
        }
    }
    headers.remove(CONNECTION);
    let mut removed = HeaderMap::new();
    for name in named {
        for value in headers.get_all(&name) {
            removed.append(&name, value.clone());
        }
        headers.remove(&name);
    }
    let removed = (!removed.is_empty()).then(|| Box::new(removed));
    (upgrades, removed)
}

/// Reports whether an upgrade is relayed. Rejects upgrades to HTTP/2, and lists, since their
/// protocol would be undetermined.
fn is_relayed(protocol: &HeaderValue) -> bool {
    let protocol = protocol.as_bytes();
    let http2 = protocol.len() >= 2 && protocol[..2].eq_ignore_ascii_case(b"h2");
    let http = protocol.len() >= 4 && protocol[..4].eq_ignore_ascii_case(b"http");
    let tls = protocol.len() >= 3 && protocol[..3].eq_ignore_ascii_case(b"tls");
    !http2 && !http && !tls && !protocol.contains(&b',')
}

#[cfg(test)]
mod tests;
