//! The address of a client behind trusted proxies, from the addresses that a request came by. What a client could have
//! written itself never counts.

use std::net::{IpAddr, SocketAddr};

use http::HeaderValue;

/// Returns the last address that is not of a trusted proxy; `None` if there is none, or if one behind it is no address.
/// Addresses may have brackets and ports, and IPv4-mapped ones are IPv4. Empty elements of the list do not count
/// (RFC 9110, 5.6.1).
pub(super) fn of(addresses: &HeaderValue, is_trusted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let elements = addresses.to_str().ok()?.rsplit(',').map(str::trim);
    for element in elements.filter(|element| !element.is_empty()) {
        let address = parse(element)?.to_canonical();
        if !is_trusted(address) {
            return Some(address);
        }
    }
    None
}

fn parse(element: &str) -> Option<IpAddr> {
    let bare = element
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'));
    let address = bare.unwrap_or(element).parse().ok();
    address.or_else(|| element.parse().ok().map(|it: SocketAddr| it.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_list(addresses: &'static str) -> Option<String> {
        let is_trusted = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.segments()[0] == 0xfd00,
        };
        let address = of(&HeaderValue::from_static(addresses), is_trusted);
        address.map(|it| it.to_string())
    }

    #[test]
    fn last_address_that_is_not_trusted_counts() {
        for (addresses, expected) in [
            ("192.0.2.1, 10.0.0.1", "192.0.2.1"),
            // What the client wrote itself is to the left.
            ("10.0.0.9, 192.0.2.1, 10.0.0.1", "192.0.2.1"),
            (
                "127.0.0.1, 198.51.100.1, 10.0.0.2, 10.0.0.1",
                "198.51.100.1",
            ),
            ("nonsense, 192.0.2.1, 10.0.0.1", "192.0.2.1"),
            ("192.0.2.1:4711, 10.0.0.1:80", "192.0.2.1"),
            ("[2001:db8::1]:4711, fd00::1", "2001:db8::1"),
            ("[2001:db8::1], [fd00::1]", "2001:db8::1"),
            ("::ffff:192.0.2.1, 10.0.0.1", "192.0.2.1"),
            ("192.0.2.1, ::ffff:10.0.0.2, 10.0.0.1", "192.0.2.1"),
            ("192.0.2.1,, ,10.0.0.1", "192.0.2.1"),
            (" 192.0.2.1\t,\t10.0.0.1 ", "192.0.2.1"),
        ] {
            assert_eq!(of_list(addresses).as_deref(), Some(expected), "{addresses}");
        }
    }

    #[test]
    fn nothing_counts_behind_what_is_no_address() {
        for addresses in [
            "10.0.0.1",
            "10.0.0.2, 10.0.0.1",
            "192.0.2.1, unknown, 10.0.0.1",
            "192.0.2.1, _hidden, 10.0.0.1",
            "192.0.2.1 10.0.0.1",
            "192.0.2.1, 10.0.0, 10.0.0.1",
            "192.0.2.1, 10.0.0.1:99999",
            "192.0.2.1, [10.0.0.1",
            "",
        ] {
            assert_eq!(of_list(addresses), None, "{addresses}");
        }
    }
}
