//! The address of a client behind proxies, and whether what these say of it counts. What a client could have written
//! itself never counts.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue};

use super::forwarding_names::X_FORWARDED_FOR;
use crate::ir::client::AddressSource;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The address of the client.
    pub(crate) address: IpAddr,
    /// Whether it came by a proxy, so that its forwarding headers are accepted.
    pub(crate) is_trusted: bool,
    /// Whether the address is that of the client. If not, the policy on it is broken.
    pub(crate) is_known: bool,
}

impl Origin {
    /// A client without proxies.
    pub(crate) fn direct(peer: IpAddr) -> Self {
        Self {
            address: peer,
            is_trusted: false,
            is_known: true,
        }
    }
}

/// Returns where a request of a connection comes from. Where the source names no address, that is the one of the
/// connection, `peer`.
pub(crate) fn origin(source: &AddressSource, peer: IpAddr, headers: &HeaderMap) -> Origin {
    let direct = Origin::direct(peer);
    let (named, is_trusted) = match source {
        AddressSource::Connection => return direct,
        AddressSource::Hops(hops) => {
            let element = elements(headers).nth(hops.saturating_sub(1));
            (element.and_then(parse), element.is_some())
        }
        AddressSource::Proxies(proxies) if proxies.contains(peer) => {
            (last_before(headers, |it| proxies.contains(it)), true)
        }
        AddressSource::Header { name, trusted } if trusted.contains(peer) => {
            let mut values = headers.get_all(name).iter();
            let only = values.next().filter(|_| values.next().is_none());
            (only.and_then(text).and_then(parse), true)
        }
        AddressSource::Proxies(_) | AddressSource::Header { .. } => return direct,
    };
    Origin {
        address: named.unwrap_or(peer),
        is_trusted,
        is_known: true,
    }
}

/// Returns the elements of `X-Forwarded-For` from the right. Several headers are one list, and empty elements do not count
/// (RFC 9110, 5.3 and 5.6.1). A value with other characters than those of ASCII is an element that is no address.
fn elements(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let elements = values.flat_map(|value| text(value).unwrap_or("?").rsplit(','));
    elements
        .map(str::trim)
        .filter(|element| !element.is_empty())
}

