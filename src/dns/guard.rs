//! Restricts resolved addresses to public ones and those that the operator allows. The author of an
//! XBackend, or of the DNS zone of its hostname, must not reach addresses that only the proxy can
//! reach. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Non-public IPv4 networks (IANA special-purpose registry, multicast and reserved ranges).
const SPECIAL_V4: [Ipv4Net; 11] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
];

/// Non-public IPv6 networks: unspecified, loopback and IPv4-compatible; local NAT64; discard-only;
/// Teredo; unique local; link-local; site-local; multicast.
const SPECIAL_V6: [Ipv6Net; 8] = [
    v6([0, 0, 0], 96),
    v6([0x64, 0xff9b, 1], 48),
    v6([0x100, 0, 0], 64),
    v6([0x2001, 0, 0], 32),
    v6([0xfc00, 0, 0], 7),
    v6([0xfe80, 0, 0], 10),
    v6([0xfec0, 0, 0], 10),
    v6([0xff00, 0, 0], 8),
];

/// Networks that clusters take addresses of pods from: private and shared IPv4, and unique local IPv6.
const OF_PODS_V4: [Ipv4Net; 4] = [
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([172, 16, 0, 0], 12),
    v4([192, 168, 0, 0], 16),
];
const OF_PODS_V6: Ipv6Net = v6([0xfc00, 0, 0], 7);

/// Servers of clouds with metadata and credentials of a node, apart from those with link-local addresses.
const METADATA_V4: [Ipv4Net; 2] = [v4([100, 100, 100, 200], 32), v4([168, 63, 129, 16], 32)];
const METADATA_V6: [Ipv6Net; 2] = [v6([0xfd00, 0xec2, 0], 32), v6([0xfd20, 0xce, 0], 32)];

/// Prefixes of addresses that are routed to an embedded IPv4 address: NAT64 (RFC 6052) and 6to4
/// (RFC 3056).
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0], 16);

const fn v4(address: [u8; 4], length: u8) -> Ipv4Net {
    let [a, b, c, d] = address;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(address: [u16; 3], length: u8) -> Ipv6Net {
    let [a, b, c] = address;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

/// Non-public networks that the operator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedAddresses(Vec<IpNet>);

impl AllowedAddresses {
    /// Permits public addresses and those in `allowed`.
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self(allowed)
    }

    /// Reports whether requests may be sent to an address. An IPv6 address that represents an IPv4
    /// address counts as that address.
    pub fn permits(&self, address: IpAddr) -> bool {
        let effective = effective(address);
        let is_allowed = |net: &IpNet| net.contains(&address) || net.contains(&effective);
        self.0.iter().any(is_allowed) || is_public(effective)
    }

    /// Reports whether requests may be sent to an endpoint of a Service: where others may, and to addresses of pods. The
    /// author of an EndpointSlice chooses the address.
    pub fn permits_endpoint(&self, address: IpAddr) -> bool {
        let effective = effective(address);
        let is_allowed = |net: &IpNet| net.contains(&address) || net.contains(&effective);
        self.0.iter().any(is_allowed)
            || !is_metadata(effective) && (is_public(effective) || is_of_pods(effective))
    }
}

fn is_of_pods(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => OF_PODS_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => OF_PODS_V6.contains(&address),
    }
}

fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => METADATA_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => METADATA_V6.iter().any(|net| net.contains(&address)),
    }
}

/// Returns the IPv4 address that an IPv6 address represents, else the address itself.
fn effective(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else {
        return address.to_canonical();
    };
    let [_, first, second, _, _, _, seventh, eighth] = v6.segments();
    if NAT64.contains(&v6) {
        return embedded(seventh, eighth);
    }
    if SIX_TO_FOUR.contains(&v6) {
        return embedded(first, second);
    }
    address
}

fn embedded(high: u16, low: u16) -> IpAddr {
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Ipv4Addr::new(a, b, c, d).into()
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => !SPECIAL_V6.iter().any(|net| net.contains(&address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(allowed: &[&str], address: &str) -> bool {
        let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
        AllowedAddresses::new(allowed).permits(address.parse().unwrap())
    }

    #[test]
    fn endpoints_have_addresses_of_pods_but_none_of_the_node() {
        let permits = |allowed: &[&str], address: &str| {
            let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
            AllowedAddresses::new(allowed).permits_endpoint(address.parse().unwrap())
        };
        for good in [
            "10.1.2.3",
            "100.64.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "fd12::1",
            "1.1.1.1",
        ] {
            assert!(permits(&[], good), "{good}");
        }
        for bad in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "0.0.0.0",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.192",
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert!(!permits(&[], bad), "{bad}");
        }
        assert!(permits(&["127.0.0.0/8"], "127.0.0.1"));
    }

    #[test]
    fn rejects_non_public_addresses() {
        for address in [
            "0.0.0.0",
            "10.96.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!permits(&[], address), "{address}");
        }
    }

    #[test]
    fn permits_public_addresses() {
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "172.15.255.255",
            "172.32.0.1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2606:4700::1111",
            "2002:101:101::1",
        ] {
            assert!(permits(&[], address), "{address}");
        }
    }

    #[test]
    fn permits_allowed_addresses_in_every_representation() {
        let allowed = ["10.1.0.0/16", "fd12::/16"];
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fd12::1"] {
            assert!(permits(&allowed, address), "{address}");
        }
        for address in ["10.2.0.1", "127.0.0.1", "fd13::1", "::1"] {
            assert!(!permits(&allowed, address), "{address}");
        }
        assert!(permits(&["127.0.0.0/8"], "127.0.0.1"));
        assert!(!permits(&["127.0.0.0/8"], "169.254.169.254"));
    }
}
