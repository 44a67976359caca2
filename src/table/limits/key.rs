//! Keys of limits: the hash of what distinguishes requests. Does not allocate.

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memchr;

use crate::ir::cookie;
use crate::ir::header_list;
use crate::ir::limit::{IdentityPart, KeyPart, Limit};
use crate::table::authentication::Claims;
use crate::table::matcher::{RequestView, decode};

/// The parts of a request that keys are made of.
#[derive(Clone, Copy, Debug)]
pub struct LimitedRequest<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// The request.
    pub view: RequestView<'a>,
}

/// What authentication has established about the client of a request. Namespaces are those of the policies that did:
/// authors of others cannot make up clients that count as theirs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientIdentity<'a> {
    /// The name of the user, or else of the client with the API key, after the namespace.
    pub name: Option<[&'a str; 2]>,
    /// The token.
    pub token: Option<TokenIdentity<'a>>,
}

/// What a valid token says about a client.
#[derive(Clone, Copy, Debug)]
pub struct TokenIdentity<'a> {
    /// The namespace, and the issuer.
    pub issuer: [&'a str; 2],
    /// Its claims.
    pub claims: &'a Claims,
}

/// Returns the hash of the key of a limit, which is never 0. Clients cannot predict it, so they cannot aim at the place of
/// others.
pub(super) fn hash(
    state: &impl BuildHasher,
    limit: &Limit,
    request: &LimitedRequest<'_>,
    identity: &ClientIdentity<'_>,
) -> u64 {
    let mut hasher = state.build_hasher();
    write(&mut hasher, &limit.key, request, KeyUse::Limit);
    for part in &limit.identity {
        match (part, identity.name, &identity.token) {
            (IdentityPart::Client, Some(name), _) => {
                hasher.write_u8(1);
                write_texts(&mut hasher, name);
            }
            (IdentityPart::Client, None, Some(token)) => {
                hasher.write_u8(2);
                write_claim(&mut hasher, token, "sub");
            }
            (IdentityPart::Claim(name), _, Some(token)) => {
                hasher.write_u8(2);
                write_claim(&mut hasher, token, name.as_str());
            }
            (IdentityPart::Client | IdentityPart::Claim(_), ..) => hasher.write_u8(0),
        }
    }
    // Tables of keys have 0 for a free place, and pods send each other what these tables hold.
    hasher.finish() | 1
}

/// Writes the values of a claim of an issuer, and how many there are.
fn write_claim(hasher: &mut impl Hasher, token: &TokenIdentity<'_>, claim: &str) {
    write_texts(hasher, token.issuer);
    hasher.write_usize(token.claims.values(claim).count());
    write_texts(hasher, token.claims.values(claim));
}

/// Writes texts with their lengths, which keep apart those that together have the same bytes.
fn write_texts<'a>(hasher: &mut impl Hasher, texts: impl IntoIterator<Item = &'a str>) {
    for text in texts {
        hasher.write_usize(text.len());
        hasher.write(text.as_bytes());
    }
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::table) enum KeyUse {
    /// It selects an endpoint. Of several cookies, the first one counts, which is that of the most specific path (RFC 6265, 5.4).
    Endpoint,
    /// It limits a client, which must not choose it by what means the same to a server: different cookies of one name are none,
    /// since servers differ in which one they take.
    Limit,
}