/// Returns the last address that is not of a proxy; `None` if there is none, or if one behind it is no address.
fn last_before(headers: &HeaderMap, is_proxy: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    for element in elements(headers) {
        let address = parse(element)?;
        if !is_proxy(address) {
            return Some(address);
        }
    }
    None
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// Parses an address, which may have brackets and a port. IPv4-mapped addresses are IPv4.
fn parse(element: &str) -> Option<IpAddr> {
    let element = element.trim();
    let bare = element
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'));
    let address = bare.unwrap_or(element).parse().ok();
    let address = address.or_else(|| element.parse().ok().map(|it: SocketAddr| it.ip()));
    address.map(|it: IpAddr| it.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::ir::cidr;

    const PROXY: &str = "10.0.0.1";

    fn proxies() -> cidr::CidrSet {
        let nets = ["10.0.0.0/8", "fd00::/16"].map(|it| cidr::parse(it).unwrap());
        nets.into_iter().collect()
    }

    fn headers(name: &'static str, values: &[&'static str]) -> HeaderMap {
        let name = HeaderName::from_static(name);
        let values = values.iter().map(|it| HeaderValue::from_static(it));
        values.map(|value| (name.clone(), value)).collect()
    }

    fn of_list(source: &AddressSource, values: &[&'static str]) -> (String, bool) {
        let headers = headers("x-forwarded-for", values);
        let origin = origin(source, PROXY.parse().unwrap(), &headers);
        (origin.address.to_string(), origin.is_trusted)
    }

    #[test]
    fn last_address_that_is_not_trusted_counts() {
        let source = AddressSource::Proxies(proxies());
        for (values, expected) in [
            (&["192.0.2.1"][..], "192.0.2.1"),
            (&["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            // What the client wrote itself is to the left.
            (&["10.0.0.9, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            (&["127.0.0.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            (&["nonsense, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            (&["192.0.2.1:4711, 10.0.0.2:80"], "192.0.2.1"),
            (&["[2001:db8::1]:4711, fd00::1"], "2001:db8::1"),
            (&["[2001:db8::1], [fd00::1]"], "2001:db8::1"),
            (&["::ffff:192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            (&["192.0.2.1, ::ffff:10.0.0.2"], "192.0.2.1"),
            (&["192.0.2.1,, ,10.0.0.2"], "192.0.2.1"),
            (&[" 192.0.2.1\t,\t10.0.0.2 "], "192.0.2.1"),
            (&["198.51.100.9", "192.0.2.1", "10.0.0.2"], "192.0.2.1"),
            (&["198.51.100.9, 192.0.2.1", ""], "192.0.2.1"),
        ] {
            assert_eq!(
                of_list(&source, values),
                (expected.into(), true),
                "{values:?}"
            );
        }
    }

    #[test]
    fn address_of_the_connection_counts_where_the_list_tells_none() {
        let source = AddressSource::Proxies(proxies());
        for values in [
            &[][..],
            &["10.0.0.2"],
            &["192.0.2.1, unknown, 10.0.0.2"],
            &["192.0.2.1, _hidden"],
            &["192.0.2.1 10.0.0.2"],
            &["192.0.2.1, 10.0.0"],
            &["192.0.2.1, 10.0.0.2:99999"],
            &["192.0.2.1, [10.0.0.2"],
            &["192.0.2.1", "unknown"],
            &[""],
        ] {
            assert_eq!(of_list(&source, values), (PROXY.into(), true), "{values:?}");
        }
    }

    #[test]
    fn untrusted_connection_tells_nothing() {
        let peer: IpAddr = "203.0.113.1".parse().unwrap();
        let list = headers("x-forwarded-for", &["192.0.2.1"]);
        let source = AddressSource::Proxies(proxies());
        assert_eq!(origin(&source, peer, &list), Origin::direct(peer));
        let source = AddressSource::Header {
            name: HeaderName::from_static("x-real-ip"),
            trusted: proxies(),
        };
        let real = headers("x-real-ip", &["192.0.2.1"]);
        assert_eq!(origin(&source, peer, &real), Origin::direct(peer));
    }

    #[test]
    fn hops_count_from_the_right() {
        for (hops, values, expected) in [
            (1, &["198.51.100.1, 192.0.2.1"][..], ("192.0.2.1", true)),
            (
                2,
                &["203.0.113.9, 192.0.2.1, 198.51.100.1"],
                ("192.0.2.1", true),
            ),
            (
                2,
                &["203.0.113.9, 192.0.2.1", "198.51.100.1"],
                ("192.0.2.1", true),
            ),
            (2, &["192.0.2.1,, 198.51.100.1,"], ("192.0.2.1", true)),
            (1, &["[::ffff:192.0.2.1]:80"], ("192.0.2.1", true)),
            // A chain that is too short has not come by all proxies.
            (2, &["192.0.2.1"], (PROXY, false)),
            (1, &[], (PROXY, false)),
            (1, &[", ,"], (PROXY, false)),
            (1, &["192.0.2.1, unknown"], (PROXY, true)),
        ] {
            let expected = (expected.0.to_owned(), expected.1);
            let found = of_list(&AddressSource::Hops(hops), values);
            assert_eq!(found, expected, "{hops} of {values:?}");
        }
    }

    #[test]
    fn header_counts_if_it_is_one_address() {
        let source = AddressSource::Header {
            name: HeaderName::from_static("cf-connecting-ip"),
            trusted: proxies(),
        };
        let peer: IpAddr = PROXY.parse().unwrap();
        for (values, expected) in [
            (&["192.0.2.1"][..], "192.0.2.1"),
            (&["[2001:db8::1]:443"], "2001:db8::1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1"),
            (&["192.0.2.1", "192.0.2.2"], PROXY),
            (&["192.0.2.1, 192.0.2.2"], PROXY),
            (&["unknown"], PROXY),
            (&[], PROXY),
        ] {
            let headers = headers("cf-connecting-ip", values);
            let found = origin(&source, peer, &headers).address;
            assert_eq!(found.to_string(), expected, "{values:?}");
        }
    }

    #[test]
    fn values_that_are_not_ascii_are_no_addresses() {
        let mut headers = headers("x-forwarded-for", &["192.0.2.1"]);
        let opaque = HeaderValue::from_bytes(b"\xe9, 192.0.2.2").unwrap();
        headers.append(X_FORWARDED_FOR, opaque);
        let peer = PROXY.parse().unwrap();
        let source = AddressSource::Proxies(proxies());
        assert_eq!(origin(&source, peer, &headers).address, peer);
    }
}
