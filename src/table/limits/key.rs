//! Keys of limits: the hash of what distinguishes requests. Does not allocate.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use http::HeaderMap;
use http::header::COOKIE;

use crate::ir::limit::KeyPart;
use crate::table::matcher::RequestView;

/// The parts of a request that keys are made of.
#[derive(Clone, Copy, Debug)]
pub struct LimitedRequest<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// The request.
    pub view: RequestView<'a>,
}

/// Returns the hash of a key. Clients cannot predict it, so they cannot aim at the place of others.
pub(super) fn hash(state: &RandomState, key: &[KeyPart], request: &LimitedRequest<'_>) -> u64 {
    let mut hasher = state.build_hasher();
    write(&mut hasher, key, request);
    hasher.finish()
}

/// Writes the values of the parts of a key. Returns whether the request has all parts.
pub(in crate::table) fn write(
    hasher: &mut impl Hasher,
    key: &[KeyPart],
    request: &LimitedRequest<'_>,
) -> bool {
    let mut has_all = true;
    for part in key {
        let value = match part {
            KeyPart::ClientIp { v4, v6 } => {
                write_network(hasher, request.client, (*v4, *v6));
                None
            }
            KeyPart::Header(name) => request.view.headers.get(name).map(|it| it.as_bytes()),
            KeyPart::Cookie(name) => cookie(request.view.headers, name.as_bytes()),
            KeyPart::Hostname => Some(request.view.host.as_bytes()),
        };
        has_all &= value.is_some() || matches!(part, KeyPart::ClientIp { .. });
        // The length keeps two values apart that together have the same bytes.
        hasher.write_usize(value.map_or(0, |value| value.len() + 1));
        hasher.write(value.unwrap_or_default());
    }
    has_all
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

/// Returns the value of the first cookie with a name.
fn cookie<'a>(headers: &'a HeaderMap, name: &[u8]) -> Option<&'a [u8]> {
    let values = headers.get_all(COOKIE).iter();
    let mut cookies = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    cookies.find_map(|cookie| {
        let cookie = cookie.trim_ascii();
        cookie.strip_prefix(name)?.strip_prefix(b"=")
    })
}