/// Writes the values of the parts of a key. Returns whether the request has all parts.
pub(in crate::table) fn write(
    hasher: &mut impl Hasher,
    key: &[KeyPart],
    request: &LimitedRequest<'_>,
    usage: KeyUse,
) -> bool {
    let mut has_all = true;
    for part in key {
        let value = match part {
            KeyPart::ClientIp { v4, v6 } => {
                write_network(hasher, request.client, (*v4, *v6));
                None
            }
            KeyPart::Header(name) => {
                has_all &= match usage {
                    KeyUse::Limit if *name == AUTHORIZATION => {
                        write_credentials(hasher, &request.view, name)
                    }
                    KeyUse::Limit | KeyUse::Endpoint => write_header(hasher, &request.view, name),
                };
                continue;
            }
            KeyPart::Cookie(name) if usage == KeyUse::Limit => {
                has_all &= write_cookie(hasher, request.view.headers, name);
                continue;
            }
            KeyPart::Cookie(name) => cookie::values(request.view.headers, name).next(),
            KeyPart::Hostname => Some(request.view.host.as_bytes()),
        };
        has_all &= value.is_some() || matches!(part, KeyPart::ClientIp { .. });
        // The length keeps two values apart that together have the same bytes.
        hasher.write_usize(value.map_or(0, |value| value.len() + 1));
        hasher.write(value.unwrap_or_default());
    }
    has_all
}

/// Writes the value of a cookie. Many servers decode it, so that escapes make no other value, and some take a backslash for an
/// escape, which no valid value has (RFC 6265, 4.1.1). Returns whether there is one.
fn write_cookie(hasher: &mut impl Hasher, headers: &HeaderMap, name: &str) -> bool {
    let mut values = cookie::values(headers, name);
    let first = values.next();
    let first = first.filter(|first| {
        memchr(b'\\', first).is_none() && values.all(|it| decode(it).eq(decode(first)))
    });
    write_bytes(hasher, first.map(|first| move || decode(first)));
    first.is_some()
}

/// Writes the credentials in a header. Returns whether there are any.
fn write_credentials(hasher: &mut impl Hasher, view: &RequestView<'_>, name: &HeaderName) -> bool {
    let lines = || view.lines(name).map(HeaderValue::as_bytes);
    let is_present = lines().next().is_some();
    let credentials = || header_list::credentials(lines());
    write_bytes(hasher, is_present.then_some(credentials));
    is_present
}

/// Writes bytes, after their number, which keeps two values apart that together have the same bytes.
fn write_bytes<I: Iterator<Item = u8>>(hasher: &mut impl Hasher, bytes: Option<impl Fn() -> I>) {
    let Some(bytes) = bytes else {
        hasher.write_usize(0);
        return;
    };
    hasher.write_usize(bytes().count() + 1);
    // In parts that depend on nothing but the bytes.
    let (mut part, mut length) = ([0; 64], 0);
    for byte in bytes() {
        part[length] = byte;
        length += 1;
        if length == part.len() {
            hasher.write(&part);
            length = 0;
        }
    }
    hasher.write(&part[..length]);
}

/// Writes the value of a header. Several lines are one value, and it is the list or the hosts that count, as for conditions.
/// Returns whether there is any.
fn write_header(hasher: &mut impl Hasher, view: &RequestView<'_>, name: &HeaderName) -> bool {
    let lines = || view.lines(name).map(HeaderValue::as_bytes);
    let is_present = lines().next().is_some();
    if header_list::has_hosts(name) {
        let hosts = || header_list::hosts(lines());
        hasher.write_usize(hosts().count().max(usize::from(is_present)));
        hosts().for_each(|byte| hasher.write_u8(byte));
        return is_present;
    }
    let elements = || header_list::elements(lines());
    // With the length of each element and of what separates it from the next one. A header without elements differs from an absent one.
    let length: usize = elements().map(|element| element.len() + 1).sum();
    hasher.write_usize(length.max(usize::from(is_present)));
    for (index, element) in elements().enumerate() {
        if index > 0 {
            hasher.write(b",");
        }
        hasher.write(element);
    }
    is_present
}

/// Writes the network of a client, with these lengths of the prefix.
pub(in crate::table) fn write_network(
    hasher: &mut impl Hasher,
    client: IpAddr,
    (v4, v6): (u8, u8),
) {
    match client.to_canonical() {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0);
            hasher.write_u32(u32::from(address) & mask);
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
            hasher.write_u128(u128::from(address) & mask);
        }
    }
}
